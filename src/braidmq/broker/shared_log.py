"""A shared group's place in the log: one cursor for all members, and what has to be handed out again (S10).

    following   every recorded message is given to a member at its commit; the positions are the log's marks
    behind      no member had room for a message: it and all later ones are read in the log, as soon as one has room

Messages are *leased*, and only when they are sent. A lease of QoS 1 belongs to the member's connection: what that has not
acknowledged when it ends is *returned*, and handed out before anything else, in order of time. A lease of QoS 2 belongs to the
member's session and never comes back once the message may have been sent; who has it is written in one batch with the group's
cursor, before PUBLISH.

At every moment each record at or below the positions that is for the group was acknowledged, or is in flight to a member, or is
returned. On disk are the positions and all of QoS 1 that is in flight or returned; after a crash that is the group's again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from braidmq.broker.ports import GroupRow, Positions, Replay
from braidmq.lane.flow import Delivery, Flow
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import Message, from_record
from braidmq.lane.records import Record
from braidmq.lane.routes import Subscription
from braidmq.lane.state import State

if TYPE_CHECKING:
    from braidmq.broker.shared import Group

Place = tuple[int, int]  # shard and timestamp

_SLICE_S = 0.001  # of reading for one group, before others have their turn
_READ = 256  # records asked for at a time
_READ_AGAIN = 64  # the same for returned ones, which lie apart


class Surroundings(Protocol):
    """What a group's log needs of the broker; all of it on the event loop."""

    @property
    def state(self) -> State: ...
    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or keep back what a member is sent."""

    def replay(self, topic_filter: str, positions: list[int]) -> Replay:
        """Read everything that was recorded above these positions."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in a turn of its own."""

    def may_read(self, log: GroupLog) -> bool:
        """Whether there is a place for one more reader; if not, ``wake`` it when there is."""

    def note_idle(self, log: GroupLog) -> None:
        """It has read what nobody takes now; ``pause`` it if another needs the place."""

    def stop_reading(self, log: GroupLog) -> None:
        """It needs no place any more."""

    def flush(self) -> None:
        """Write out what members were sent."""

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this member gets it; None if a hook keeps it back."""

    def await_room(self, log: GroupLog, flow: Flow) -> None:
        """``wake`` the log when this member takes more."""

    def note_change(self, log: GroupLog, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""

    def note_lost(self) -> None:
        """Retention was faster than the group."""


class GroupLog:
    """The cursor of one group. A group that is new begins at the end of the log, or where its first member wants it to."""

    __slots__ = (
        "_around", "_is_scheduled", "_leased", "_order", "_replay", "_returned", "_search", "_waiting", "group", "is_changed",
        "is_following", "is_kept", "is_over", "positions",
    )  # fmt: skip

    def __init__(self, group: Group, around: Surroundings, start: Positions | None = None) -> None:
        self.group = group
        self.is_following = start is None
        self.is_kept = False  # the group has a row
        self.is_over = False  # the group has no members any more
        self.is_changed = False  # since the row was written
        self.positions = [] if start is None else list(start)  # while it does not follow
        self._around = around
        self._is_scheduled = False
        self._returned: dict[Place, Message | None] = {}  # without the message: to be read again
        self._order: list[Place] = []  # a heap of the returned ones, timestamp first; some may be gone
        self._leased: dict[Place, None] = {}  # with QoS 1, and not settled
        self._replay: Replay | None = None
        self._waiting: deque[tuple[int, Record]] = deque()  # read and not handed out
        self._search: _Search | None = None

    # Events

    def offer(self, message: Message) -> None:
        """A message is there. If it is recorded, hence committed, and nobody has room for it, the group is behind from it on."""
        if not message.timestamp or not message.qos:
            self._pass_on(message)
        elif self.is_following and not self._hand_out(message, -1):
            self._fall_behind()
            self._await_room()

    def give_back(self, messages: Iterable[Message]) -> None:
        """These leases have ended without an acknowledgement."""
        self._fall_behind()
        for message in messages:
            # What a hook has changed is read again: the next member's is to be made of the original.
            place = message.shard, message.timestamp
            self._leased.pop(place, None)
            self._return(place, None if self._around.asks_hooks else message)
        self._note_change()
        self.wake()

    def _return(self, place: Place, message: Message | None) -> None:
        if place not in self._returned:
            heappush(self._order, (place[1], place[0]))
        self._returned[place] = message

    def settle(self, message: Message) -> None:
        """A lease of QoS 1 has ended with an acknowledgement or a refusal."""
        self._leased.pop((message.shard, message.timestamp), None)
        self._note_change()

    def wake(self) -> None:
        """A member may have room."""
        if not (self._is_scheduled or self.is_following or self.is_over):
            self._is_scheduled = True
            self._around.soon(self._run)

    def restore(self, positions: list[int], outstanding: Iterable[Place]) -> None:
        """Go on after a restart from what is on disk."""
        self.is_following = False
        self.is_kept = True
        self.positions = positions
        for place in outstanding:
            self._return(place, None)

    def end(self) -> None:
        """The group is no more."""
        self.is_over = True
        self.pause()
        self._returned.clear()
        self._order.clear()

    # The row

    def row(self) -> GroupRow:
        """The cursor as it is to be on disk."""
        positions = self._around.state.marks if self.is_following else self.positions
        return GroupRow(*self.group.names, tuple(positions), (*self._returned, *self._leased))

    # Handing out

    def _hand_out(self, message: Message, expiry: int) -> bool:
        """Lease a message to a member that has room; False if there is none."""
        around = self._around
        for member in self.group.candidates(message):
            flow: LogFlow = member.flow
            if not flow.has_room():
                continue
            given = message
            if around.asks_hooks:
                changed = around.ask_hooks(message, flow.client_id)
                if changed is None:
                    return True
                given = changed
            qos = min(given.qos, member.qos)
            if qos == 1 and given is not message:
                given = given.unrecorded()
                given.set_position(message.shard, message.timestamp)  # its lease is known by that
            before = flow.inflight_messages()
            if not flow.take(given, member, qos, given.retain and member.retain_as_published, expiry):
                continue
            self.group.note_choice()
            if qos == 1 and flow.inflight_messages() > before:  # else it is too large for this one, and counts as acknowledged
                self._leased[message.shard, message.timestamp] = None
            self._note_change(at_once=qos == 2)
            return True
        return False

    def _hand_out_late(self, message: Message) -> bool:
        """The same for a message that was not sent at its commit: it may have expired meanwhile [MQTT-3.3.2-5]."""
        if not message.expires_at:
            return self._hand_out(message, -1)
        expiry = ceil(message.expires_at - monotonic())
        if expiry > 0:
            return self._hand_out(message, expiry)
        state = self._around.state
        state.counters.dropped_expired += 1
        state.drop("expired", self.group.key[0], message.topic)
        return True

    def _pass_on(self, message: Message) -> None:
        """Give a message that the log does not keep for the group to the member that is best off, as it is."""
        state = self._around.state
        member = self.group.choose(message)
        if member is None:
            if message.qos:
                state.counters.dropped_queue_full += 1
            else:
                state.counters.dropped_absent += 1
            state.drop("queue_full" if message.qos else "absent", self.group.key[0], message.topic)
            return
        original = message.unrecorded() if message.timestamp else message
        given = self._around.ask_hooks(original, member.flow.client_id) if self._around.asks_hooks else original
        if given is not None:
            member.flow.deliver(given, member, min(given.qos, member.qos), given.retain and member.retain_as_published)

    # Reading

    def _run(self) -> None:
        """Hand out for a slice what waits in the log."""
        self._is_scheduled = False
        if self.is_over or self.is_following:
            return
        if not self.group.has_client():
            self.pause()
            return
        deadline = monotonic() + _SLICE_S
        while self._step():
            if monotonic() >= deadline:
                self.wake()
                break
        self._around.flush()

    def _step(self) -> bool:
        """Deal with what is next; False if there is nothing to do now."""
        if self._returned:
            return self._step_returned()
        if self._waiting:
            shard, record = self._waiting[0]
            # QoS 0 is for those who were there; what was offered to them at its commit does not wait.
            if record.qos and not self._hand_out_late(from_record(shard, record, self._around.state.wall_offset)):
                return self._await_room()
            self._waiting.popleft()
            self.positions[shard] = record.timestamp
            return True
        return self._read_on()

    def _step_returned(self) -> bool:
        timestamp, shard = self._order[0]
        place = shard, timestamp
        if place in self._returned:
            message = self._returned[place]
            if message is None:
                return self._read_again(place)
            if not self._hand_out_late(message):
                return self._await_room()
            del self._returned[place]
        heappop(self._order)
        return True

    def _read_on(self) -> bool:
        if self.positions == self._around.state.marks:
            return self._follow()
        if not self._around.may_read(self):
            return False
        replay = self._replay
        if replay is None:
            replay = self._replay = self._around.replay(self.group.names[1], self.positions)
        for _ in replay.take_gaps():
            self._around.note_lost()
        if replay.is_caught_up:
            return self._follow()
        self._waiting.extend(replay.next(_READ, slice_s=_SLICE_S))
        if not self._waiting:
            for shard, position in replay.positions().items():
                self.positions[shard] = position
        return True

    def _read_again(self, first: Place) -> bool:
        """Read returned messages for a slice, this one and some that are near it; False if that cannot be now."""
        if self._search is None:
            if not self._around.may_read(self):
                return False
            missing = (place for place, message in self._returned.items() if message is None and place[0] == first[0])
            self._search = _Search(self._around, self.group.names[1], first, islice(missing, _READ_AGAIN))
        found = self._search.run()
        if found is None:
            return True
        self._search = None
        for place, record in found.items():
            if record is None:
                del self._returned[place]
                self._around.note_lost()
            else:
                self._returned[place] = from_record(place[0], record, self._around.state.wall_offset)
        return True

    def _follow(self) -> bool:
        self.is_following = True
        self.positions = []
        self.pause()
        self._note_change()
        return False

    def _fall_behind(self) -> None:
        """Stop following at the last message that was offered."""
        if self.is_following:
            self.is_following = False
            self.positions = list(self._around.state.marks)
            self._note_change()

    def _await_room(self) -> bool:
        for flow in self.group.clients():
            self._around.await_room(self, flow)
        self._around.note_idle(self)
        return False

    def pause(self) -> None:
        """Let go of what was read and not handed out."""
        self._replay = self._search = None
        self._waiting.clear()
        self._around.stop_reading(self)

    def _note_change(self, at_once: bool = False) -> None:
        if at_once or not self.is_changed:
            self.is_changed = True
            self._around.note_change(self, at_once)


class _Search:
    """Reads records of one shard whose places are known: the first, and those of the others that lie in the same stretch."""

    def __init__(self, around: Surroundings, topic_filter: str, first: Place, others: Iterable[Place]) -> None:
        self._shard, start = first
        self._missing = sorted({start, *(timestamp for _, timestamp in others)})
        positions = list(around.state.marks)
        positions[self._shard] = start - 1
        self._replay = around.replay(topic_filter, positions)

    def run(self) -> dict[Place, Record | None] | None:
        """Read for a slice; what was found, None for what is no longer there. None as long as nothing can be said."""
        records = self._replay.next(_READ_AGAIN, slice_s=_SLICE_S)
        by_timestamp = {record.timestamp: record for shard, record in records if shard == self._shard}
        upto = self._missing[-1] if self._replay.is_caught_up else self._replay.positions()[self._shard]
        known = [timestamp for timestamp in self._missing if timestamp <= upto]
        if not known:
            return None
        return {(self._shard, timestamp): by_timestamp.get(timestamp) for timestamp in known}


class SharedFlow(LogFlow):
    """The group as the routes see it: a flow that passes everything on to members."""

    def __init__(self, log: GroupLog, state: State, is_durable: bool) -> None:
        super().__init__(log.group.key[0], state, 0, 0, False, is_durable)
        self._log = log

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Give the message to one member; one that is recorded waits in the log if there is none for it now."""
        self._log.offer(message)


def is_lease(delivery: Delivery) -> bool:
    """Whether a delivery in flight belongs to a group: when the connection ends it goes back there."""
    if delivery.qos != 1 or delivery.subscription.group is None:
        return False
    return delivery.message is not None and delivery.message.timestamp > 0
