"""Connects shared groups to the broker: their log reading, waiting for members, and the writing of their cursors.

A group's row is written at the end of a turn in which members joined, left or were assigned QoS 2 messages, in one batch with the
cursors of those members; otherwise at the next tick. If the member's session is not on disk, PUBLISH waits for the row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from braidmq.broker.ports import Change, LogScan, Refusal
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.reservations import Reservation
from braidmq.broker.turn import Phase
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.session.session import Session

_SORT = 512  # groups that have deferred something: a tenth of a millisecond
_HAND_OUT = 16  # of them that hand it out at a time
_WAKES = 64  # groups that are told at a time that a member takes more
_WORK_PER_TICK = 10_000  # in outstanding records, of rows that are looked at in one go: about 5 ms
_WORK_PER_ROW = 20  # what a row costs beside those
_IDLE_ROUND_TICKS = 120  # in which every group has its position written once, so that little is read after a crash (S13)


class GroupBinding:
    """The broker services for all groups of a node; implements `ports.GroupServices`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed: dict[GroupCursor, None] = {}  # to be looked at when a tick comes
        self._due: dict[GroupCursor, None] = {}  # to be written at the end of this turn
        self._reserving: dict[GroupCursor, None] = {}  # the same, and then something is to be sent
        self._ticks = 0
        self._turns = broker.turns
        self._idle: list[GroupCursor] = []  # still to be written in this round
        self._idle_share = 0
        self._deferring: dict[object, deque[GroupCursor]] = {}  # by owner: groups that have something to hand out
        self._is_sorting = False
        broker.state.on_deferring = self._note_deferring
        broker.turn.at_end(Phase.RESERVATIONS, self._write_reservations)

    @property
    def state(self) -> State:
        """The lane's."""
        return self._broker.state

    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or withhold messages for a member."""
        return bool(self._broker.hooks.delivers)

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message for this member after the hooks; None if a hook withholds it."""
        return self._broker.pipeline.ask_deliver_hooks(message, client_id)

    def replay(self, topic_filter: str, positions: list[int]) -> LogScan:
        """Read everything that was recorded above these positions."""
        return self._broker.turn_writer.log.replay([topic_filter], dict(enumerate(positions)), with_session_only=True)

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        """Call back when the log's owner has its turn."""
        self._turns.add(log.owner, callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after this time."""
        self._broker.loop.call_later(delay_s, callback)

    def may_read(self, log: GroupCursor) -> bool:
        """Whether there is a place for one more reader; if not, it is woken when there is."""
        return self._broker.readers.admit(log)

    def note_idle(self, log: GroupCursor) -> None:
        """The group has read-ahead that no member accepts now."""
        self._broker.readers.note_idle(log)

    def stop_reading(self, log: GroupCursor) -> None:
        """It needs no place any more."""
        self._broker.readers.leave(log)

    def flush(self) -> None:
        """Write out what members were sent."""
        self._broker.lane.flush()

    def note_lost(self) -> None:
        """Retention was faster than a group."""
        self._broker.statistics.lost_to_retention += 1

    # What was for very many groups

    def _note_deferring(self) -> None:
        if not self._is_sorting:
            self._is_sorting = True
            self._turns.add(self, self._sort_deferring)

    def _sort_deferring(self) -> None:
        """Find whose turn it is to hand out what was deferred, of some groups at a time: there may be very many."""
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
        session = self._broker.sessions.get(flow.client_id)
        if session is None or session.flow is not flow or session.connection is None:
            return
        if session.shares is None:
            session.shares = {}
        session.shares[log] = None
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

    # Rows

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""
        if not log.group.flow.is_durable:
            return
        if at_once:
            self._due[log] = None
            self._broker.turn.ask(Phase.STEPS)
        else:
            self._changed[log] = None

    def note_reservation(self, log: GroupCursor) -> None:
        """Write the row at the end of this turn; then what the log has reserved may be sent, or is the group's again."""
        self._broker.turn.ask(Phase.RESERVATIONS)
        self._reserving[log] = None

    def _write_reservations(self) -> None:
        reserving, self._reserving = self._reserving, {}
        for log in reserving:
            reservations = log.take_reservations()
            if not reservations:
                continue
            if log.group.flow.is_durable:
                self._broker.turn_writer.change(
                    [self.row_of(log)], partial(self._keep, log, reservations), partial(self._break, log)
                )
            else:  # no longer
                self._keep(log, reservations)

    def _keep(self, log: GroupCursor, reservations: list[Reservation]) -> None:
        log.keep(reservations)
        self._broker.lane.flush()

    def _break(self, log: GroupCursor, refusal: Refusal) -> None:
        log.release_reservations()

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""
        self._broker.turn_writer.write(self._broker.turn_writer.storage.groups.remove(name, topic_filter))

    def row_of(self, log: GroupCursor) -> Change:
        """The row as it is to be on disk."""
        row = log.row()
        log.is_kept = True
        log.is_changed = False
        return self._broker.turn_writer.storage.groups.put(row)

    def take_due(self) -> list[GroupCursor]:
        """Groups whose rows are to be written at the end of this turn."""
        due, self._due = self._due, {}
        return [log for log in due if not log.is_over and log.group.flow.is_durable]

    def tick(self) -> None:
        """Find the groups whose rows are behind."""
        self._ticks += 1
        if self._ticks % _IDLE_ROUND_TICKS == 0:
            self._idle = [group.log for group in self._broker.groups if group.flow.is_durable]
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

    def stop(self) -> None:
        """Let every row that is behind be written; what was reserved and not sent is the group's again."""
        for group in self._broker.groups:
            group.log.release_reservations()
        for log in self._changed:
            self.note_change(log, at_once=True)
