"""The flow of a session: the in-flight window; behind it is the queue (``session_queue``), and in ``inbound`` are the client's
QoS 2 ids.

A message is sent at once if the client is connected, its window is open and no message waits before it; otherwise it is queued.
The window is bounded in messages and bytes. Sent and unacknowledged messages stay *in flight* under their packet ids, in the
order in which they were first sent:

    QoS 1   sent --PUBACK--> gone
    QoS 2   sent --PUBREC--> released (PUBREL sent, the message itself discarded) --PUBCOMP--> gone

On a new connection everything in flight is resent in that order, PUBLISH with DUP or PUBREL, before anything from the queue
[MQTT-4.4.0-1]; and never more at once than the client's Receive Maximum [MQTT-3.3.4-9], so ``outstanding`` counts what was sent
on this connection.

A recorded message in flight may leave memory: then its delivery stores its place in the log, and it is read before it is resent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from braidmq.lane.flows.delivery import Delivery, new_delivery
from braidmq.lane.flows.session_queue import HELD_COST, SessionQueue
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

PUBREL = 0x62
PRESSED_BYTES = 64 * 1024  # in flight to one client while the node holds too much
_HELD_COST, _PRESSED_BYTES = HELD_COST, PRESSED_BYTES  # C constants in the compiled form


class Flow(SessionQueue):
    """The queue and in-flight window of one session; outlives its connections."""

    __slots__ = (
        "_inflight", "_last_id", "_resend", "home_shard", "inflight_bytes", "is_durable", "is_peer", "outstanding", "queue_qos0",
        "seen", "window",
    )  # fmt: skip

    def __init__(self, client_id: str, state: State, queue_messages_max: int, queue_bytes_max: int, queue_qos0: bool) -> None:
        super().__init__(client_id, state, queue_messages_max, queue_bytes_max)
        self.queue_qos0 = queue_qos0
        self.window = 0
        self.outstanding = 0
        self.inflight_bytes = 0
        self.is_durable = False
        self.is_peer = False  # it stands for another node
        self.home_shard = 0  # the shard of the log that has this client's records
        self.seen = 0  # the number of the last wide message that it was offered
        self._last_id = 0
        # Most sessions never need these, so they are created on first use.
        self._inflight: dict[int, Delivery] | None = None
        self._resend: deque[int] | None = None

    # Towards the client

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Send or queue the message; QoS 0 is queued only if ``queue_qos0``. A full queue drops the newest message."""
        channel = self.channel
        if qos == 0:
            if channel is not None:
                self._send_qos0(channel, message, subscription, retain, -1)
            elif self.queue_qos0:
                self._enqueue(message, subscription, 0, retain)
            else:
                self.state.counters.dropped_absent += 1
                self._drop("absent", message)
            return
        if channel is not None and self._may_send(channel):
            self._send(channel, message, subscription, qos, retain, -1)
        else:
            self._enqueue(message, subscription, qos, retain)

    def _may_send(self, channel: Outlet) -> bool:
        """Whether a message of QoS 1 or 2 may be sent at once: no other waits before it and there is room."""
        return self._is_open() and not self._queue and not self._resend and not channel.is_clogged()

    def _is_open(self) -> bool:
        """Whether the window has room for another message: by number and by bytes, which stay when the client disconnects."""
        if self.outstanding >= self.window or self.inflight_bytes >= self.queue_bytes_max:
            return False
        return self.inflight_bytes < _PRESSED_BYTES or self.state.held_bytes < self.state.held_bytes_max

    def deliver_late(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Like ``deliver``, for a message stored earlier, such as a retained one, whose expiry has been running."""
        channel = self.channel
        if not message.expires_at or channel is None or (qos and not self._may_send(channel)):
            self.deliver(message, subscription, qos, retain)
            return
        expiry = message.seconds_left()
        if expiry == 0:
            self._drop_expired(message)
        elif qos:
            self._send(channel, message, subscription, qos, retain, expiry)
        else:
            self._send_qos0(channel, message, subscription, retain, expiry)

    def _send_qos0(self, channel: Outlet, message: Message, subscription: Subscription, retain: bool, expiry: int) -> None:
        counters = self.state.counters
        if channel.is_clogged():
            counters.dropped_outbox_full += 1
            self._drop("outbox_full", message)
        elif channel.send_publish(message, subscription, 0x31 if retain else 0x30, 0, expiry):
            counters.publish_qos0_sent += 1
        else:
            counters.dropped_too_large += 1
            self._drop("too_large", message)

    def _send(self, channel: Outlet, message: Message, subscription: Subscription, qos: int, retain: bool, expiry: int) -> None:
        packet_id = self._next_id()
        counters = self.state.counters
        flags = 0x30 | qos << 1 | (1 if retain else 0)
        if not channel.send_publish(message, subscription, flags, packet_id, expiry):
            # [MQTT-3.1.2-25]: continue as if it had been sent and acknowledged.
            counters.dropped_too_large += 1
            self._drop("too_large", message)
            return
        delivery = new_delivery(message, subscription, qos, retain)
        delivery.is_sent = delivery.is_live = True
        self._put_inflight(packet_id, delivery)
        self.outstanding += 1
        if qos == 1:
            counters.publish_qos1_sent += 1
        else:
            counters.publish_qos2_sent += 1

    def _next_id(self) -> int:
        """The next free packet id."""
        inflight = self._inflight
        packet_id = self._last_id
        while True:
            packet_id = 1 if packet_id >= 65535 else packet_id + 1
            if inflight is None or packet_id not in inflight:
                return packet_id

    def _put_inflight(self, packet_id: int, delivery: Delivery) -> None:
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        inflight[packet_id] = delivery
        self._last_id = packet_id
        cost = 0 if delivery.message is None else delivery.message.cost()
        self.inflight_bytes += cost
        self._hold(cost + _HELD_COST)

    def _let_go(self, delivery: Delivery) -> None:
        """Release the memory of a message in flight; the delivery stays."""
        if delivery.message is not None:
            cost = delivery.message.cost()
            self.inflight_bytes -= cost
            self._unhold(cost)

    def _take_out(self, delivery: Delivery) -> None:
        """It is no longer in flight."""
        cost = 0 if delivery.message is None else delivery.message.cost()
        self.inflight_bytes -= cost
        self._unhold(cost + _HELD_COST)

    def pump(self) -> None:
        """Send queued messages as far as the window and the outbox allow."""
        channel = self.channel
        if channel is None:
            return
        if self._resend:
            self._send_again(channel)
        queue = self._queue
        if not queue:
            return
        while queue and self._is_open() and not channel.is_clogged():
            delivery = queue.popleft()
            message = delivery.message
            assert message is not None  # only sent messages are released
            self._uncount(message)
            expiry = message.seconds_left()
            if expiry == 0:
                self._drop_expired(message)
            elif delivery.qos:
                self._send(channel, message, delivery.subscription, delivery.qos, delivery.retain, expiry)
            else:
                self._send_qos0(channel, message, delivery.subscription, delivery.retain, expiry)
        self._note_drained()

    def _send_again(self, channel: Outlet) -> None:
        resend = self._resend
        inflight = self._inflight
        if resend is None or inflight is None:
            return
        while resend and not channel.is_clogged():
            packet_id = resend[0]
            delivery = inflight.get(packet_id)
            if (
                delivery is not None
                and not delivery.is_released
                and (self.outstanding >= self.window or delivery.message is None)
            ):
                break  # [MQTT-4.9.0-3]: only a PUBLISH waits for the window, not a PUBREL; or it must be read from the log first
            resend.popleft()
            if delivery is None:
                continue
            if not delivery.is_ready:  # it is sent once its step is on disk, and already counts in the window
                delivery.is_live = True
                self.outstanding += 1
                continue
            if delivery.is_released:
                channel.send_ack(PUBREL, packet_id, 0)
            else:
                message = delivery.message
                assert message is not None
                flags = 0x30 | (8 if delivery.is_sent else 0) | delivery.qos << 1 | (1 if delivery.retain else 0)
                # With a packet id it no longer expires, but the client sees the remaining time.
                if not channel.send_publish(message, delivery.subscription, flags, packet_id, message.seconds_left()):
                    del inflight[packet_id]
                    self._take_out(delivery)
                    self.state.counters.dropped_too_large += 1
                    self.state.counters.inflight_lost += 1
                    self._drop("too_large", message)
                    continue
            delivery.is_sent = delivery.is_live = True
            self.outstanding += 1

    # Acknowledgements from the client

    def on_puback(self, packet_id: int, reason: int) -> bool:
        """The client has accepted or rejected (0x80 and above) a QoS 1 message: either way it is settled [MQTT-4.4.0-2]."""
        return self._settle(packet_id, 1, False)

    def on_pubrec(self, packet_id: int, reason: int) -> int:
        """The client has received a QoS 2 message: release it; or rejected it: it is settled.

        Returns 0 for an unknown id, 1 if PUBREL is due unless the message was rejected, 2 if PUBREL will follow by itself.
        """
        if reason >= 0x80:
            return 1 if self._settle(packet_id, 2, False) else 0
        delivery = None if self._inflight is None else self._inflight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return 0
        delivery.is_released = True
        self._let_go(delivery)
        delivery.message = None
        return 1

    def on_pubcomp(self, packet_id: int) -> bool:
        """The client has released the packet id. Returns False for an unknown one."""
        return self._settle(packet_id, 2, True)

    def is_wrong_ack(self, kind: int, packet_id: int) -> bool:
        """Count a PUBACK (4), PUBREC (5) or PUBCOMP (7) that settled nothing; returns whether another kind was expected.

        Only messages sent on this connection count: of earlier ones the client may know more than was on disk.
        """
        self.state.counters.stray_acks += 1
        delivery = None if self._inflight is None else self._inflight.get(packet_id)
        if delivery is None or not delivery.is_live or not delivery.is_sent:
            return False
        return kind == 7 or delivery.qos == (2 if kind == 4 else 1)

    def _settle(self, packet_id: int, qos: int, is_released: bool) -> bool:
        inflight = self._inflight
        if inflight is None:
            return False
        key = packet_id  # compiled, one Python object for both uses
        delivery = inflight.get(key)
        if delivery is None or delivery.qos != qos or delivery.is_released != is_released:
            return False
        del inflight[key]
        self._take_out(delivery)
        if delivery.is_live:
            self.outstanding -= 1
        self.state.counters.acked += 1
        group = delivery.subscription.group
        if group is not None:
            group.on_settled(delivery)
        if self._queue or self._resend:
            self.pump()
        return True

    # Connections

    def attach(self, channel: Outlet, window: int) -> None:
        """The client has connected: resend what is in flight, then the queue. ``window`` is at most its Receive Maximum."""
        self.channel = channel
        self.window = window
        self.outstanding = 0
        self.congested_at = 0.0
        self.is_stalled = False
        self.forget_waiting()
        if self._inflight:
            self._resend = deque(self._inflight)
            for delivery in self._inflight.values():
                delivery.is_live = False
        self.pump()

    def detach(self) -> None:
        """The client has disconnected; later messages are queued."""
        self.channel = None
        self._resend = None
        self.release_publishers()

    # Inspection

    def inflight_messages(self) -> int:
        """The number of messages that are sent and not settled."""
        return 0 if self._inflight is None else len(self._inflight)

    def withdraw(self, is_unwanted: Callable[[Delivery], bool]) -> int:
        """Remove every delivery, in flight or queued, for which ``is_unwanted`` is true; returns how many."""
        inflight = self._inflight
        taken = 0 if inflight is None else self.withdraw_inflight(list(inflight), is_unwanted)
        if self._queue:
            kept: deque[Delivery] = deque()
            for delivery in self._queue:
                if is_unwanted(delivery):
                    taken += 1
                    assert delivery.message is not None  # only sent messages are released
                    self._uncount(delivery.message)
                else:
                    kept.append(delivery)
            self._queue = kept
            self._note_drained()
        return taken

    def withdraw_inflight(self, packet_ids: list[int], is_unwanted: Callable[[Delivery], bool]) -> int:
        """Like ``withdraw``, for messages in flight with these packet ids."""
        inflight = self._inflight
        taken = 0
        for packet_id in packet_ids:
            delivery = None if inflight is None else inflight.get(packet_id)
            if inflight is None or delivery is None:
                continue
            message = delivery.message
            is_taken = is_unwanted(delivery)
            if message is not None and (is_taken or delivery.message is None):  # ``is_unwanted`` may have released it
                self.inflight_bytes -= message.cost()
                self._unhold(message.cost())
            if is_taken:
                taken += 1
                del inflight[packet_id]
                self._unhold(_HELD_COST)
                self.state.counters.inflight_lost += 1
                if delivery.is_live:
                    self.outstanding -= 1
        return taken

    def discard(self) -> None:
        """The session has ended: release everything, and count undelivered messages."""
        state = self.state
        self.is_over = True
        lost = self.queue_messages()
        waiting = [*(self._inflight.values() if self._inflight else ()), *(self._queue or ())]
        for delivery in waiting if state.on_drop is not None else ():
            if delivery.message is not None:
                state.drop("session_ended", self.client_id, delivery.message.topic)
        state.queued_messages -= lost
        state.queued_bytes -= self.queue_bytes
        state.held_bytes -= self.held_bytes
        state.heavy.pop(self, None)
        self.queue_bytes = self.inflight_bytes = self.held_bytes = 0
        if self._inflight:
            state.counters.inflight_lost += len(self._inflight)
            for delivery in self._inflight.values():
                lost += not delivery.is_released
        state.counters.dropped_session_ended += lost
        self.dropped += lost
        self._inflight = self._queue = self._resend = None
        self.forget_all_received()
