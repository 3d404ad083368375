"""Decides when the cursors of durable sessions are written, with the steps of QoS 2 deliveries that wait for the disk.

Cursors that no delivery waits for are written when a tick comes, a bounded number at a time; a session that is connected and idle
has its turn about once a minute (S13).
"""

from __future__ import annotations

import asyncio
from functools import partial

from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.session.session import SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.shared.binding import GroupBinding
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.group import Groups
from braidmq.broker.turn import Phase, Turn
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.lane import Lane
from braidmq.mqtt.reasons import Reason

Step = tuple[LogFlow, list[int]]  # packet ids of a flow whose next step waits for the disk

_CURSORS_PER_TICK = 2000  # written in one go: about 10 ms
_IDLE_ROUND_TICKS = 120  # in which every connected session has its position written once


class SessionCursors:
    """Writes the cursors of this node's durable sessions, and of its shared groups where a session waits for them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        writer: TurnWriter,
        sessions: SessionTable,
        durable: SessionStorage,
        groups: Groups,
        sharing: GroupBinding,
        turn: Turn,
    ) -> None:
        self._loop = loop
        self._lane = lane
        self._state = lane.state
        self._writer = writer
        self._sessions = sessions
        self._durable = durable
        self._groups = groups
        self._sharing = sharing
        self._idle: list[str] = []  # client ids, still to be written in this round
        self._idle_share = 0
        self._ticks = 0
        turn.at_end(Phase.STEPS, self.write_steps)
        lane.state.on_unready = partial(turn.ask, Phase.STEPS)

    def _take_unready(self) -> list[LogFlow]:
        state = self._state
        unready = state.unready
        state.unready = []
        return unready

    def write_steps(self) -> None:
        """Write the cursors that QoS 2 waits for, and as one with them those of the groups that gave such messages away (S10).

        Without such groups each shard is a write of its own: if the home of one is away, all others go on (C41).
        """
        groups = self._sharing.take_due()
        writes: dict[int, tuple[list[Step], list[Change]]] = {}
        for flow in self._take_unready():
            packet_ids = flow.take_unready()
            session = self._sessions.get(flow.client_id)
            if not packet_ids or session is None or session.flow is not flow:
                continue  # its session is over: nothing of it is written any more
            steps, changes = writes.setdefault(0 if groups else flow.home_shard, ([], []))
            # The flow no longer counts as changed; it stays in the list of changes, which skips it.
            changes += self._durable.cursor_changes(session)
            steps.append((flow, packet_ids))
        if groups:
            writes.setdefault(0, ([], []))[1].extend(map(self._sharing.row_of, groups))
        for steps, changes in writes.values():
            self._writer.change(changes, partial(self._make_ready, steps), partial(self._not_ready, steps, groups))

    def _make_ready(self, steps: list[Step]) -> None:
        for flow, packet_ids in steps:
            flow.make_ready(packet_ids)
        self._lane.flush()

    def _not_ready(self, steps: list[Step], groups: list[GroupCursor], refusal: Refusal) -> None:
        """A session cannot continue while nothing can be written: its client is disconnected and may reconnect."""
        for flow, packet_ids in steps:
            flow.note_change()
            if not refusal.is_in_doubt:  # otherwise the disk may have the lease as the session's own
                self._groups.take_back(flow, packet_ids)
                # In a later callback: older rows of the session that were refused with it must be written before.
                self._loop.call_soon(self.write_cursor, flow)
            session = self._sessions.get(flow.client_id)
            if session is not None and session.flow is flow and session.connection is not None:
                session.connection.close(Reason.QUOTA_EXCEEDED, "the session cannot be stored")
        for log in groups:
            log.is_changed = True
            self._sharing.note_change(log, at_once=False)
        self._lane.flush()

    def tick(self) -> None:
        """Write the cursors that have changed, and some of those that are idle."""
        self._writer.retry()
        state = self._state
        changed: list[LogFlow] = state.changed
        now, state.changed = changed[:_CURSORS_PER_TICK], changed[_CURSORS_PER_TICK:]
        for flow in now:
            if flow.is_changed:
                self.write_cursor(flow)
        self._write_idle()
        self._sharing.tick(self._groups)

    def _write_idle(self) -> None:
        sessions = self._sessions
        self._ticks += 1
        if self._ticks % _IDLE_ROUND_TICKS == 0:
            self._idle = [each.client_id for each in sessions if each.is_durable and each.flow.is_following]
            self._idle_share = -(-len(self._idle) // _IDLE_ROUND_TICKS)
        for _ in range(min(self._idle_share, len(self._idle))):
            session = sessions.get(self._idle.pop())
            if session is not None and session.is_durable and session.flow.is_following:
                self.write_cursor(session.flow)

    def write_cursor(self, flow: LogFlow) -> None:
        """Write the cursor of a session, without waiting for the commit."""
        session = self._sessions.get(flow.client_id)
        if session is None or session.flow is not flow:
            flow.is_changed = False  # its session is over
            return
        self._writer.change(self._durable.cursor_changes(session), _nothing, partial(_change_again, flow))

    def stop(self) -> None:
        """Write every outdated cursor."""
        for flow in self._state.changed:
            if flow.is_changed:
                self.write_cursor(flow)
        self._state.changed = []
        self._sharing.stop(self._groups)


def _nothing() -> None:
    """No caller waits."""


def _change_again(flow: LogFlow, refusal: Refusal) -> None:
    flow.note_change()
