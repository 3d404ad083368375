"""Whether a store accepts writes, and when it accepts them again.

A stopped store recovers

- after a failed fsync, a lack of descriptors, or an unknown error: as soon as the directory can be reopened (``recovery``);
- after damage, or if the directory does not hold what was written: only with a restart;
- after a full disk: as soon as there is space again. No flush may be tried in between, because RocksDB treats a failed flush of
  an unfinished log file as final; otherwise it starts a new file by itself;
- after a stall: with the next write that is accepted.

Reads continue in all these cases. ``fail`` may be called in the commit thread, everything else on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from braidmq.base.errors import Unavailable
from braidmq.storage.engine.health import HEALTHY, Health, HealthState, Measurements, judge
from braidmq.storage.engine.rocksdb import Fault, classify, is_damage

log = logging.getLogger(__name__)

_RETRY_AFTER_STALL_S = 0.1
_RETRY_AFTER_FULL_S = 10.0
_RETRY_AFTER_RESTART_S = 60.0
# For how many checks the engine may still reject writes although the disk has space again; it checks every five seconds itself.
_FULL_CHECKS_MAX = 15


class Availability:
    """The state of one store; ``on_full`` is called when the engine itself meets a full disk, before anything else happens."""

    def __init__(self, path: Path, reserve_bytes: int, on_full: Callable[[], None]) -> None:
        self.can_recover = False  # without a restart
        self.failure: Health | None = None  # set by either thread, and cleared by a recovery
        self.is_full = False
        self.must_not_flush = False  # the engine itself met the full disk, and has not recovered yet
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._on_full = on_full
        self._checks_with_space = 0  # since then
        self._health = HEALTHY

    @property
    def health(self) -> Health:
        """The state as of the last ``note`` or of a failure since then."""
        return self.failure or self._health

    def accepts(self, *, frees_space: bool = False) -> bool:
        """Whether a write may be tried; one that frees space may use the reserve of the disk."""
        return self.failure is None and (not self.is_full or (frees_space and not self.must_not_flush))

    def may_flush(self) -> bool:
        """Whether a flush may be tried."""
        return self.failure is None and not self.must_not_flush

    def refuse(self) -> NoReturn:
        """Raise Unavailable with the reason and when to try again."""
        health = self.health
        raise Unavailable(health.reason, _RETRY_AFTER_RESTART_S if health.needs_restart else _RETRY_AFTER_FULL_S)

    def fail(self, reason: str, is_lasting: bool = False) -> None:
        """Stop until a recovery or, if it is lasting, until a restart."""
        if self.failure is None:
            is_lasting = is_lasting or not self.can_recover
            hope = "it is read-only until a restart" if is_lasting else "the node reopens it as soon as possible"
            self.failure = Health(HealthState.STOPPED, f"{reason}; {hope}", needs_restart=is_lasting)
            log.critical("%s", self.failure.reason)

    def resume(self) -> None:
        """A recovery has reopened the database."""
        self.failure = None
        self.is_full = self.must_not_flush = False
        self._health = HEALTHY

    def give_up(self, reason: str) -> None:
        """A recovery has found that it is impossible."""
        self.failure = None
        self.fail(reason, is_lasting=True)

    def note(self, figures: Measurements, can_write: Callable[[], bool]) -> None:
        """Take measurements into account; ``can_write`` tests the engine after the disk was full."""
        reserve = self._reserve_bytes
        if self.is_full:
            # A quarter more than the reserve, or a disk at the limit would toggle with every record.
            if figures.free_bytes >= reserve + reserve // 4:
                self._leave_full(can_write())
        elif figures.free_bytes < reserve:
            self._stop_full(
                f"the disk of {self._path} has only {figures.free_bytes >> 20} MiB left, {reserve >> 20} MiB are reserved"
            )
        if not self.is_full and self.failure is None:
            self._health = judge(figures)

    def _leave_full(self, can_write: bool) -> None:
        if can_write:
            self.is_full = self.must_not_flush = False
            self._checks_with_space = 0
            log.warning("the disk of %s has space again; the log accepts writes", self._path)
            return
        self._checks_with_space += 1
        if self.failure is None and self._checks_with_space > _FULL_CHECKS_MAX:
            self.fail(f"the disk of {self._path} has space again, but the storage engine has not resumed")

    def _stop_full(self, reason: str) -> None:
        self.is_full = True
        self._health = Health(HealthState.STOPPED, reason)
        log.error("%s; the log accepts no writes until there is space", reason)

    def note_failed_write(self, problem: Exception) -> Unavailable:
        """The engine has rejected a write: stop as far as necessary; returns the error to raise."""
        match classify(problem):
            case Fault.STALL:
                self._health = Health(HealthState.STOPPED, "the storage engine is stalled until compaction catches up")
                return Unavailable(self._health.reason, _RETRY_AFTER_STALL_S)
            case Fault.FULL:
                self.must_not_flush = True
                self._on_full()
                self._stop_full(f"the disk of {self._path} is full")
                return Unavailable(self._health.reason, _RETRY_AFTER_FULL_S)
            case Fault.LASTING:
                # Earlier writes may still be committed: that needs only an fsync of open files.
                self.fail(f"the log in {self._path} cannot be written ({problem})", is_damage(problem))
                return Unavailable(self.health.reason, _RETRY_AFTER_FULL_S)
