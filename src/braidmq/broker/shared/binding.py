"""Connects shared groups to the broker: their log reading, waiting for members, and the writing of their cursors.

A group's row is written at the end of a turn in which members joined, left or were assigned QoS 2 messages, in one batch with the
cursors of those members; otherwise at the next tick. If the member's session is not on disk, PUBLISH waits for the row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from braidmq.broker.bounds.turns import Turns
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.reading.context import DeliverHooks
from braidmq.broker.reading.slots import Readers
from braidmq.broker.reading.source import LogSource
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.group import Group
from braidmq.broker.shared.membership import Membership
from braidmq.broker.shared.ports import RoomWaiter
from braidmq.broker.shared.reservations import Reservation
from braidmq.broker.statistics import Statistics
from braidmq.broker.turn import Phase, Turn
from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.lent_flow import LentFlow
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State

_SORT = 512  # groups that have deferred something: a tenth of a millisecond
_HAND_OUT = 16  # of them that hand it out at a time
_WAKES = 64  # groups that are woken at a time when a member takes more
_WORK_PER_TICK = 10_000  # in outstanding records, of rows that are looked at in one go: about 5 ms
_WORK_PER_ROW = 20  # what a row costs beside those
_IDLE_ROUND_TICKS = 120  # in which every group has its position written once, so that little is read after a crash (S13)


class GroupBinding:
    """The broker services for all groups of a node; implements `ports.GroupServices`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        writer: TurnWriter,
        turn: Turn,
        turns: Turns,
        sessions: SessionTable,
        statistics: Statistics,
        *,
        source: LogSource,
        slots: Readers,
        hooks: DeliverHooks,
        ask_hooks: Callable[[Message, str], Message | None],
    ) -> None:
        self.state: State = lane.state
        self.source = source
        self.slots = slots
        self.ask_hooks = ask_hooks
        self._hooks = hooks
        self._loop = loop
        self._lane = lane
        self._writer = writer
        self._turn = turn
        self._turns = turns
        self._sessions = sessions
        self._statistics = statistics
        self._changed: dict[GroupCursor, None] = {}  # to be looked at when a tick comes
        self._due: dict[GroupCursor, None] = {}  # to be written at the end of this turn
        self._reserving: dict[GroupCursor, None] = {}  # the same, and then something is sent
        self._blocked: dict[GroupCursor, None] = {}  # wait for the source, with a slot each; some may have gone on
        self._ticks = 0
        self._idle: list[GroupCursor] = []  # still to be written in this round
        self._idle_share = 0
        self._deferring: dict[object, deque[GroupCursor]] = {}  # by owner: groups that have something to hand out
        self._is_sorting = False
        lane.state.on_deferring = self._note_deferring
        turn.at_end(Phase.RESERVATIONS, self._write_reservations)

    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or withhold messages for a member."""
        return bool(self._hooks.delivers)

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        """Call back when the log's owner has its turn."""
        self._turns.add(log.owner, callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after this time."""
        self._loop.call_later(delay_s, callback)

    def flush(self) -> None:
        """Write out what members were sent."""
        self._lane.flush()

    def note_lost(self) -> None:
        """Retention deleted a message before a group could read it."""
        self._statistics.lost_to_retention += 1

    # Messages for very many groups

    def _note_deferring(self) -> None:
        if not self._is_sorting:
            self._is_sorting = True
            self._turns.add(self, self._sort_deferring)

    def _sort_deferring(self) -> None:
        """Sort the groups that have deferred messages by owner, some at a time: there may be very many."""
        flows = self.state.deferring
        for flow in flows[:_SORT]:
            log = flow.group
            if log is None:
                continue
            assert isinstance(log, GroupCursor)
            waiting = self._deferring.get(log.owner)
            if waiting is None:
                waiting = self._deferring[log.owner] = deque()
                self._turns.add(log.owner, partial(self._hand_out_deferred, log.owner, waiting))
            waiting.append(log)
        del flows[:_SORT]
        self._is_sorting = bool(flows)
        if flows:
            self._turns.add(self, self._sort_deferring)

    def _hand_out_deferred(self, owner: object, waiting: deque[GroupCursor]) -> None:
        try:
            for _ in range(min(_HAND_OUT, len(waiting))):
                waiting.popleft().hand_out_deferred()
        finally:
            self.flush()
            if waiting:
                self._turns.add(owner, partial(self._hand_out_deferred, owner, waiting))
            else:
                del self._deferring[owner]

    # Room

    def await_room(self, log: GroupCursor, flow: Flow) -> None:
        """``wake`` the log when this member takes more."""
        if isinstance(flow, LentFlow):
            flow.waiting[log] = None
            return
        self._await_room(log, flow)

    def await_member_room(self, member: Membership) -> None:
        """``wake`` the membership when its client takes more."""
        self._await_room(member, member.client)

    def _await_room(self, waiting: RoomWaiter, flow: Flow) -> None:
        session = self._sessions.get(flow.client_id)
        if session is None or session.flow is not flow or session.connection is None:
            return
        if session.shares is None:
            session.shares = {}
        session.shares[waiting] = None
        session.connection.want_room()

    def feed(self, session: Session) -> bool:
        """A client takes more: let some of the groups that wait for it read on; True if more of them wait."""
        shares = session.shares
        if shares is None:
            return False
        for log in list(islice(shares, _WAKES)):
            del shares[log]  # it asks again if that was not enough
            log.wake()
        if not shares:
            session.shares = None
        return bool(shares)

    def feed_lent(self, flow: LentFlow) -> None:
        """A client of another node takes more: wake the groups that wait for it."""
        waiting = list(flow.waiting)
        flow.waiting.clear()
        for log in waiting:
            assert isinstance(log, GroupCursor)
            log.wake()

    def note_blocked(self, log: GroupCursor) -> None:
        """The log waits until the source is ready; it stops waiting if its last member disconnects meanwhile."""
        self._blocked[log] = None

    def note_left(self) -> None:
        """A member of some group has disconnected."""
        if self._blocked:
            self._blocked = {log: None for log in list(self._blocked) if log.keeps_waiting()}

    # Rows

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""
        if not log.group.flow.is_durable:
            return
        if at_once:
            self._due[log] = None
            self._turn.ask(Phase.STEPS)
        else:
            self._changed[log] = None

    def note_reservation(self, log: GroupCursor) -> None:
        """Write the row at the end of this turn; then the reserved messages are sent, or are the group's again."""
        self._turn.ask(Phase.RESERVATIONS)
        self._reserving[log] = None

    def _write_reservations(self) -> None:
        reserving, self._reserving = self._reserving, {}
        for log in reserving:
            reservations = log.take_reservations()
            if not reservations:
                continue
            if log.group.flow.is_durable:
                keep, release = partial(self._keep, log, reservations), partial(self._release, log, reservations)
                self._writer.change([self.row_of(log)], keep, release)
            else:  # no longer
                self._keep(log, reservations)

    def _keep(self, log: GroupCursor, reservations: list[Reservation]) -> None:
        log.keep(reservations)
        self._lane.flush()

    def _release(self, log: GroupCursor, reservations: list[Reservation], refusal: Refusal) -> None:
        log.release_reservations(reservations)

    def write(self, change: Change) -> None:
        """Write a row without waiting for it."""
        self._writer.write(change)

    def write_row(self, log: GroupCursor) -> None:
        """Write the row of a group as it is now."""
        self._writer.write(self.row_of(log))

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""
        self._writer.write(self._writer.storage.groups.remove(name, topic_filter))

    def row_of(self, log: GroupCursor) -> Change:
        """The row to be stored; the group counts as unchanged from now on."""
        row = log.row()
        log.is_kept = True
        log.is_changed = False
        return self._writer.storage.groups.put(row)

    def take_due(self) -> list[GroupCursor]:
        """Groups whose rows are to be written at the end of this turn."""
        due, self._due = self._due, {}
        return [log for log in due if not log.is_over and log.group.flow.is_durable]

    def tick(self, groups: Iterable[Group]) -> None:
        """Find those of all groups whose rows are behind."""
        self._ticks += 1
        if self._ticks % _IDLE_ROUND_TICKS == 0:
            self._idle = [group.log for group in groups if group.flow.is_durable]
            self._idle_share = -(-len(self._idle) // _IDLE_ROUND_TICKS)
        for _ in range(min(self._idle_share, len(self._idle))):
            log = self._idle.pop()
            log.is_changed = True
            self.note_change(log, at_once=False)
        work = 0
        while self._changed and work < _WORK_PER_TICK:
            log = next(iter(self._changed))
            del self._changed[log]
            if log.is_changed:
                self.note_change(log, at_once=True)
                work += _WORK_PER_ROW + log.outstanding

    def stop(self, groups: Iterable[Group]) -> None:
        """Let every row that is behind be written; messages that were reserved and not sent are the groups' again."""
        for group in groups:
            group.log.release_all_reservations()
        for log in self._changed:
            self.note_change(log, at_once=True)
