"""The cursor of a shared group: one for all members, with the messages that must be redelivered (S10).

    following   every recorded message is given to a member at its commit; the positions are the log's marks
    deferring   the same, but messages for very many groups wait to be handed out (`lane.path.group_flow`), and later ones too
    behind      no member had room for a message: it and all later ones are read from the log, as soon as a member has room.
                A group that was made with a start is behind too: it reads what is older than the group as a replay shows it

Messages are *leased*, and only when they are sent. A QoS 1 lease belongs to the member's connection: messages that are not
acknowledged when it ends are *returned*, and handed out before anything else, in order of time. A QoS 2 lease belongs to the
member's session and never comes back once the message may have been sent; that the group no longer has it is written before
PUBLISH, in one batch with the cursor of the member's session if that is on disk too (else see `reservations`).

At every moment each record at or below the positions that is for the group was acknowledged, or is reserved or in flight to a
member, or is returned. The row on disk has the positions and all QoS 1 messages that are in flight or returned; after a crash
these are the group's again. Their number is bounded, because all of them are written each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.ports import GroupRow, Positions
from braidmq.broker.reading.cursor import SLICE_S, LogCursor, RunEnd, TakePlain, is_new, is_shown
from braidmq.broker.reading.fetch import Place, RecordFetch
from braidmq.broker.shared.leases import flow_of, lease_of
from braidmq.broker.shared.ports import GroupServices
from braidmq.broker.shared.reservations import Reservation, Reservations
from braidmq.broker.shared.returned import ReturnedMessages
from braidmq.broker.shared.unrecorded import pass_on
from braidmq.lane.flows.lent_flow import LentFlow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.records.records import Record
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain
from braidmq.lane.routing.routes import GROUP_WEIGHT

if TYPE_CHECKING:
    from braidmq.broker.shared.group import Group

_LEASED_MAX = 8192  # with QoS 1, to all members together: a row of 80 KB, half a millisecond to make
_SMALL = 1024  # bytes of a returned message that is kept in memory for the next member
_STORE_AGAIN_S = 1.0  # after which to try again when nothing could be written


class GroupCursor:
    """The cursor of one group; implements `reading.cursor.ScanReader`.

    A new group begins at the end of the log, or at the start that its first member asks for.
    """

    __slots__ = (
        "_is_barred", "_is_scheduled", "_leased", "_reading", "_reservations", "_returned", "_services", "_since", "group",
        "is_changed", "is_kept", "is_over", "owner", "positions",
    )  # fmt: skip

    def __init__(self, group: Group, services: GroupServices, start: Sequence[int] | None = None, owner: object = None) -> None:
        self.group = group
        self.owner = owner  # the owner of its slots: that of the session that made the group
        self.is_kept = False  # the group has a row
        self.is_over = False  # the group has no members any more
        self.is_changed = False  # since the row was written
        self.positions = [] if start is None else list(start)  # while it does not follow
        self._services = services
        self._since: Positions = () if start is None else tuple(services.state.marks)  # where the log was when it was made
        self._is_scheduled = False
        self._is_barred = False  # nothing can be written for a moment
        self._reservations = Reservations()
        self._returned = ReturnedMessages()
        self._leased: dict[Place, None] = {}  # with QoS 1, and not settled
        self._reading: LogCursor | None = None

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
        """Hand out a live message. If it is recorded, hence committed, and no member has room, the group is behind from it on."""
        self._services.state.work += GROUP_WEIGHT
        if not message.timestamp or not message.qos:
            pass_on(self.group, message, self._services)
        elif self.is_following and (self._is_full() or not self._hand_out(message, -1)):
            self.fall_behind()
            self._await_room()

    def hand_out_deferred(self) -> None:
        """Hand out deferred messages; ``lane.flush`` must follow."""
        flow = self.group.flow
        deferred = flow.take_deferred()
        for place, message in enumerate(deferred):
            self._services.state.work += GROUP_WEIGHT
            if not message.timestamp or not message.qos:
                pass_on(self.group, message, self._services)
            elif self.is_following and (self._is_full() or not self._hand_out_late(message)):
                self._stop_following(flow.positions_before(deferred[place:]))
                self._await_room()

    def give_back(self, leases: Iterable[tuple[Place, Message | None]], at_once: bool = False) -> None:
        """These leases have ended without an acknowledgement; ``at_once``: on disk they are not the group's."""
        self.fall_behind()
        is_soon = self.group.has_client() and not self._services.asks_hooks
        for place, message in leases:
            # A message that a hook has changed is read again: the next member's is made from the original. So are large messages,
            # and those for which no member is connected: the log has them, and memory need not.
            is_kept = is_soon and message is not None and message.cost() <= _SMALL
            self._leased.pop(place, None)
            self._returned.put(place, message if is_kept else None)
        self._note_change(at_once)
        self.wake()

    def settle(self, place: Place) -> None:
        """A lease of QoS 1 has ended with an acknowledgement or a refusal."""
        if self._is_full():
            self.wake()
        self._leased.pop(place, None)
        self._note_change()

    def hand_on(self, place: Place) -> None:
        """A lease of QoS 2 to a durable session on another node is in the session's cursor: write the row in the same batch."""
        self._leased.pop(place, None)

    def take_reservations(self) -> list[Reservation]:
        """The reservations since the last call; the caller says ``keep`` once the row, as it is now, is on disk."""
        return self._reservations.take_unwritten()

    def keep(self, reservations: Iterable[Reservation]) -> None:
        """On disk these are no longer the group's: send them. Those that cannot be sent now are the group's again."""
        ended = (each for each in reservations if self._reservations.end(each))
        # A member that is gone has unsubscribed, or its session is over.
        broken = [lease_of(each.message) for each in ended if not (self.group.has_member(each.member.flow) and each.send())]
        if broken:
            self.give_back(broken, at_once=True)

    def release_reservations(self, reservations: Iterable[Reservation]) -> None:
        """The row with these was refused: the messages are the group's again. It tries again after a while.

        Others stay reserved: their row may be on disk, or on its way there, and then they are not the group's there.
        """
        broken = [lease_of(each.message) for each in reservations if self._reservations.end(each)]
        if broken:
            self._is_barred = True
            self.give_back(broken, at_once=True)
            self._services.later(_STORE_AGAIN_S, self._unbar)

    def release_all_reservations(self) -> None:
        """The node stops: whatever was reserved and not sent is the group's again."""
        self.release_reservations(self._reservations.pending())

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
            self._returned.put(place, None)

    def end(self) -> None:
        """The group is no more."""
        self.is_over = True
        self.pause()
        self._returned.clear()
        self._reservations = Reservations()
        # References to group, flow and cursor may remain; without references between them the collector has less to do.
        self.group.flow.end()
        self.group = self.group.remains()

    # The row

    def row(self) -> GroupRow:
        """The row to be stored."""
        positions = self.group.flow.cursor() if self.is_following else self.positions
        return GroupRow(*self.group.names, tuple(positions), (*self._returned.messages, *self._leased), self._since)

    @property
    def outstanding(self) -> int:
        """How many records the row has beside its positions."""
        return len(self._returned.messages) + len(self._leased)

    # Handing out

    def _hand_out(self, message: Message, expiry: int) -> bool:
        """Lease a message to a member that has room; False if no member has."""
        services = self._services
        for member in self.group.candidates(message):
            flow = flow_of(member)
            if not flow.has_room() or not self._reservations.leaves_room(flow):
                continue
            given = message
            is_lent = isinstance(flow, LentFlow)
            if services.asks_hooks and not is_lent:  # a node asks its own hooks
                changed = services.ask_hooks(message, flow.client_id)
                if changed is None:
                    return True
                given = changed
            qos = copy_qos(given, member)
            is_handed_on = isinstance(flow, LentFlow) and flow.is_stored  # see ``hand_on``
            if qos == 2 and not flow.is_durable and not is_handed_on and self.group.flow.is_durable:
                self.group.note_choice()
                self._reservations.add(Reservation(member, message, given, expiry))
                services.note_reservation(self)
                return True
            before = flow.inflight_messages()
            if not flow.take(given, member, qos, copy_retain(given, member), expiry):
                continue
            self.group.note_choice()
            is_leased = qos == 1 or (qos == 2 and is_handed_on)
            if is_leased and flow.inflight_messages() > before:  # else it is too large for this one, and counts as acknowledged
                self._leased[message.shard, message.timestamp] = None
            self._note_change(at_once=qos == 2 and not is_handed_on)
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
        """Whether the limit of leased messages is reached; each acknowledgement wakes the group then."""
        return len(self._leased) >= _LEASED_MAX

    # Reading

    def _run(self) -> None:
        """Hand out for a slice what waits in the log."""
        self._is_scheduled = False
        if self.is_over or self.is_following or self._is_barred:
            return
        if not self.group.has_client():
            self.pause()
            return
        turn = self._read(monotonic() + SLICE_S)
        if turn is RunEnd.MORE:
            self.wake()
        elif turn is RunEnd.FULL:
            self._await_room()
        elif self._is_blocked():
            self._services.note_blocked(self)
        self._services.flush()

    def _read(self, deadline: float) -> RunEnd:
        """Hand out returned messages, then those of the log."""
        while True:
            if self._returned.messages:
                turn = self._hand_out_returned(deadline)
                if turn is not RunEnd.CAUGHT_UP:
                    return turn
            turn = self._read_on(deadline)
            if turn is not RunEnd.FULL or not self._returned.messages:
                return turn
            # Messages that came back while the log was read come first.
            if monotonic() >= deadline:
                return RunEnd.MORE

    def _read_on(self, deadline: float) -> RunEnd:
        state = self._services.state
        if self.positions == state.marks and state.part_shard < 0:
            self._follow()
            return RunEnd.CAUGHT_UP
        if self._reading is None:
            self._reading = LogCursor(self._services.source, self._services.slots, self)
        turn = self._reading.run(deadline)
        if turn is RunEnd.CAUGHT_UP:
            self._follow()
        return turn

    def _hand_out_returned(self, deadline: float) -> RunEnd:
        """CAUGHT_UP when none are left."""
        returned = self._returned
        while (place := returned.first()) is not None:
            message = returned.messages[place]
            if message is None:
                if not self._fetch_returned(place):
                    return RunEnd.WAITS
            elif self._hand_out_late(message):
                returned.remove(place)
            else:
                self._services.slots.note_idle(self)
                return RunEnd.FULL
            if monotonic() >= deadline:
                return RunEnd.MORE
        return RunEnd.CAUGHT_UP

    def _fetch_returned(self, first: Place) -> bool:
        """Read returned messages for a slice, this one and some that are near it; False if the group has to wait."""
        returned = self._returned
        if returned.is_blocked or not self._services.slots.admit(self):
            return False
        for _ in range(returned.fetch(first, self._start_fetch)):
            self._services.note_lost()
        return not returned.is_blocked

    def _start_fetch(self, places: Sequence[Place]) -> RecordFetch:
        return RecordFetch(self._services.source, self.filters(), places, self.wake, self.name)

    # What the cursor asks

    @property
    def name(self) -> str:
        """What it is called in the log file."""
        return f"the shared group {self.group.names[0]}"

    def filters(self) -> list[str]:
        """The group's."""
        return [self.group.names[1]]

    def plain(self) -> TakePlain | None:
        """Each record is offered alone: it is for one of several members."""
        return None

    def offer_record(self, shard: int, record: Record) -> bool:
        """Hand out a record if it is for the group; False if no member has room, or returned messages come first."""
        if self._returned.messages:
            return False
        if not self._is_for_group(shard, record):
            return True
        return not self._is_full() and self._hand_out_late(from_record(shard, record))

    def _is_for_group(self, shard: int, record: Record) -> bool:
        # QoS 0 is for members that were connected at the commit, so new messages of QoS 0 do not wait; history shows them.
        return is_shown(shard, record, self._since) and (record.qos > 0 or not is_new(shard, record.timestamp, self._since))

    def note_gap(self) -> None:
        """Count it."""
        self._services.note_lost()

    # Following

    def _follow(self) -> None:
        self.group.flow.is_following = True
        self.positions = []
        self._since = ()
        self.pause()
        self._note_change()

    def fall_behind(self) -> None:
        """Stop following at the last message that was offered and not deferred."""
        if self.is_following:
            flow = self.group.flow
            positions, deferred = flow.cursor(), flow.take_deferred()
            self._stop_following(positions)
            for message in deferred:
                if not message.timestamp or not message.qos:
                    pass_on(self.group, message, self._services)

    def _stop_following(self, positions: list[int]) -> None:
        self.group.flow.is_following = False
        self.positions = positions
        self._note_change()

    def _is_blocked(self) -> bool:
        """Whether it waits until the source is ready."""
        return self._returned.is_blocked or (self._reading is not None and self._reading.is_blocked)

    def keeps_waiting(self) -> bool:
        """Whether it still waits for the source; without a connected member it stops, and gives up its slot."""
        if not self._is_blocked():
            return False
        if self.group.has_client():
            return True
        self.pause()
        return False

    def _await_room(self) -> None:
        for flow in self.group.clients():
            self._services.await_room(self, flow)

    def pause(self) -> None:
        """Release the read-ahead."""
        self._returned.stop_reading()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
        else:
            self._services.slots.leave(self)

    def _note_change(self, at_once: bool = False) -> None:
        if at_once or not self.is_changed:
            self.is_changed = True
            self._services.note_change(self, at_once)
