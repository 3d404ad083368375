"""A shared group's place in the log: one cursor for all members, and what has to be handed out again (S10).

    following   every recorded message is given to a member at its commit; the positions are the log's marks
    behind      no member had room for a message: it and all later ones are read in the log, as soon as one has room.
                So is a group that was made with a start: what is older than the group is read as a look-back shows it

Messages are *leased*, and only when they are sent. A lease of QoS 1 belongs to the member's connection: what that has not
acknowledged when it ends is *returned*, and handed out before anything else, in order of time. A lease of QoS 2 belongs to the
member's session and never comes back once the message may have been sent; that the group has it no longer is written before
PUBLISH, in one batch with the cursor of the member's session if that is on disk too (else see `promises`).

At every moment each record at or below the positions that is for the group was acknowledged, or is promised or in flight to a
member, or is returned. On disk are the positions and all of QoS 1 that is in flight or returned; after a crash that is the
group's again. It is bounded, for all of it is written each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.place_search import Place, PlaceSearch
from braidmq.broker.ports import GroupRow, Positions, Replay
from braidmq.broker.promises import Promise, Promises
from braidmq.broker.shared_around import Surroundings
from braidmq.lane.flow import Delivery
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import Message, from_record
from braidmq.lane.records import Record
from braidmq.lane.routes import Subscription
from braidmq.lane.state import State

if TYPE_CHECKING:
    from braidmq.broker.shared import Group

_SLICE_S = 0.001  # of reading for one group, before others have their turn
_READ = 256  # records asked for at a time
_READ_AGAIN = 64  # returned messages looked for at a time
_LEASED_MAX = 8192  # with QoS 1, to all members together: a row of 80 KB, half a millisecond to make
_RETRY_S = 0.05  # after which to look again whether there is memory for what is to be read
_STORE_AGAIN_S = 1.0


class GroupLog:
    """The cursor of one group. A group that is new begins at the end of the log, or where its first member wants it to."""

    __slots__ = (
        "_around", "_is_barred", "_is_scheduled", "_leased", "_order", "_promises", "_replay", "_returned", "_search", "_since",
        "_waiting", "group", "is_changed", "is_following", "is_kept", "is_over", "positions",
    )  # fmt: skip

    def __init__(self, group: Group, around: Surroundings, start: Sequence[int] | None = None) -> None:
        self.group = group
        self.is_following = start is None
        self.is_kept = False  # the group has a row
        self.is_over = False  # the group has no members any more
        self.is_changed = False  # since the row was written
        self.positions = [] if start is None else list(start)  # while it does not follow
        self._around = around
        self._since: Positions = () if start is None else tuple(around.state.marks)  # where the log was when it was made
        self._is_scheduled = False
        self._is_barred = False  # nothing can be written for a moment
        self._promises = Promises()
        self._returned: dict[Place, Message | None] = {}  # without the message: to be read again
        self._order: list[Place] = []  # a heap of the returned ones, timestamp first; some may be gone
        self._leased: dict[Place, None] = {}  # with QoS 1, and not settled
        self._replay: Replay | None = None
        self._waiting: deque[tuple[int, Record]] = deque()  # read and not handed out
        self._search: PlaceSearch | None = None

    # Events

    def offer(self, message: Message) -> None:
        """A message is there. If it is recorded, hence committed, and nobody has room for it, the group is behind from it on."""
        if not message.timestamp or not message.qos:
            self._pass_on(message)
        elif self.is_following and (self._is_full() or not self._hand_out(message, -1)):
            self._fall_behind()
            self._await_room()

    def give_back(self, messages: Iterable[Message], at_once: bool = False) -> None:
        """These leases have ended without an acknowledgement; ``at_once``: the disk does not have them as the group's."""
        self._fall_behind()
        for message in messages:
            # What a hook has changed is read again: the next member's is to be made of the original.
            place = message.shard, message.timestamp
            self._leased.pop(place, None)
            self._return(place, None if self._around.asks_hooks else message)
        self._note_change(at_once)
        self.wake()

    def _return(self, place: Place, message: Message | None) -> None:
        if place not in self._returned:
            heappush(self._order, (place[1], place[0]))
        self._returned[place] = message

    def settle(self, message: Message) -> None:
        """A lease of QoS 1 has ended with an acknowledgement or a refusal."""
        if self._is_full():
            self.wake()
        self._leased.pop((message.shard, message.timestamp), None)
        self._note_change()

    def take_promises(self) -> list[Promise]:
        """What was promised since the last call: it is to be kept once the row, as it is now, is on disk."""
        return self._promises.take_unwritten()

    @property
    def promised(self) -> list[Promise]:
        """What was promised and is not sent yet."""
        return list(self._promises)

    def keep(self, promises: Iterable[Promise]) -> None:
        """The disk knows that these are the group's no longer: send them. What cannot be sent now is the group's again."""
        broken: list[Message] = []
        for promise in promises:
            if not self._promises.end(promise):
                continue
            member, given = promise.member, promise.given
            is_wanted = self.group.has_member(member.flow)  # else it has unsubscribed, or its session is over
            if not is_wanted or not member.flow.take(
                given, member, 2, given.retain and member.retain_as_published, promise.expiry
            ):
                broken.append(promise.message)
        if broken:
            self.give_back(broken, at_once=True)

    def break_promises(self) -> None:
        """Nothing can be written, now or any more: what was promised is the group's again. It tries again after a while."""
        broken = self._promises.end_all()
        if broken:
            self._is_barred = True
            self.give_back((promise.message for promise in broken), at_once=True)
            self._around.later(_STORE_AGAIN_S, self._unbar)

    def _unbar(self) -> None:
        self._is_barred = False
        self.wake()

    def wake(self) -> None:
        """A member may have room."""
        if not (self._is_scheduled or self.is_following or self.is_over or self._is_barred):
            self._is_scheduled = True
            self._around.soon(self._run)

    def restore(self, positions: list[int], outstanding: Iterable[Place], since: Positions) -> None:
        """Go on after a restart from what is on disk."""
        self._since = since
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
        self._promises.end_all()

    # The row

    def row(self) -> GroupRow:
        """The cursor as it is to be on disk."""
        positions = self._around.state.marks if self.is_following else self.positions
        return GroupRow(*self.group.names, tuple(positions), (*self._returned, *self._leased), self._since)

    @property
    def outstanding(self) -> int:
        """How many records the row has beside its positions."""
        return len(self._returned) + len(self._leased)

    # Handing out

    def _hand_out(self, message: Message, expiry: int) -> bool:
        """Lease a message to a member that has room; False if there is none."""
        around = self._around
        for member in self.group.candidates(message):
            flow: LogFlow = member.flow
            if not flow.has_room() or not self._promises.leaves_room(flow):
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
            if qos == 2 and not flow.is_durable and self.group.flow.is_durable:
                self.group.note_choice()
                self._promises.add(Promise(member, message, given, expiry))
                around.note_promise(self)
                return True
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

    def _is_full(self) -> bool:
        """Whether so much is out that acknowledgements must come first; each wakes the group."""
        return len(self._leased) >= _LEASED_MAX

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
        if self.is_over or self.is_following or self._is_barred:
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
            if self._is_for_group(shard, record):
                message = from_record(shard, record, self._around.state.wall_offset)
                if self._is_full() or not self._hand_out_late(message):
                    return self._await_room()
            self._waiting.popleft()
            self.positions[shard] = record.timestamp
            return True
        return self._read_on()

    def _is_for_group(self, shard: int, record: Record) -> bool:
        if self._since and record.timestamp <= self._since[shard]:
            return not record.session_only  # as for any look-back
        # QoS 0 is for those who were there; what was offered to them at its commit does not wait.
        return record.qos > 0

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
            if replay.is_waiting:
                return self._await_memory()
        return True

    def _await_memory(self) -> bool:
        self._around.later(_RETRY_S, self.wake)
        return False

    def _read_again(self, first: Place) -> bool:
        """Read returned messages for a slice, this one and some that are near it; False if that cannot be now."""
        if self._search is None:
            if not self._around.may_read(self):
                return False
            missing = (place for place, message in self._returned.items() if message is None and place[0] == first[0])
            replay = partial(self._around.replay, self.group.names[1])
            self._search = PlaceSearch(replay, self._around.state.marks, first, islice(missing, _READ_AGAIN))
        found = self._search.run(_SLICE_S)
        if found is None:
            return self._await_memory() if self._search.is_waiting else True
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
        self._since = ()
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
