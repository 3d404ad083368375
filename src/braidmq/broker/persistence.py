"""The broker's side of the log: what a turn of the loop collects is written at its end, as one batch.

Three things wait for the disk: messages to record (``recorder``), rows that a caller waits for (``change``), and the steps
of QoS 2 deliveries to durable sessions (``Phase.STEPS``). Others decide what the rows contain: `session.storage` for sessions,
`shared.binding` for groups. `turn` says when in a turn they are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from braidmq.broker.ports import Change, Refusal, Storage
from braidmq.broker.turn import Phase, Turn
from braidmq.lane.path.lane import Lane
from braidmq.lane.recording.recorder import Recorder

log = logging.getLogger("braidmq.durability")

_REFUSED_FEW = 1000  # refused rows that are retried in every turn: about a millisecond
_RETRY_S = 0.4  # the pause before a retry if there are more
_REFUSED_MAX = 100_000  # rows that wait in memory until the disk has room again
_REFUSED_BYTES_MAX = 64 * 1024 * 1024  # and their bytes


class TurnWriter:
    """Writes what a turn has collected as one batch, in the order of arrival. Runs on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        storage: Storage,
        turn: Turn,
        resume_publishers: Callable[[], None],
    ) -> None:
        """``resume_publishers`` is called when the log has room again."""
        self.storage = storage
        self.log = storage.log
        self.recorder = Recorder(lane, partial(turn.ask, Phase.WRITE))
        self.recorder.outcomes.on_fault = _report
        self.recorder.outcomes.on_more = partial(turn.ask, Phase.BACKLOG)
        self.recorder.outcomes.on_late = self._note_congestion
        self._resume_publishers = resume_publishers
        self.on_shown: Callable[[], None] = no_callback  # called when more of the recorder's backlog was delivered to followers
        self._loop = loop
        self._state = lane.state
        self._turn = turn
        self._refused: list[Change] = []  # written before anything else
        self._refused_bytes = 0
        self._last_refusal: Refusal
        self._retry_at = 0.0
        self._is_slow = False
        marks = self.log.watermarks
        # A position of 0 would mean "from the earliest on", and hide what retention takes from a shard that is still empty (S16).
        lane.state.marks = [max(marks[shard], 1) for shard in range(len(marks))]
        turn.at_end(Phase.WRITE, self._write_block)
        turn.at_end(Phase.BACKLOG, self._show_backlog)
        self.log.on_relief(self._relieve)

    # Writing

    def change(
        self, changes: Iterable[Change], on_commit: Callable[[], None], on_refused: Callable[[Refusal], None] | None = None
    ) -> None:
        """Write rows at the end of this turn; without ``on_refused``, refused rows are retried first."""
        if self._state.unready:
            self._turn.run_now(Phase.STEPS)  # no cursor with such a step may come to the disk before those of the groups
        if self._is_barred():
            if on_refused is None:
                self._keep_refused(list(changes))
            else:
                self._loop.call_soon(on_refused, self._last_refusal)
            return
        self.pass_on()
        if on_refused is None:
            changes = list(changes)
            on_refused = partial(self._write_again, changes)
        self.log.change(changes, on_commit=on_commit, on_refused=on_refused)
        self._turn.ask(Phase.WRITE)

    def write(self, *changes: Change) -> None:
        """Write rows without a callback."""
        self.change(changes, no_callback)

    def _write_again(self, changes: list[Change], refusal: Refusal) -> None:
        """Keep refused rows for a retry: a row that should be removed must not reappear beside later ones of the same session."""
        if refusal.is_in_doubt:
            return  # the log accepts nothing until the next start
        self._retry_at = monotonic() + _RETRY_S
        self._last_refusal = refusal
        self._keep_refused(changes)

    def _keep_refused(self, changes: list[Change]) -> None:
        size = self.log.size_of(changes)
        if len(self._refused) < _REFUSED_MAX and self._refused_bytes + size <= _REFUSED_BYTES_MAX:
            self._refused += changes
            self._refused_bytes += size
        else:
            log.error("discarded rows that could not be written: %s", self._last_refusal.reason)

    def pass_on(self) -> None:
        """Hand the block so far to the log: records and rows must reach it in the order in which they were made."""
        block = self.recorder.take()
        if self._is_barred():
            if block is not None:
                block.stop_producers()
                self._loop.call_soon(block.refused, self._last_refusal)
            return
        if self._refused:
            refused, self._refused = self._refused, []
            self._refused_bytes = 0
            self.log.change(refused, on_commit=no_callback, on_refused=partial(self._write_again, refused))
        if block is not None:
            self.log.append_block(block)

    def _is_barred(self) -> bool:
        """Whether writing has to pause: many refused rows go first, and are not retried in every turn."""
        return len(self._refused) > _REFUSED_FEW and monotonic() < self._retry_at

    def _write_block(self) -> None:
        """Hand everything that this turn has collected to the log, and start its commit."""
        self.pass_on()
        self.log.flush()
        self.recorder.is_congested = self._is_congested()

    def _show_backlog(self) -> None:
        self.recorder.outcomes.go_on()
        self.on_shown()

    def _is_congested(self) -> bool:
        return self.log.is_congested or self._is_slow or self.recorder.outcomes.is_late

    def note_slow(self, is_slow: bool) -> None:
        """The log has come near its limits, or has left them: publishers wait while it is near them."""
        self._is_slow = is_slow
        self._note_congestion()

    def _note_congestion(self) -> None:
        self.recorder.is_congested = self._is_congested()
        if not self.recorder.is_congested:
            self._relieve()

    def _relieve(self) -> None:
        """The log has room again: let publishers continue, after this callback."""
        if self._is_slow or self.recorder.outcomes.is_late:
            return
        self.recorder.is_congested = False
        self._resume_publishers()

    def retry(self) -> None:
        """Retry refused rows in this turn."""
        if self._refused:
            self._turn.ask(Phase.WRITE)

    def stop(self) -> None:
        """Write everything that was collected; the log may be closed afterwards."""
        self._turn.run_now(Phase.STEPS)
        self._turn.run_now(Phase.WRITE)


def no_callback() -> None:
    """Stands for a callback where no client waits; a log may treat such rows as less urgent."""


def _report(problem: Exception) -> None:
    log.error("a committed message could not be delivered", exc_info=problem)
