"""Small files that operators edit while the node runs: detect changes, read, replace atomically, lock.

Every function blocks for a moment: call it from a worker thread, or before the node starts serving.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator

import msgspec

from braidmq.base.errors import Unavailable

_LOCK_WAIT_S = 5.0
_LOCK_RETRY_S = 0.02


class Signature(msgspec.Struct, frozen=True):
    """Changes whenever the file does; equal signatures mean equal content."""

    mtime_ns: int
    ctime_ns: int  # new permissions change only this
    size: int
    inode: int


def _signature(status: os.stat_result) -> Signature:
    return Signature(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def signature(path: str) -> Signature | None:
    """The file's current signature, or None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _signature(status)


def is_readable_by_all(path: str) -> bool:
    """Whether every user of this machine may read the file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False


def read_text(path: str) -> tuple[str, Signature]:
    """The file's text and its signature; raises OSError or UnicodeDecodeError if it cannot be read."""
    # O_NONBLOCK: if the path is a named pipe, opening it must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read()
    return data.decode("utf-8"), _signature(status)


def replace(path: str, data: bytes, *, expected: Signature | None = None) -> bool:
    """Replace the file atomically with ``data``, readable only by its owner (and its group, if it was).

    With ``expected``, does nothing and returns False if the file has changed since.
    """
    target = os.path.realpath(path)
    try:
        before: os.stat_result | None = os.stat(target)
    except FileNotFoundError:
        before = None
    mode = 0o600 if before is None else before.st_mode & 0o660 | 0o600
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            if before is not None:
                # Without the right to change owners, the new file belongs to this process's user, and its group may differ.
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if expected is not None and signature(target) != expected:
            os.unlink(temporary)
            return False
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return True


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Keep other braidmq processes from editing this file; raises Unavailable if one of them does not release the lock."""
    # The lock is on the directory: the file itself is replaced, and may not exist yet.
    descriptor = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"another process is editing {path}") from None
                time.sleep(_LOCK_RETRY_S)
        yield
    finally:
        os.close(descriptor)
