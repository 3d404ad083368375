"""Joins shared groups to the broker: their reading of the log, whose room they wait for, and when their cursors are written.

A group's row is written at the end of a turn in which members came or left, or were given QoS 2, in one batch with the cursors of
those members; otherwise when a tick comes. If it was given to a member whose session is not on disk, PUBLISH waits for the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from braidmq.broker.ports import Change, Refusal, Replay
from braidmq.broker.promises import Promise
from braidmq.broker.shared_log import GroupLog
from braidmq.lane.flow import Flow
from braidmq.lane.message import Message
from braidmq.lane.state import State

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.sessions import Session

_WORK_PER_TICK = 10_000  # in outstanding records, of rows that are looked at in one go: about 5 ms
_WORK_PER_ROW = 20  # what a row costs beside those
_IDLE_ROUND_TICKS = 120  # in which every group has its position written once, so that little is read after a crash (S13)


class Sharing:
    """What the groups of a node find around them; fills `shared_around.Surroundings`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed: dict[GroupLog, None] = {}  # to be looked at when a tick comes
        self._due: dict[GroupLog, None] = {}  # to be written at the end of this turn
        self._promising: dict[GroupLog, None] = {}  # the same, and then something is to be sent
        self._ticks = 0

    @property
    def state(self) -> State:
        """The lane's."""
        return self._broker.state

    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or keep back what a member is sent."""
        return bool(self._broker.hooks.delivers)

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this member gets it; None if a hook keeps it back."""
        return self._broker.publisher.ask_deliver_hooks(message, client_id)

    def replay(self, topic_filter: str, positions: list[int]) -> Replay:
        """Read everything that was recorded above these positions."""
        return self._broker.keeper.log.replay([topic_filter], dict(enumerate(positions)), with_session_only=True)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in a turn of its own."""
        self._broker.loop.call_soon(callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after this time."""
        self._broker.loop.call_later(delay_s, callback)

    def may_read(self, log: GroupLog) -> bool:
        """Whether there is a place for one more reader; if not, it is woken when there is."""
        return self._broker.readers.admit(log)

    def note_idle(self, log: GroupLog) -> None:
        """It has read what nobody takes now."""
        self._broker.readers.note_idle(log)

    def stop_reading(self, log: GroupLog) -> None:
        """It needs no place any more."""
        self._broker.readers.leave(log)

    def flush(self) -> None:
        """Write out what members were sent."""
        self._broker.lane.flush()

    def note_lost(self) -> None:
        """Retention was faster than a group."""
        self._broker.statistics.lost_to_retention += 1

    # Room

    def await_room(self, log: GroupLog, flow: Flow) -> None:
        """``wake`` the log when this member takes more."""
        session = self._broker.sessions.get(flow.client_id)
        if session is None or session.flow is not flow or session.connection is None:
            return
        if session.shares is None:
            session.shares = set()
        session.shares.add(log)
        session.connection.want_room()

    def feed(self, session: Session) -> None:
        """A client takes more: let groups that wait for it read on."""
        if session.shares is None:
            return
        session.shares = {log for log in session.shares if not (log.is_following or log.is_over)} or None
        for log in session.shares or ():
            log.wake()

    # Rows

    def note_change(self, log: GroupLog, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""
        if not log.group.flow.is_durable:
            return
        if at_once:
            self._due[log] = None
            self._broker.keeper.ask_for_turn()
        else:
            self._changed[log] = None

    def note_promise(self, log: GroupLog) -> None:
        """Write the row at the end of this turn; then what the log has promised may be sent, or is the group's again."""
        if not self._promising:
            self._broker.loop.call_soon(self._write_promises)
        self._promising[log] = None

    def _write_promises(self) -> None:
        promising, self._promising = self._promising, {}
        for log in promising:
            promises = log.take_promises()
            if not promises:
                continue
            if log.group.flow.is_durable:
                self._broker.keeper.change([self.row_of(log)], partial(self._keep, log, promises), partial(self._break, log))
            else:  # no longer
                self._keep(log, promises)

    def _keep(self, log: GroupLog, promises: list[Promise]) -> None:
        log.keep(promises)
        self._broker.lane.flush()

    def _break(self, log: GroupLog, refusal: Refusal) -> None:
        log.break_promises()

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""
        self._broker.keeper.write(self._broker.keeper.storage.groups.remove(name, topic_filter))

    def row_of(self, log: GroupLog) -> Change:
        """The row as it is to be on disk."""
        row = log.row()
        log.is_kept = True
        log.is_changed = False
        return self._broker.keeper.storage.groups.put(row)

    def take_due(self) -> list[GroupLog]:
        """Groups whose rows are to be written at the end of this turn."""
        due, self._due = self._due, {}
        return [log for log in due if not log.is_over and log.group.flow.is_durable]

    def tick(self) -> None:
        """Find the groups whose rows are behind."""
        self._ticks += 1
        if self._ticks % _IDLE_ROUND_TICKS == 0:
            for group in self._broker.groups:
                group.log.is_changed = True
                self.note_change(group.log, at_once=False)
        work = 0
        while self._changed and work < _WORK_PER_TICK:
            log = next(iter(self._changed))
            del self._changed[log]
            if log.is_changed:
                self.note_change(log, at_once=True)
                work += _WORK_PER_ROW + log.outstanding

    def stop(self) -> None:
        """Let every row that is behind be written; what was promised and not sent is the group's again."""
        for group in self._broker.groups:
            group.log.break_promises()
        for log in self._changed:
            self.note_change(log, at_once=True)
