"""Backups: a directory with a checkpoint of the log, the small files beside it, and a manifest with their checksums.

    DIR/manifest.json      format, version, log id, time, and size and SHA-256 of every file
    DIR/log/               the log, consistent as of one moment
    DIR/overrides.toml     the values set at run time, if there are any
    DIR/bans.json          bans, if there are any

Backup and restore both fill a directory under a temporary name and rename it once it is complete and on disk: a directory with
the final name is complete. A restored log gets a new id. It shares its past with the old one but not its future, and a reader
that identifies logs by their id, such as a link that drops what it has seen, must not confuse them (L2).

Everything here blocks: it is for threads and for commands.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from braidmq import __version__
from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.storage.engine.folders import sync_folder
from braidmq.storage.engine.identity import LOG_ID_KEY
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY
from braidmq.storage.engine.store import Store

MANIFEST_NAME: Final = "manifest.json"
LOG_NAME: Final = "log"
BESIDE_NAMES: Final = ("overrides.toml", "bans.json")

_FORMAT: Final = 1
_CHECKPOINT_NAME: Final = "backup.partial"
_PIECE_BYTES: Final = 1024 * 1024

OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the total about once per MiB; an exception from it aborts the work and removes its files."""


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a backup; its path is relative, with slashes."""

    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The description and file list of a backup. ``made_at`` is RFC 3339; ``format`` is that of the manifest."""

    format: int
    version: str
    log_id: str
    made_at: str
    files: list[BackupFile]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(file.size_bytes for file in self.files)


class Restored(msgspec.Struct, frozen=True):
    """The restored manifest and the log id."""

    manifest: Manifest
    log_id: str


def remove_leftovers(data_dir: Path) -> None:
    """Remove leftovers of a backup whose node died; they would keep disk space that the log has freed."""
    shutil.rmtree(data_dir / _CHECKPOINT_NAME, ignore_errors=True)


def check_target(target: Path, data_dir: Path) -> None:
    """Raise UsageError unless a backup can be made there."""
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} already exists", "use a directory that does not exist yet")
    if not target.parent.is_dir():
        raise UsageError(f"directory {target.parent} does not exist", "create it, or use another one")
    if target.parent.resolve().is_relative_to(data_dir.resolve()):
        raise UsageError(f"{target} is inside the data directory", "use a directory outside it, preferably on another disk")


def make_backup(
    checkpoint: Callable[[Path], None], log_id: str, data_dir: Path, target: Path, on_progress: OnProgress
) -> Manifest:
    """Create the directory ``target`` from a checkpoint and the files beside the log; it is on disk when this returns.

    Tables are hard links if they are on the same disk. Raises what `check_target` and ``checkpoint`` raise, and Unavailable if a
    file cannot be written.
    """
    check_target(target, data_dir)
    # Inside the data directory, where tables can be linked. Elsewhere the engine would copy them, holding the interpreter lock.
    taken = data_dir / _CHECKPOINT_NAME
    made_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    try:
        with _filled(target) as partial:
            remove_leftovers(data_dir)
            checkpoint(taken)
            sources = {f"{LOG_NAME}/{each.name}": each for each in sorted(taken.iterdir()) if each.is_file()}
            sources |= {name: data_dir / name for name in BESIDE_NAMES if (data_dir / name).is_file()}
            copier = _Copier(sum(each.stat().st_size for each in sources.values()), on_progress)
            (partial / LOG_NAME).mkdir(mode=0o700)
            # Tables never change. Everything else could, and is copied.
            files = [
                copier.take(source, partial / name, name, may_link=source.suffix == ".sst") for name, source in sources.items()
            ]
            manifest = Manifest(_FORMAT, __version__, log_id, made_at, files)
            _write(partial / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            sync_folder(partial / LOG_NAME)
    except OSError as problem:
        raise Unavailable(f"cannot create the backup in {target}: {problem}") from problem
    finally:
        remove_leftovers(data_dir)
    return manifest


def read_manifest(source: Path) -> Manifest:
    """Read the manifest of a backup; raises UsageError if there is none or it is too new, Corruption if it is damaged."""
    try:
        data = (source / MANIFEST_NAME).read_bytes()
    except OSError as problem:
        raise UsageError(
            f"{source} is not a backup: {MANIFEST_NAME}: {problem.strerror}", "use the directory of a backup"
        ) from None
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as problem:
        raise Corruption(f"the backup in {source} is damaged: {MANIFEST_NAME}: {problem}") from None
    if manifest.format > _FORMAT:
        raise UsageError(
            f"the backup in {source} has format {manifest.format}, but this version supports formats up to {_FORMAT}",
            f"restore it with braidmq {manifest.version} or newer",
        )
    for file in manifest.files:
        if not _is_ours(PurePosixPath(file.path)):
            raise Corruption(f"the backup in {source} is damaged: its manifest names {file.path!r}")
    return manifest


def restore(source: Path, data_dir: Path, on_progress: OnProgress, *, keeps_log_id: bool = False) -> Restored:
    """Create a data directory from a backup with a new log id, checking each file; it is on disk when this returns.

    ``keeps_log_id``: the log keeps its id, by which the other cores of its cluster know it.

    Raises UsageError (no backup, or the data directory is not empty), Corruption (a file does not match the manifest) and
    Unavailable; the data directory is then unchanged.
    """
    manifest = read_manifest(source)
    if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
        raise UsageError(f"{data_dir} is not empty", "use a directory that does not exist yet or is empty")
    try:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        with _filled(data_dir) as partial:
            (partial / LOG_NAME).mkdir(mode=0o700)
            copier = _Copier(manifest.total_bytes, on_progress)
            for file in manifest.files:
                _restore_file(source, partial, file, copier)
            log_id = manifest.log_id if keeps_log_id else _renew_log_id(partial / LOG_NAME).hex()
            sync_folder(partial / LOG_NAME)
            if data_dir.exists():
                data_dir.rmdir()  # fails, and keeps the directory, if it is no longer empty
    except OSError as problem:
        raise Unavailable(f"the backup could not be restored to {data_dir}: {problem}") from problem
    return Restored(manifest, log_id)


def _restore_file(source: Path, partial: Path, file: BackupFile, copier: _Copier) -> None:
    try:
        found = copier.take(source / file.path, partial / file.path, file.path, may_link=False)
    except FileNotFoundError:
        raise Corruption(f"the backup in {source} is incomplete: {file.path} is missing") from None
    if found != file:
        raise Corruption(f"the backup in {source} is damaged: {file.path} does not match the manifest")


def _is_ours(path: PurePosixPath) -> bool:
    """Whether a backup can have this path; a foreign manifest must not write anywhere else."""
    match path.parts:
        case (name,):
            return name in BESIDE_NAMES
        case (folder, name):
            return folder == LOG_NAME and name != ".."
        case _:
            return False


def _renew_log_id(path: Path) -> bytes:
    log_id = os.urandom(16)
    with Store.open(path, ()) as store:
        batch = store.batch()
        batch.put(DEFAULT_FAMILY, LOG_ID_KEY, log_id)
        store.write(batch)
        store.sync()
    return log_id


@contextmanager
def _filled(target: Path) -> Iterator[Path]:
    """A directory beside ``target`` that is renamed to it at the end, or removed on failure."""
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))  # mode 0700
    try:
        yield partial
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


class _Copier:
    """Copies files to the disk, computes their checksums and reports progress."""

    def __init__(self, total_bytes: int, on_progress: OnProgress) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._done_bytes = 0

    def take(self, source: Path, target: Path, name: str, *, may_link: bool) -> BackupFile:
        """Link or copy a file; returns its manifest entry."""
        if may_link:
            with suppress(OSError):  # another disk, or one that does not support links
                os.link(source, target)
                return self._measure(source, None, name)
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as out:
            file = self._measure(source, out.write, name)
            os.fsync(out.fileno())
        return file

    def _measure(self, source: Path, write: Callable[[memoryview], int | None] | None, name: str) -> BackupFile:
        digest = hashlib.sha256()
        size_bytes = 0
        piece = memoryview(bytearray(_PIECE_BYTES))
        with source.open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                digest.update(piece[:count])
                written = 0
                while write is not None and written < count:
                    written += write(piece[written:count]) or 0
                size_bytes += count
                self._done_bytes += count
                self._on_progress(self._done_bytes, self._total_bytes)
        return BackupFile(name, size_bytes, digest.hexdigest())


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
