"""The broker's side of the log: what a turn of the loop has collected is written at its end, and cursors are written down.

Three things wait for the disk: messages to be recorded (``recorder``), rows that somebody waits for (``change``), and the steps
of QoS 2 deliveries to durable sessions. All of a turn goes into one batch. Cursors that nobody waits for are written when a tick
comes, so many at a time; a session that is connected and idle has its turn about once a minute (S13).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.ports import RELEASED, SENT, Change, CursorRow, InFlight, Refusal, Storage
from braidmq.broker.shared_log import GroupLog, is_lease
from braidmq.lane.channel import HOLD_LOG
from braidmq.lane.flow import Delivery
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import Message
from braidmq.lane.recorder import Recorder
from braidmq.lane.records import encode_record
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.sessions import Session

log = logging.getLogger("braidmq.durability")

Step = tuple[LogFlow, list[int]]  # packet ids of a flow whose next step waits for the disk

_CURSORS_PER_TICK = 2000  # written in one go: about 10 ms
_REFUSED_FEW = 1000  # rows that are tried again in every turn: about a millisecond
_RETRY_S = 0.4  # after which more than that are tried again
_REFUSED_MAX = 100_000  # rows that wait until the disk has room again
_IDLE_ROUND_TICKS = 120  # in which every connected session has its position written once


class Keeper:
    """Between the broker and its storage; lives on the event loop."""

    def __init__(self, broker: Broker, storage: Storage) -> None:
        self.storage = storage
        self.log = storage.log
        self.recorder = Recorder(broker.lane, self.ask_for_turn)
        self.recorder.deliver = broker.publisher.deliver_with_flags
        self.recorder.on_fault = _report
        self._broker = broker
        self._turn: asyncio.Handle | None = None
        self._idle: list[str] = []  # client ids, still to be written in this round
        self._idle_share = 0
        self._ticks = 0
        self._refused: list[Change] = []  # to be written before anything else
        self._last_refusal: Refusal
        self._retry_at = 0.0
        self._is_slow = False
        marks = self.log.watermarks
        # A position of 0 would mean "from the earliest on", and hide what retention takes from a shard that is still empty (S16).
        broker.state.marks = [max(marks[shard], 1) for shard in range(len(marks))]
        broker.state.on_unready = self.ask_for_turn
        self.log.on_relief(self._relieve)

    # Writing

    def change(
        self, changes: Iterable[Change], on_commit: Callable[[], None], on_refused: Callable[[Refusal], None] | None = None
    ) -> None:
        """Write rows at the end of this turn; ``on_refused`` None: what is refused is written again, before anything else is."""
        if self._broker.state.unready:
            self._write_steps()  # no cursor with such a step may come to the disk before those of the groups
        if self._is_barred():
            if on_refused is None:
                self._keep_refused(list(changes))
            else:
                self._broker.loop.call_soon(on_refused, self._last_refusal)
            return
        self._pass_on()
        if on_refused is None:
            changes = list(changes)
            on_refused = partial(self._write_again, changes)
        self.log.change(changes, on_commit=on_commit, on_refused=on_refused)
        self.ask_for_turn()

    def write(self, *changes: Change) -> None:
        """Write rows that nobody waits for."""
        self.change(changes, _nothing)

    def _write_again(self, changes: list[Change], refusal: Refusal) -> None:
        """Keep what was refused: a row that should be gone must not come back beside later ones of the same name."""
        if refusal.is_in_doubt:
            return  # nothing is written any more until the next start
        self._retry_at = monotonic() + _RETRY_S
        self._last_refusal = refusal
        self._keep_refused(changes)

    def _keep_refused(self, changes: list[Change]) -> None:
        if len(self._refused) < _REFUSED_MAX:
            self._refused += changes
        else:
            log.error("rows could not be written and were given up: %s", self._last_refusal.reason)

    def _pass_on(self) -> None:
        """Hand over what was recorded so far: rows must reach the log in the order in which they were made."""
        block = self.recorder.take()
        if self._is_barred():
            if block is not None:
                block.stop_producers()
                self._broker.loop.call_soon(block.refused, self._last_refusal)
            return
        if self._refused:
            refused, self._refused = self._refused, []
            self.log.change(refused, on_commit=_nothing, on_refused=partial(self._write_again, refused))
        if block is not None:
            self.log.append_block(block)

    def _is_barred(self) -> bool:
        """Whether nothing can be written for a moment: what was refused goes first, and is not tried again in every turn."""
        return len(self._refused) > _REFUSED_FEW and monotonic() < self._retry_at

    def ask_for_turn(self) -> None:
        """Call ``end_turn`` after what runs now."""
        if self._turn is None:
            self._turn = self._broker.loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Hand everything that this turn has collected to the log."""
        self._turn = None
        self._write_steps()
        self._pass_on()
        self.log.flush()
        self.recorder.is_congested = self.log.is_congested or self._is_slow

    def note_slow(self, is_slow: bool) -> None:
        """The log is near its limits, or no longer: publishers wait meanwhile."""
        self._is_slow = is_slow
        self.recorder.is_congested = self.log.is_congested or is_slow
        if not self.recorder.is_congested:
            self._relieve()

    def _take_unready(self) -> list[LogFlow]:
        state = self._broker.state
        unready = state.unready
        state.unready = []
        return unready

    def _write_steps(self) -> None:
        """Write the cursors that QoS 2 waits for, and as one with them those of the groups that gave such messages away (S10)."""
        steps: list[Step] = []
        changes: list[Change] = []
        for flow in self._take_unready():
            packet_ids = flow.take_unready()
            session = self._broker.sessions.get(flow.client_id)
            if not packet_ids or session is None or session.flow is not flow:
                continue  # its session is over, and nothing of it is to be written any more
            # Changed no longer, as of now; the flow stays in the list of changes, where it is passed over.
            changes += self._broker.durable.cursor_changes(session)
            steps.append((flow, packet_ids))
        groups = self._broker.sharing.take_due()
        changes += map(self._broker.sharing.row_of, groups)
        if changes:
            self.change(changes, partial(self._make_ready, steps), partial(self._not_ready, steps, groups))

    def _make_ready(self, steps: list[Step]) -> None:
        for flow, packet_ids in steps:
            flow.make_ready(packet_ids)
        self._broker.lane.flush()

    def _not_ready(self, steps: list[Step], groups: list[GroupLog], refusal: Refusal) -> None:
        """A session cannot go on while nothing can be written: its client is let go and comes back."""
        for flow, _ in steps:
            flow.note_change()
            if not refusal.is_in_doubt:  # else the disk may have it as the session's own
                self._broker.groups.take_back(flow)
                # Not in this call: older rows of the session that were refused with it must come to the disk before.
                self._broker.loop.call_soon(self.write_cursor, flow)
            session = self._broker.sessions.get(flow.client_id)
            if session is not None and session.flow is flow and session.connection is not None:
                session.connection.close(Reason.QUOTA_EXCEEDED, "the session cannot be stored")
        for log in groups:
            log.is_changed = True
            self._broker.sharing.note_change(log, at_once=False)
        self._broker.lane.flush()

    def _relieve(self) -> None:
        """The log has room again: let publishers go on, after this callback."""
        if self._is_slow:
            return
        self.recorder.is_congested = False
        for connection in self._broker.connections:
            if connection.hold_bits & HOLD_LOG:
                connection.schedule_resume(HOLD_LOG)

    # Cursors

    def cursor_row(self, session: Session) -> CursorRow:
        """The cursor as it is to be on disk."""
        unread = {entry.packet_id: entry for entry in session.unread}
        inflight = (
            unread[packet_id] if packet_id in unread and not delivery.is_released else self._in_flight(packet_id, delivery)
            for packet_id, delivery in session.flow.inflight_items()
            if not is_lease(delivery)  # which is in the row of its group
        )
        return CursorRow(tuple(session.flow.cursor()), tuple(inflight))

    def _in_flight(self, packet_id: int, delivery: Delivery) -> InFlight:
        message = delivery.message
        if message is None:
            return InFlight(packet_id, delivery.qos, RELEASED, False)
        if message.timestamp:
            return InFlight(packet_id, delivery.qos, SENT, delivery.retain, message.shard, message.timestamp)
        return InFlight(packet_id, delivery.qos, SENT, delivery.retain, value=self.encode(message))

    def encode(self, message: Message) -> bytes:
        """A message that is not in the log, as a record's value."""
        expires_at = int((message.expires_at + self._broker.state.wall_offset) * 1_000_000) if message.expires_at else 0
        return encode_record(
            message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties, expires_at,
            message.expiry_offset,
        )  # fmt: skip

    def tick(self) -> None:
        """Write down cursors that have changed, and some of those that are idle."""
        if self._refused:
            self.ask_for_turn()
        state = self._broker.state
        changed: list[LogFlow] = state.changed
        now, state.changed = changed[:_CURSORS_PER_TICK], changed[_CURSORS_PER_TICK:]
        for flow in now:
            if flow.is_changed:
                self.write_cursor(flow)
        self._write_idle()
        self._broker.sharing.tick()

    def _write_idle(self) -> None:
        sessions = self._broker.sessions
        self._ticks += 1
        if self._ticks % _IDLE_ROUND_TICKS == 0:
            self._idle = [each.client_id for each in sessions if each.is_durable and each.flow.is_following]
            self._idle_share = -(-len(self._idle) // _IDLE_ROUND_TICKS)
        for _ in range(min(self._idle_share, len(self._idle))):
            session = sessions.get(self._idle.pop())
            if session is not None and session.is_durable and session.flow.is_following:
                self.write_cursor(session.flow)

    def write_cursor(self, flow: LogFlow) -> None:
        """Write down where the session is, without waiting for it."""
        session = self._broker.sessions.get(flow.client_id)
        if session is None or session.flow is not flow:
            flow.is_changed = False  # its session is over
            return
        self.change(self._broker.durable.cursor_changes(session), _nothing, partial(_change_again, flow))

    def stop(self) -> None:
        """Write everything that is still to be written."""
        for flow in self._broker.state.changed:
            if flow.is_changed:
                self.write_cursor(flow)
        self._broker.state.changed = []
        self._broker.sharing.stop()
        if self._turn is not None:
            self._turn.cancel()
        self.end_turn()


def _nothing() -> None:
    """Nobody waits."""


def _change_again(flow: LogFlow, refusal: Refusal) -> None:
    flow.note_change()


def _report(problem: Exception) -> None:
    log.error("a committed message could not be delivered", exc_info=problem)
