"""The mark of a log: how far it was on disk, stored outside the files it describes.

A write-ahead log that was removed or truncated looks as if it had never contained more. So the number of the last row known
to be on disk (`Database.sequence`) is written to a small file beside the log, and a node that finds fewer rows does not start.

- The mark is never ahead of the disk: it is written after the fsync that it describes. So it never rejects a complete log.
- It may lag behind. It is written without an fsync of its own, 10 ms after the last commit or, under constant load, every 50 ms:
  a killed process leaves it exact or that much behind, a power cut leaves what the kernel had written.
- With ``history.durability = "os"`` nothing is synced while the node runs: the mark describes the last start or orderly stop.
- It has two slots (`slots`), so that one of them is always valid.

An older file of the write-ahead log may be missing while the newest is there, and then RocksDB starts without a word. So the mark
lists those files, too, and a start compares: what RocksDB still needs by its MANIFEST must be there. A file is listed once it was
there before an fsync, since a power cut may take the name of a newer one.

The mark is no defence against those who change it as well.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.errors import Corruption
from braidmq.storage.engine.database import Database
from braidmq.storage.engine.folders import sync_folder
from braidmq.storage.engine.manifest import oldest_journal
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.engine.slots import SLOT_BYTES, read_slots, write_slot

log = logging.getLogger("braidmq.storage")

_MAGIC: Final = b"BMQMARK2"
_JOURNALS_MAX: Final = 50
# Magic, turn, log id, sequence, newest log file and its length, log files that are there or zeros.
_SLOT: Final = struct.Struct(f">8sQ16sQQQ{_JOURNALS_MAX}Q")
_LAG_S: Final = 0.05
_AGAIN_S: Final = 1.0  # after which to try again when the mark could not be written
_LOOK_S: Final = 1.0  # between two looks at the names of the log files


class Mark(msgspec.Struct, frozen=True):
    """So far this log was on disk. As a hint, number and length of the newest file of its write-ahead log; 0 if there is none.

    `journals` are the numbers of those log files that were there before the last fsync.
    """

    log_id: bytes
    sequence: int
    journal: int = 0
    journal_bytes: int = 0
    journals: tuple[int, ...] = ()


def mark_path(log_path: Path) -> Path:
    """Where the mark of a log is."""
    return log_path.with_name(f"{log_path.name}.mark")


def read_mark(path: Path) -> Mark | None:
    """The mark in a file; None if it is missing, or unreadable, which is logged."""
    found = _read_slots(path)
    if found is None:
        return None
    if not found:
        log.warning("%s is damaged: this start cannot check whether the log is complete", path)
        return None
    return max(found, key=lambda slot: slot[0])[1]


def _read_slots(path: Path) -> list[tuple[int, Mark]] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return []
    slots = []
    for magic, turn, log_id, sequence, journal, length, *journals in read_slots(data, _SLOT):
        if magic == _MAGIC:
            slots.append((turn, Mark(log_id, sequence, journal, length, tuple(filter(None, journals)))))
    return slots


def check_before(path: Path, mark: Mark, tuning: Tuning) -> None:
    """Raise Corruption if the log in `path` has less than its mark says; changes nothing. Blocks.

    The log is opened, read-only, only if something seems to be missing: opening it for writing would drop files that may still be
    recovered. A missing log file may also have become part of the tables.
    """
    if not (path / "CURRENT").exists():
        raise Corruption(_words(path, "its files are missing"))
    needed = oldest_journal(path)
    missing = [each for each in mark.journals if needed is not None and each >= needed and not _journal_path(path, each).exists()]
    # The newest one may have had nothing that counts: the number of rows tells.
    if missing and missing[0] != mark.journal:
        raise Corruption(_words(path, f"{_journal_path(path, missing[0]).name}, a file of its write-ahead log, is missing"))
    if mark.journal and _length(_journal_path(path, mark.journal)) < mark.journal_bytes:
        view = Database.open_read_only(path, tuning)
        try:
            check_opened(view, mark)
        finally:
            view.close()


def check_opened(database: Database, mark: Mark) -> None:
    """Raise Corruption if an open log is not the one of the mark, or has less than the mark says."""
    if database.log_id != mark.log_id:
        raise Corruption(_words(database.path, "the directory now holds a different log"))
    missing = mark.sequence - database.sequence
    if missing > 0:
        raise Corruption(_words(database.path, f"at least {missing} committed rows are missing at its end"))


def _words(path: Path, what: str) -> str:
    return (
        f"the log in {path} has lost acknowledged data: {what} ({mark_path(path)} records its last state). "
        "Put back the missing files or restore a backup; to continue with the remaining data, "
        f"use `braidmq salvage --data-dir {path.parent} --accept-loss`"
    )


def _journal_path(path: Path, number: int) -> Path:
    return path / f"{number:06}.log"


def _length(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def journals_in(path: Path) -> tuple[int, ...]:
    """The numbers of the files of a write-ahead log, in order."""
    return tuple(sorted(int(each.stem) for each in path.glob("*.log") if each.stem.isdigit()))


class MarkFile:
    """Writes the mark of one log; used by one thread at a time. One that cannot be written is told of once, and tried again."""

    def __init__(self, log_path: Path, log_id: bytes, sequence: int) -> None:
        """Start with the current state on disk."""
        self._log_path = log_path
        self._path = mark_path(log_path)
        self._log_id = log_id
        self._sequence = self._written = sequence
        self._journal = (0, 0)
        self._found: tuple[int, ...] = ()  # log files at the last look
        self._journals: tuple[int, ...] = ()  # and those that an fsync has followed
        self._written_at = self._looked_at = -_LOOK_S
        self._file = -1
        self._failed_at = 0.0  # when it could not be written; 0: it can
        self._turn = max((turn for turn, _ in _read_slots(self._path) or ()), default=0)
        self._create()

    def _create(self) -> None:
        partial = self._path.with_name(f"{self._path.name}.partial")
        try:
            self._file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, bytes(2 * SLOT_BYTES), 0)
            self._write()
            os.fsync(self._file)
            partial.rename(self._path)
            sync_folder(self._path.parent)
        except OSError as problem:
            self._put_off(problem)
        else:
            if self._failed_at:
                log.warning("%s is written again", self._path)
            self._failed_at = 0.0

    def synced(self, sequence: int) -> None:
        """Rows up to this one are on disk."""
        self._sequence = sequence
        self._journals = self._found

    def catch_up(self, *, is_idle: bool) -> None:
        """Write the mark if it is behind, when the committer is idle or the mark is due."""
        if self._sequence == self._written:
            return
        now = time.monotonic()
        if self._file < 0:
            if now - self._failed_at >= _AGAIN_S:
                self._create()
        elif is_idle or now - self._written_at >= _LAG_S:
            try:
                self._write()
            except OSError as problem:
                self._put_off(problem)

    def close(self, sequence: int | None) -> None:
        """Write how far the log is on disk, if known, and close the file."""
        if sequence is not None:
            self._sequence = sequence
            self._journals = self._found = ()  # all rows are in tables
        if self._file < 0 and self._failed_at:
            self._create()
        if self._file >= 0:
            try:
                self._write()
                os.fsync(self._file)
            except OSError as problem:
                self._put_off(problem)
            else:
                os.close(self._file)
                self._file = -1

    def _look(self, now: float) -> None:
        """Measure the newest log file. It may contain more than is synced; then the next start only checks more thoroughly."""
        with suppress(OSError):  # there may be no free descriptor
            if now - self._looked_at >= _LOOK_S:
                self._looked_at = now
                self._found = journals_in(self._log_path)
                newest = self._found[-1] if self._found else 0
                self._journal = newest, _length(_journal_path(self._log_path, newest)) if newest else 0
            else:
                self._journal = self._journal[0], _length(_journal_path(self._log_path, self._journal[0]))

    def _write(self) -> None:
        if self._file < 0:
            return
        self._written_at = now = time.monotonic()
        self._look(now)
        self._turn += 1
        journals = self._journals[-_JOURNALS_MAX:]
        unused = (0,) * (_JOURNALS_MAX - len(journals))
        fields = _SLOT.pack(_MAGIC, self._turn, self._log_id, self._sequence, *self._journal, *journals, *unused)
        write_slot(self._file, self._turn, fields)
        self._written = self._sequence

    def _put_off(self, problem: OSError) -> None:
        if not self._failed_at:
            log.warning("cannot write %s (%s): the next start may not notice lost log files", self._path, problem)
        self._failed_at = time.monotonic()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
