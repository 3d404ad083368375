"""The cursor of a shared group: one for all members, with the messages that must be redelivered (S10).

    following   every recorded message is given to a member at its commit; the positions are the log's marks
    deferring   the same, but what was for very many groups waits to be handed out (`lane.group_flow`), and what came after it
    behind      no member had room for a message: it and all later ones are read in the log, as soon as one has room.
                So is a group that was made with a start: what is older than the group is read as a replay shows it

Messages are *leased*, and only when they are sent. A lease of QoS 1 belongs to the member's connection: what that has not
acknowledged when it ends is *returned*, and handed out before anything else, in order of time. A lease of QoS 2 belongs to the
member's session and never comes back once the message may have been sent; that the group has it no longer is written before
PUBLISH, in one batch with the cursor of the member's session if that is on disk too (else see `reservations`).

At every moment each record at or below the positions that is for the group was acknowledged, or is reserved or in flight to a
member, or is returned. On disk are the positions and all of QoS 1 that is in flight or returned; after a crash that is the
group's again. It is bounded, for all of it is written each time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, cast

from braidmq.base.errors import Unavailable
from braidmq.broker.ports import GroupRow, LogScan, Positions
from braidmq.broker.reading.fetch import Place, RecordFetch
from braidmq.broker.reading.shown import ShownScan
from braidmq.broker.shared.ports import GroupServices
from braidmq.broker.shared.reservations import Reservation, Reservations
from braidmq.lane.path.delivery import Delivery
from braidmq.lane.path.log_flow import LogFlow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.routes import GROUP_WEIGHT
from braidmq.lane.path.subscription import Subscription
from braidmq.lane.records.records import Record

if TYPE_CHECKING:
    from braidmq.broker.shared.group import Group

log = logging.getLogger("braidmq.durability")

_SLICE_S = 0.0005  # of reading for one group, before others have their turn
_READ = 256  # records asked for at a time
_READ_AGAIN = 64  # returned messages looked for at a time
_LEASED_MAX = 8192  # with QoS 1, to all members together: a row of 80 KB, half a millisecond to make
_SMALL = 1024  # bytes of a returned message that is kept in memory for the next member
_RETRY_S = 0.05  # after which to look again whether there is memory for what is to be read
_STORE_AGAIN_S = 1.0


class GroupCursor:
    """The cursor of one group. A group that is new begins at the end of the log, or where its first member wants it to."""

    __slots__ = (
        "_is_barred", "_is_scheduled", "_leased", "_order", "_replay", "_reservations", "_returned", "_search", "_services",
        "_since", "_waiting", "group", "is_changed", "is_kept", "is_over", "owner", "positions",
    )  # fmt: skip

    def __init__(self, group: Group, services: GroupServices, start: Sequence[int] | None = None, owner: object = None) -> None:
        self.group = group
        self.owner = owner  # whom its reading is counted for: that of the session that made the group
        self.is_kept = False  # the group has a row
        self.is_over = False  # the group has no members any more
        self.is_changed = False  # since the row was written
        self.positions = [] if start is None else list(start)  # while it does not follow
        self._services = services
        self._since: Positions = () if start is None else tuple(services.state.marks)  # where the log was when it was made
        self._is_scheduled = False
        self._is_barred = False  # nothing can be written for a moment
        self._reservations = Reservations()
        self._returned: dict[Place, Message | None] = {}  # without the message: to be read again
        self._order: list[Place] = []  # a heap of the returned ones, timestamp first; some may be gone
        self._leased: dict[Place, None] = {}  # with QoS 1, and not settled
        self._replay: LogScan | None = None
        self._waiting: deque[tuple[int, Record]] = deque()  # read and not handed out
        self._search: RecordFetch | None = None

    @property
    def is_following(self) -> bool:
        """Whether it is offered every recorded message at its commit."""
        return self.group.flow.is_following

    @property
    def is_replaying(self) -> bool:
        """Whether it reads what is older than the group."""
        return bool(self._since) and not self.is_following and not self.is_over

    # Events

    def offer(self, message: Message) -> None:
        """A message is there. If it is recorded, hence committed, and nobody has room for it, the group is behind from it on."""
        self._services.state.work += GROUP_WEIGHT
        if not message.timestamp or not message.qos:
            self._pass_on(message)
        elif self.is_following and (self._is_full() or not self._hand_out(message, -1)):
            self.fall_behind()
            self._await_room()

    def hand_out_deferred(self) -> None:
        """Hand out what was deferred because it was for very many groups; ``lane.flush`` must follow."""
        flow = self.group.flow
        deferred = flow.take_deferred()
        for place, message in enumerate(deferred):
            self._services.state.work += GROUP_WEIGHT
            if not message.timestamp or not message.qos:
                self._pass_on(message)
            elif self.is_following and (self._is_full() or not self._hand_out_late(message)):
                self._stop_following(flow.positions_before(deferred[place:]))
                self._await_room()

    def give_back(self, leases: Iterable[tuple[Place, Message | None]], at_once: bool = False) -> None:
        """These leases have ended without an acknowledgement; ``at_once``: the disk does not have them as the group's."""
        self.fall_behind()
        is_soon = self.group.has_client() and not self._services.asks_hooks
        for place, message in leases:
            # What a hook has changed is read again: the next member's is to be made of the original. So are large messages, and
            # those for which no member is there: the log has them, and memory need not.
            is_kept = is_soon and message is not None and message.cost() <= _SMALL
            self._leased.pop(place, None)
            self._return(place, message if is_kept else None)
        self._note_change(at_once)
        self.wake()

    def _return(self, place: Place, message: Message | None) -> None:
        if place not in self._returned:
            heappush(self._order, (place[1], place[0]))
        self._returned[place] = message

    def settle(self, place: Place) -> None:
        """A lease of QoS 1 has ended with an acknowledgement or a refusal."""
        if self._is_full():
            self.wake()
        self._leased.pop(place, None)
        self._note_change()

    def take_reservations(self) -> list[Reservation]:
        """What was reserved since the last call: it is to be kept once the row, as it is now, is on disk."""
        return self._reservations.take_unwritten()

    def keep(self, reservations: Iterable[Reservation]) -> None:
        """The disk knows that these are the group's no longer: send them. What cannot be sent now is the group's again."""
        broken: list[Message] = []
        for reservation in reservations:
            if not self._reservations.end(reservation):
                continue
            member, given = reservation.member, reservation.given
            is_wanted = self.group.has_member(member.flow)  # else it has unsubscribed, or its session is over
            if not is_wanted or not flow_of(member).take(given, member, 2, member.retain_for(given), reservation.expiry):
                broken.append(reservation.message)
        if broken:
            self.give_back(map(_lease, broken), at_once=True)

    def release_reservations(self) -> None:
        """Nothing can be written, now or any more: what was reserved is the group's again. It tries again after a while."""
        broken = self._reservations.end_all()
        if broken:
            self._is_barred = True
            self.give_back((_lease(reservation.message) for reservation in broken), at_once=True)
            self._services.later(_STORE_AGAIN_S, self._unbar)

    def _unbar(self) -> None:
        self._is_barred = False
        self.wake()

    def wake(self) -> None:
        """A member may have room."""
        if not (self._is_scheduled or self.is_following or self.is_over or self._is_barred):
            self._is_scheduled = True
            self._services.soon(self, self._run)

    def restore(self, positions: list[int], outstanding: Iterable[Place], since: Positions) -> None:
        """Restore the group from its row after a restart."""
        self._since = since
        self.group.flow.is_following = False
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
        self._reservations.end_all()
        # Whoever still refers to one of the three finds what is left of it; that they do not refer to each other any more spares
        # the collector the groups that are over.
        self.group.flow.end()
        self.group = self.group.remains()

    # The row

    def row(self) -> GroupRow:
        """The cursor as it is to be on disk."""
        positions = self.group.flow.cursor() if self.is_following else self.positions
        return GroupRow(*self.group.names, tuple(positions), (*self._returned, *self._leased), self._since)

    @property
    def outstanding(self) -> int:
        """How many records the row has beside its positions."""
        return len(self._returned) + len(self._leased)

    # Handing out

    def _hand_out(self, message: Message, expiry: int) -> bool:
        """Lease a message to a member that has room; False if there is none."""
        services = self._services
        for member in self.group.candidates(message):
            flow = cast("LogFlow", member.flow)
            if not flow.has_room() or not self._reservations.leaves_room(flow):
                continue
            given = message
            if services.asks_hooks:
                changed = services.ask_hooks(message, flow.client_id)
                if changed is None:
                    return True
                given = changed
            qos = member.qos_for(given)
            if qos == 2 and not flow.is_durable and self.group.flow.is_durable:
                self.group.note_choice()
                self._reservations.add(Reservation(member, message, given, expiry))
                services.note_reservation(self)
                return True
            before = flow.inflight_messages()
            if not flow.take(given, member, qos, member.retain_for(given), expiry):
                continue
            self.group.note_choice()
            if qos == 1 and flow.inflight_messages() > before:  # else it is too large for this one, and counts as acknowledged
                self._leased[message.shard, message.timestamp] = None
            self._note_change(at_once=qos == 2)
            return True
        return False

    def _hand_out_late(self, message: Message) -> bool:
        """The same for a message that was not sent at its commit: it may have expired meanwhile [MQTT-3.3.2-5]."""
        expiry = message.seconds_left()
        if expiry:
            return self._hand_out(message, expiry)
        self._services.state.drop_expired(self.group.key[0], message.topic)
        return True

    def _is_full(self) -> bool:
        """Whether so much is out that acknowledgements must come first; each wakes the group."""
        return len(self._leased) >= _LEASED_MAX

    def _pass_on(self, message: Message) -> None:
        """Give a message that the log does not keep for the group to the member that is best off, as it is."""
        state = self._services.state
        member = self.group.choose(message)
        if member is None:
            if message.qos:
                state.counters.dropped_queue_full += 1
            else:
                state.counters.dropped_absent += 1
            state.drop("queue_full" if message.qos else "absent", self.group.key[0], message.topic)
            return
        original = message.unrecorded() if message.timestamp else message
        given = self._services.ask_hooks(original, member.flow.client_id) if self._services.asks_hooks else original
        if given is not None:
            member.flow.deliver(given, member, member.qos_for(given), member.retain_for(given))

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
        try:
            while self._step():
                if monotonic() >= deadline:
                    self.wake()
                    break
        except Unavailable as problem:  # such as no descriptor for a table: it may work in a moment
            log.warning("the shared group %s has to wait for recorded messages: %s", self.group.names[0], problem.detail)
            self._services.later(_STORE_AGAIN_S, self.wake)
        self._services.flush()

    def _step(self) -> bool:
        """Deal with what is next; False if there is nothing to do now."""
        if self._returned:
            return self._step_returned()
        if self._waiting:
            shard, record = self._waiting[0]
            if self._is_for_group(shard, record):
                message = from_record(shard, record)
                if self._is_full() or not self._hand_out_late(message):
                    return self._await_room()
            self._waiting.popleft()
            self.positions[shard] = record.timestamp
            return True
        return self._read_on()

    def _is_for_group(self, shard: int, record: Record) -> bool:
        if self._since and record.timestamp <= self._since[shard]:
            return not record.session_only  # as for any replay
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
        state = self._services.state
        if self.positions == state.marks and state.part_shard < 0:
            return self._follow()
        if not self._services.may_read(self):
            return False
        replay = self._replay
        if replay is None:
            replay = self._replay = ShownScan(self._services.replay(self.group.names[1], self.positions), state)
        for _ in replay.take_gaps():
            self._services.note_lost()
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
        self._services.later(_RETRY_S, self.wake)
        return False

    def _read_again(self, first: Place) -> bool:
        """Read returned messages for a slice, this one and some that are near it; False if that cannot be now."""
        if self._search is None:
            if not self._services.may_read(self):
                return False
            missing = (place for place, message in self._returned.items() if message is None and place[0] == first[0])
            replay = partial(self._services.replay, self.group.names[1])
            self._search = RecordFetch(replay, self._services.state.marks, first, islice(missing, _READ_AGAIN))
        found = self._search.run(_SLICE_S)
        if found is None:
            return self._await_memory() if self._search.is_waiting else True
        self._search = None
        for place, record in found.items():
            if record is None:
                del self._returned[place]
                self._services.note_lost()
            else:
                self._returned[place] = from_record(place[0], record)
        return True

    def _follow(self) -> bool:
        self.group.flow.is_following = True
        self.positions = []
        self._since = ()
        self.pause()
        self._note_change()
        return False

    def fall_behind(self) -> None:
        """Stop following at the last message that was offered and not deferred."""
        if self.is_following:
            flow = self.group.flow
            positions, deferred = flow.cursor(), flow.take_deferred()
            self._stop_following(positions)
            for message in deferred:
                if not message.timestamp or not message.qos:
                    self._pass_on(message)

    def _stop_following(self, positions: list[int]) -> None:
        self.group.flow.is_following = False
        self.positions = positions
        self._note_change()

    def _await_room(self) -> bool:
        for flow in self.group.clients():
            self._services.await_room(self, flow)
        self._services.note_idle(self)
        return False

    def pause(self) -> None:
        """Release the read-ahead."""
        self._replay = self._search = None
        self._waiting.clear()
        self._services.stop_reading(self)

    def _note_change(self, at_once: bool = False) -> None:
        if at_once or not self.is_changed:
            self.is_changed = True
            self._services.note_change(self, at_once)


def flow_of(member: Subscription) -> LogFlow:
    """The flow of a member's session; all sessions have one that knows the log."""
    return cast("LogFlow", member.flow)


def is_lease(delivery: Delivery) -> bool:
    """Whether a delivery in flight belongs to a group: when the connection ends it goes back there."""
    return delivery.qos == 1 and delivery.subscription.group is not None and delivery.place()[1] > 0


def _lease(message: Message) -> tuple[Place, Message]:
    return (message.shard, message.timestamp), message
