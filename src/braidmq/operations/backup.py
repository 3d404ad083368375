"""Backups of a running node: a thread does the work, and the event loop reports progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from braidmq.base.errors import Unavailable, UsageError
from braidmq.control.history import Copying, End, Made, encode_lines
from braidmq.storage.log import DurableLog
from braidmq.storage.upkeep.backup import Manifest, check_target, make_backup

_TELL_EVERY_S: Final = 0.2


class Covered(Struct, frozen=True):
    """What a backup of one of several cores covers; with one core: everything, and both are empty."""

    shards: list[int]
    other_cores: list[str]


ALL: Final = Covered([], [])


class _Cancelled(Exception):
    """The backup was cancelled."""


class BackupMaker:
    """Creates backups, one at a time."""

    def __init__(self) -> None:
        self._is_running = False

    def make(self, log: DurableLog, data_dir: Path, target: Path, covered: Covered = ALL) -> AsyncIterator[bytes]:
        """Create a backup in the new directory ``target``; yields lines. Closing the iterator stops the backup.

        Raises UsageError at once for an invalid target, Unavailable if another backup is running.
        """
        if not target.is_absolute():
            raise UsageError(f"{str(target)!r} is not an absolute path", "the node may run in a different working directory")
        check_target(target, data_dir)
        if self._is_running:
            raise Unavailable("another backup is running", 60)
        return self._make(log, data_dir, target, covered)

    async def _make(self, log: DurableLog, data_dir: Path, target: Path, covered: Covered) -> AsyncIterator[bytes]:
        if self._is_running:
            raise Unavailable("another backup is running", 60)
        self._is_running = True
        work = _Work(log, data_dir, target)
        thread = asyncio.ensure_future(asyncio.to_thread(work.run))
        try:
            while not (await asyncio.wait([thread], timeout=_TELL_EVERY_S))[0]:
                yield encode_lines([Copying(done_bytes=work.done_bytes, total_bytes=work.total_bytes)])
            made = thread.result()
            shown = Made(
                path=str(target),
                log_id=made.log_id,
                files=len(made.files),
                total_bytes=made.total_bytes,
                shards=covered.shards,
                other_cores=covered.other_cores,
            )
            yield encode_lines([shown, End()])
        finally:
            work.is_stopped.set()
            # The thread may be inside the engine, which must not be closed while it is in use: always wait for the thread.
            await asyncio.wait([thread])
            self._is_running = False
            if not thread.cancelled():
                thread.exception()  # already reported, or the caller is gone


class _Work:
    """The work of the thread; the event loop reads its progress."""

    def __init__(self, log: DurableLog, data_dir: Path, target: Path) -> None:
        self._log = log
        self._data_dir = data_dir
        self._target = target
        self.done_bytes = 0
        self.total_bytes = 0
        self.is_stopped = threading.Event()

    def run(self) -> Manifest:
        log = self._log
        return make_backup(log.checkpoint, log.log_id.hex(), self._data_dir, self._target, self._progress)

    def _progress(self, done_bytes: int, total_bytes: int) -> None:
        if self.is_stopped.is_set():
            raise _Cancelled
        self.done_bytes = done_bytes
        self.total_bytes = total_bytes
