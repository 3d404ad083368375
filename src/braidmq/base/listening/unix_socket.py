"""A Unix socket in a node's data directory, which only the user that runs the node can open."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError, UsageError

_PATH_BYTES_MAX: Final = 107  # sun_path without its terminating zero


class UnixSocket:
    """Listens at ``path`` with mode 0600; replaces a socket that a dead node left behind. Raises ConfigError or UsageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listening = _listen_on(path)
        self._inode = _inode(path)

    def remove(self) -> None:
        """Remove the file if it is still that of this socket; the caller closes ``listening``."""
        if self._inode is not None and _inode(self.path) == self._inode:
            self.path.unlink(missing_ok=True)


def _listen_on(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ConfigError("node.data_dir", f"{path} is too long for a Unix socket", "choose a shorter directory")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _refuse_if_alive(path)
            path.unlink()
        mask = os.umask(0o177)  # the mode must be right from the first moment, so chmod afterwards would be too late
        try:
            listening.bind(str(path))
        finally:
            os.umask(mask)
        listening.listen(64)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigError("node.data_dir", f"cannot create {path}: {error.strerror}") from None
    except BaseException:
        listening.close()
        raise
    return listening


def _refuse_if_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            pass  # a process is listening, but is too busy to answer
        except OSError:
            return
    raise UsageError(f"a node is already running in {path.parent}", "stop it, or choose another node.data_dir")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
