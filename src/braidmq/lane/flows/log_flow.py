"""The flow of a session with a log: recorded messages that the client cannot receive now are read from the log later, not queued.

Its *cursor* is a position for each shard and the messages in flight: every recorded message at or below the positions is
acknowledged or in flight. While the flow *follows*, it is offered every message at its commit, and its positions are the marks
of the log. When it cannot send a message, it stops following; a reader then reads the log for it from there (``take``) until it
has caught up and may ``follow`` again. Only messages that are not recorded are queued.

On a node with several cores a flow may follow all shards but those *missing*, whose core is away: what that core commits is read
when it is back, and the messages of all others do not wait for it (C22).

The cursor of a durable session is on disk. A step is *ready* once it is on disk; QoS 2 waits for that: the packet id
before PUBLISH, the receipt before PUBREL (S2). Everything else is written lazily. So QoS 1 can overtake a waiting QoS 2
message; messages are resent in the order in which they were sent, and unsent ones follow.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.lane.flows.delivery import Delivery, new_delivery
from braidmq.lane.flows.flow import PUBREL, Flow
from braidmq.lane.flows.packed_deliveries import PACKED_BYTES, pack_deliveries, unpack_deliveries
from braidmq.lane.flows.session_queue import HELD_COST
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain
from braidmq.lane.routing.subscription import Subscription


class LogFlow(Flow):
    """A flow that follows the log, starting with its first connection."""

    __slots__ = ("_packed", "_unready", "_writing", "is_changed", "is_following", "missing", "positions")

    def __init__(
        self, client_id: str, state: State, queue_messages_max: int, queue_bytes_max: int, queue_qos0: bool, is_durable: bool
    ) -> None:
        super().__init__(client_id, state, queue_messages_max, queue_bytes_max, queue_qos0)
        self.is_durable = is_durable
        self.is_following = True
        self.is_changed = False  # the cursor on disk is outdated
        self.positions: list[int] = []  # used while it does not follow
        self.missing: dict[int, int] | None = None  # while it follows: the positions in shards that it does not follow
        self._packed: bytes | None = None  # the deliveries in flight of an absent client
        self._unready: list[int] | None = None  # packet ids whose next step waits for the disk
        self._writing: list[list[int]] | None = None  # those that were taken and are not on disk, in their order

    # The log

    def cursor(self) -> list[int]:
        """The current positions, by shard."""
        return self._offered() if self.is_following else self.positions

    def _offered(self) -> list[int]:
        """The positions of a flow that follows."""
        positions = self.state.offered(self.seen)
        if self.missing is not None:
            for shard, position in self.missing.items():
                positions[shard] = position
        return positions

    def follow(self, missing: dict[int, int] | None = None) -> None:
        """The session has caught up with the log: offer it messages at their commit from now on.

        ``missing``: shards that could not be read to their ends, with the positions there.
        """
        self.is_following = True
        self.positions = []
        self.missing = missing or None

    def fall_behind(self) -> None:
        """Stop following, at the last message that the flow was offered."""
        if self.is_following:
            self.is_following = False
            self.positions = self._offered()
            self.missing = None
            self.note_change()

    def note_change(self) -> None:
        """The cursor has moved."""
        if self.is_durable and not self.is_changed:
            self.is_changed = True
            self.state.changed.append(self)

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Like ``Flow.deliver``, but a recorded message that cannot be sent now is left to the log."""
        if not message.timestamp:
            Flow.deliver(self, message, subscription, qos, retain)
        elif self.is_following and (self.missing is None or message.shard not in self.missing):
            channel = self.channel
            if channel is None or (qos and not self._may_send(channel)):
                self.fall_behind()
                if channel is not None:
                    channel.want_room()
            else:
                self._assign(channel, message, subscription, qos, retain, -1)

    def take(self, message: Message, subscription: Subscription, qos: int, retain: bool, expiry: int) -> bool:
        """Send a message that was read from the log; False if there is no room: then it must be offered again."""
        channel = self.channel
        if channel is None or channel.is_clogged() or not self._may_send(channel):
            return False
        self._assign(channel, message, subscription, qos, retain, expiry)
        return True

    def take_plain(self, records: list[tuple[int, Record]], place: int, subscription: Subscription, positions: list[int]) -> int:
        """Send plain records from index ``place`` on, as far as there is room; returns the index of the next one.

        ``positions`` are set to what was sent. A plain record never expires and is part of history.
        """
        channel = self.channel
        if channel is None:
            return place
        count = len(records)
        sent = 0
        while place < count:
            shard, record = records[place]
            if not record.is_plain or channel.is_clogged() or not self._may_send(channel):
                break
            message = from_record(shard, record)
            self._assign(channel, message, subscription, copy_qos(message, subscription), copy_retain(message, subscription), -1)
            positions[shard] = record.timestamp
            place += 1
            sent += 1
        self.state.counters.delivered += sent
        return place

    def _assign(self, channel: Outlet, message: Message, subscription: Subscription, qos: int, retain: bool, expiry: int) -> None:
        if qos == 0:
            self._send_qos0(channel, message, subscription, retain, expiry)
        else:
            self._send(channel, message, subscription, qos, retain, expiry)

    def _send(self, channel: Outlet, message: Message, subscription: Subscription, qos: int, retain: bool, expiry: int) -> None:
        """Like ``Flow._send``, but QoS 2 is sent once its packet id is on disk, whether it comes from the log or not."""
        self.note_change()
        if qos == 1 or not self.is_durable:
            Flow._send(self, channel, message, subscription, qos, retain, expiry)
            return
        packet_id = self._next_id()
        delivery = new_delivery(message, subscription, 2, retain)
        delivery.is_live = True
        self._put_inflight(packet_id, delivery)
        self.outstanding += 1
        self._await_disk(packet_id, delivery)

    # Steps that wait for the disk

    def _await_disk(self, packet_id: int, delivery: Delivery) -> None:
        delivery.is_ready = False
        if self._unready is None:
            self._unready = []
            self.state.unready.append(self)
            if self.state.on_unready is not None:
                self.state.on_unready()
        self._unready.append(packet_id)

    def take_unready(self) -> list[int]:
        """The packet ids whose next step waits; the caller writes the cursor and then calls ``make_ready``."""
        unready, self._unready = self._unready, None
        if unready is None:
            return []
        self._writing = [*(self._writing or ()), unready]
        return unready

    def make_ready(self, packet_ids: list[int]) -> None:
        """The cursor with these steps is on disk: execute them, after all earlier ones, which it has as well.

        The home may answer for a later cursor before it answers for an earlier one (C41).
        """
        writing = self._writing or []
        count = 0
        while count < len(writing):
            count += 1
            if writing[count - 1] is packet_ids:  # else a later cursor, or that of another connection, was faster
                self._writing = writing[count:] or None
                for steps in writing[:count]:
                    self._execute(steps)
                return

    def _execute(self, packet_ids: list[int]) -> None:
        inflight = self._inflight
        channel = self.channel
        if inflight is None:
            return
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.is_ready:
                continue
            delivery.is_ready = True
            if channel is not None and delivery.is_live:
                self._step(channel, packet_id, delivery)

    def _step(self, channel: Outlet, packet_id: int, delivery: Delivery) -> None:
        """Send the next packet of a delivery that has become ready on this connection."""
        counters = self.state.counters
        if delivery.is_released:
            counters.pubrel_sent += 1
            channel.send_ack(PUBREL, packet_id, 0)
            return
        message = delivery.message
        if message is None:
            return
        flags = 0x34 | (8 if delivery.is_sent else 0) | (1 if delivery.retain else 0)
        if channel.send_publish(message, delivery.subscription, flags, packet_id, message.seconds_left()):
            if not delivery.is_sent:
                delivery.is_sent = True
                self._put_last(packet_id, delivery)
            counters.publish_qos2_sent += 1
        else:
            self._forget_too_large(packet_id, message)

    def _put_last(self, packet_id: int, delivery: Delivery) -> None:
        """Put it last: messages sent by now are resent before it [MQTT-4.6.0-1]."""
        inflight = self._inflight
        if inflight is not None:
            del inflight[packet_id]
            inflight[packet_id] = delivery

    def _forget_too_large(self, packet_id: int, message: Message) -> None:
        self._settle(packet_id, 2, False)
        self.state.counters.dropped_too_large += 1
        self._drop("too_large", message)

    # Acknowledgements

    def on_pubrec(self, packet_id: int, reason: int) -> int:
        """Like ``Flow.on_pubrec``, but PUBREL follows once the receipt is on disk."""
        known = Flow.on_pubrec(self, packet_id, reason)
        self.note_change()
        if not known or not self.is_durable or reason >= 0x80:
            return known
        inflight = self._inflight
        delivery = None if inflight is None else inflight.get(packet_id)
        if delivery is not None:
            self._await_disk(packet_id, delivery)
        return 2

    def _settle(self, packet_id: int, qos: int, is_released: bool) -> bool:
        self.note_change()
        return Flow._settle(self, packet_id, qos, is_released)

    def make_all_ready(self) -> None:
        """The whole cursor is on disk, including steps whose earlier write failed."""
        self._unready = self._writing = None
        if self._inflight is not None:
            for delivery in self._inflight.values():
                delivery.is_ready = True

    def detach(self) -> None:
        """The client has disconnected: from now on the session is behind and reads the log."""
        self.fall_behind()
        for packet_id, delivery in self.inflight_items():
            if not delivery.is_sent:  # when the client reconnects, the messages it has seen are resent first
                self._put_last(packet_id, delivery)
        Flow.detach(self)

    def attach(self, channel: Outlet, window: int) -> None:
        """As for any flow."""
        self._unpack()
        Flow.attach(self, channel, window)

    def inflight_messages(self) -> int:
        """How many messages are sent and not settled."""
        return Flow.inflight_messages(self) if self._packed is None else len(self._packed) // PACKED_BYTES

    def withdraw(self, is_unwanted: Callable[[Delivery], bool]) -> int:
        """As for any flow."""
        self._unpack()
        return Flow.withdraw(self, is_unwanted)

    def withdraw_inflight(self, packet_ids: list[int], is_unwanted: Callable[[Delivery], bool]) -> int:
        """As for any flow."""
        self._unpack()
        return Flow.withdraw_inflight(self, packet_ids, is_unwanted)

    def discard(self) -> None:
        """As for any flow."""
        self._unpack()
        Flow.discard(self)

    def hand_over(self) -> None:
        """The session continues on another node, from its rows: release everything. Only what is queued is lost."""
        self._unpack()
        inflight = self._inflight
        if inflight is not None:
            for delivery in inflight.values():
                self._take_out(delivery)
            inflight.clear()
        Flow.discard(self)

    # Memory

    def let_go_readable(self) -> int:
        """Remove from memory messages in flight that the log has, to be read again before they are resent; returns how many.

        For a connected client only sent ones are removed. A session that ends with its connection never resends them.
        """
        inflight = self._inflight
        is_here = self.channel is not None
        count = 0
        if inflight is None:
            return 0
        for delivery in inflight.values():
            message = delivery.message
            if message is None or (is_here and not (delivery.is_live and delivery.is_sent and delivery.is_ready)):
                continue
            if delivery.subscription.group is not None and not (message.timestamp and delivery.is_sent):
                continue  # the group may give it to another member, and needs it in memory for that
            if not message.timestamp and self.is_durable:
                continue
            self._let_go(delivery)
            delivery.shard = message.shard
            delivery.timestamp = message.timestamp
            delivery.message = None
            count += 1
        if not is_here:
            self.pack()
        return count

    def pack(self) -> None:
        """Keep what is in flight to an absent client as a few bytes each, if all of it is in the log alone or released."""
        inflight = self._inflight
        if not inflight or self.channel is not None or not self.is_durable:
            return
        packed = pack_deliveries(inflight)
        if packed is None:
            return
        self._unhold(HELD_COST * len(inflight))
        self._hold(len(packed))
        self._inflight = None
        self._packed = packed

    def _unpack(self) -> None:
        """Have what is in flight at hand again."""
        packed = self._packed
        if packed is not None:
            self._inflight = dict(unpack_deliveries(packed))
            self._packed = None
            self._unhold(len(packed))
            self._hold(HELD_COST * len(self._inflight))

    def next_unread(self, count_max: int) -> list[tuple[int, Delivery]]:
        """Deliveries that must be read before they can be resent, the next one first; empty if it is not their turn."""
        found: list[tuple[int, Delivery]] = []
        inflight = self._inflight
        resend = self._resend
        channel = self.channel
        if not resend or inflight is None or channel is None or channel.is_clogged() or self.outstanding >= self.window:
            return found
        for packet_id in resend:
            delivery = inflight.get(packet_id)
            if delivery is not None and delivery.is_unread():
                found.append((packet_id, delivery))
                if len(found) >= count_max:
                    break
        return found

    def has_unread(self) -> bool:
        """Whether a message must be read before it can be resent."""
        inflight = self._inflight
        resend = self._resend
        if not resend or inflight is None:
            return False
        for packet_id in resend:
            delivery = inflight.get(packet_id)
            if delivery is not None and delivery.is_unread():
                return True
        return False

    def is_waiting_for(self, packet_id: int, delivery: Delivery) -> bool:
        """Whether this delivery is still in flight under this packet id and needs its message."""
        return delivery.is_unread() and self._inflight is not None and self._inflight.get(packet_id) is delivery

    def refill(self, delivery: Delivery, message: Message) -> None:
        """Put back the message of a delivery in flight, which was read from the log."""
        delivery.message = message
        self.inflight_bytes += message.cost()
        self._hold(message.cost())

    def drop_newest(self, bytes_max: int) -> None:
        """Drop the newest messages of the queue until at most this many bytes remain."""
        queue = self._queue
        while queue and self.queue_bytes > bytes_max:
            delivery = queue.pop()
            message = delivery.message
            assert message is not None  # only sent messages are released
            self._uncount(message)
            self._drop_for_memory(message)
        self._note_drained()

    def drop_unrecorded(self) -> None:
        """Drop messages in flight that are only in memory; a QoS 2 message that the client may have seen is released."""
        inflight = self._inflight
        if inflight is None:
            return
        for packet_id, delivery in list(inflight.items()):
            message = delivery.message
            if message is None or message.timestamp:
                continue
            self._drop_for_memory(message)
            if delivery.qos == 2 and delivery.is_sent:
                self._let_go(delivery)
                delivery.message = None
                delivery.is_released = True
            else:
                self._take_out(delivery)
                del inflight[packet_id]
                self.state.counters.inflight_lost += 1
        self.note_change()

    # Restart

    def restore(self, packet_id: int, delivery: Delivery) -> None:
        """Restore messages that were in flight when the process ended; they are on disk, so they are ready."""
        self._unpack()
        before = None if self._inflight is None else self._inflight.get(packet_id)
        if before is not None:
            self._take_out(before)
        delivery.is_sent = True
        self._put_inflight(packet_id, delivery)

    def forget(self, packet_id: int) -> None:
        """Remove a delivery whose message is no longer available."""
        delivery = None if self._inflight is None else self._inflight.pop(packet_id, None)
        if delivery is not None:
            self._take_out(delivery)
            self.state.counters.inflight_lost += 1
            self.note_change()

    def has_room(self) -> bool:
        """Whether the window has room for another message."""
        return self._is_open() and not self._queue and not self._resend

    def inflight_items(self) -> list[tuple[int, Delivery]]:
        """Deliveries in flight by packet id, in the order of sending; those the client has not seen come last."""
        sent: list[tuple[int, Delivery]] = []
        waiting: list[tuple[int, Delivery]] = []
        if self._packed is not None:
            return unpack_deliveries(self._packed)
        if self._inflight is not None:
            for item in self._inflight.items():
                delivery = item[1]
                if delivery.is_sent:
                    sent.append(item)
                else:
                    waiting.append(item)
        return sent + waiting
