"""The publish pipeline: hooks, retained messages, recording, routing.

A message that is recorded, or retained with QoS 1 or 2, waits for the disk: it is retained, delivered and acknowledged after its
commit, and not at all if it cannot be stored. Any other goes to its subscribers at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from braidmq.base.errors import BraidError, Unavailable
from braidmq.broker.connection.trace import Tracer
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.flags import HOOK_DELIVER, HOOK_PUBLISH, TRACED
from braidmq.broker.messages.hooks import Client, Hooks
from braidmq.broker.messages.producer_books import MessageKey
from braidmq.broker.messages.retained import Retained, RetainedStore
from braidmq.broker.messages.retained_homes import RetainedHomes
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change, StoredMessage
from braidmq.broker.statistics import Statistics
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.channel import Channel
from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.lane.routing.routes import WIDE, Route, RouteTable
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.durability")

# The largest payload of a message that is kept as a row of its own; topic, properties and names come on top.
KEPT_BYTES_MAX = VALUE_BYTES_MAX - 512 * 1024


class Packet(Struct, frozen=True, gc=False):
    """The PUBLISH that a message came in: ``sent`` is the message as the client sent it, ``key`` a producer's key to record."""

    connection: Channel
    sent: Message
    qos: int
    packet_id: int
    key: MessageKey | None


class MessagePipeline:
    """Publishes messages of connections and of the broker itself."""

    def __init__(
        self,
        lane: Lane,
        routes: RouteTable,
        turn_writer: TurnWriter,
        retained: RetainedStore,
        hooks: Hooks,
        tracer: Tracer,
        statistics: Statistics,
        live: LiveSettings,
        is_home: bool,
        homes: RetainedHomes | None = None,
    ) -> None:
        """``is_home``: retained messages are kept on this node. Otherwise ``retained`` has only those of $-topics.

        ``homes``: those of the topics, if there are several cores and this is one; ``retained`` has the topics of this one.
        """
        self._lane = lane
        self._state = lane.state
        self._routes = routes
        self._turn_writer = turn_writer
        self._rows = turn_writer.storage.retained
        self._retained = retained
        self._hooks = hooks
        self._tracer = tracer
        self._statistics = statistics
        self._live = live
        self._is_home = is_home
        self._homes = homes
        # Topics whose retained messages wait for the disk, with their number: delivered after the commit, and delivered before.
        self._retaining: Counter[bytes] = Counter()
        self._storing: Counter[bytes] = Counter()

    def publish(
        self,
        message: Message,
        publisher: Flow | None = None,
        user_name: str | None = None,
        client: Client | None = None,
        packet: Packet | None = None,
        on_refused: Callable[[], None] | None = None,
        route: Route | None = None,
    ) -> int:
        """Retain, record and route a message that may be published; returns the reason code for its acknowledgement.

        -1 if its acknowledgement waits for the log, or until all of many destinations were served.
        ``on_refused`` is called if the log refuses it. ``route``: that of its topic, if the caller has it.
        """
        if publisher is None:
            self._statistics.own_messages += 1
        if route is None:
            route = self._routes.resolve(message.topic)
        if route is None:
            return Reason.TOPIC_NAME_INVALID
        if route.flags & HOOK_PUBLISH:
            changed = self._hooks.publish(message, client)
            if changed is None:
                self._statistics.dropped_by_hook += 1
                self._state.drop("hook", message.publisher, message.topic)
                return 0
            if changed.topic != message.topic:
                route = self._routes.resolve(changed.topic)
                if route is None:
                    return Reason.TOPIC_NAME_INVALID
            message = changed
        if route.flags & TRACED:
            self._tracer.on_message(message)
        if message.retain and not self.may_retain(message):
            return Reason.QUOTA_EXCEEDED
        is_recorded = message.qos >= route.keep_qos
        is_own = message.topic.startswith(b"$")
        is_kept = message.retain and not is_own and self._is_home
        # A message without QoS must not overtake one of its topic that waits for the disk.
        if not is_recorded and not (is_kept and (message.qos or message.topic in self._retaining)):
            if is_kept and (message.topic in self._storing or not self._retained.fits_in_memory(message)):
                pending = self._record(message, publisher, False, False, packet)
                pending.is_delivered = False
                self._retain_on_commit(pending, message, user_name, self._storing)
            elif message.retain:
                self._retain_at_once(message, user_name)
            if packet is None or route.flags & WIDE:
                self._show(message, publisher, packet)
                return -1
            return 0 if self.deliver_with_flags(message, route, publisher) else Reason.NO_MATCHING_SUBSCRIBERS
        pending = self._record(message, publisher, message.qos < route.record_qos, is_recorded, packet)
        if pending.is_refused:
            return -1
        pending.on_refused = on_refused
        if message.retain and (is_own or self._is_home):  # else its home retains what it records
            self._retain_on_commit(pending, message, user_name, self._retaining)
        return -1

    def _show(self, message: Message, publisher: Flow | None, packet: Packet | None) -> None:
        """Deliver a message that need not wait for the disk, in later turns if it is too much work for this one."""
        recorder = self._turn_writer.recorder
        if packet is not None:
            connection = packet.connection
            flow = connection.flow
            assert flow is not None  # the connection is open
            if packet.qos == 2:
                connection.unreleased += 1
                flow.expect_commit(packet.packet_id)
            recorder.outcomes.show(message, flow, connection, packet.qos, packet.packet_id)
            if recorder.holds(flow):
                connection.hold(HOLD_LOG)
        else:
            recorder.outcomes.show(message, publisher, None, 0, 0)

    def forget_retained(self, topic: bytes) -> bool:
        """Remove the retained message of a topic; False if there certainly was none."""
        if self._homes is not None and not topic.startswith(b"$"):
            removal = Message(topic, b"", 0, True, "")
            is_known = self._homes.is_elsewhere(removal) or self._retained.get(topic) is not None
            self._retain_at_once(removal, None)
            return is_known
        self.forget_retained_row(topic)
        return self._retained.remove(topic) or not (self._is_home or topic.startswith(b"$"))

    def forget_retained_row(self, topic: bytes) -> None:
        """Remove the row of a topic's retained message, unless a newer message is on its way to the disk."""
        if not topic.startswith(b"$") and not self.is_retaining(topic):
            self._turn_writer.write(self._rows.remove(topic))

    def is_retaining(self, topic: bytes) -> bool:
        """Whether a retained message of this topic waits for the disk: its row must stay, and must not be shown yet."""
        return topic in self._retaining or topic in self._storing

    def _retain_at_once(self, message: Message, user_name: str | None) -> None:
        """Retain a message that does not wait for the disk."""
        is_own = message.topic.startswith(b"$")
        homes = None if is_own else self._homes
        if homes is not None and homes.is_elsewhere(message):
            intent = homes.intent(message, user_name)
            self._turn_writer.change((intent.row,), intent.committed, lambda refusal: intent.refused())
            return
        stored_at = 0.0 if homes is None else homes.begin(message.topic)
        if not is_own:
            self._turn_writer.write(self._retained_row(message, user_name, stored_at))
        if is_own or self._is_home:
            self._retain(message, user_name, False, stored_at)

    def _send_on_commit(
        self, pending: Pending, message: Message, user_name: str | None, on_settled: Callable[[], None] | None
    ) -> None:
        """Take a retained message to the home of its topic when its record is on disk."""
        assert self._homes is not None
        intent = self._homes.intent(message, user_name)
        self._turn_writer.recorder.change(intent.row)
        also_on_refused = pending.on_refused

        def on_refused() -> None:
            intent.refused(on_settled)
            if also_on_refused is not None:
                also_on_refused()

        pending.on_commit, pending.on_refused = partial(intent.committed, on_settled), on_refused

    def _retain_on_commit(
        self,
        pending: Pending,
        message: Message,
        user_name: str | None,
        waiting: Counter[bytes],
        on_settled: Callable[[], None] | None = None,
    ) -> bool:
        """Whether ``on_settled`` will be called: another home than that of the record keeps the message."""
        is_kept = not message.topic.startswith(b"$")
        if is_kept and self._homes is not None and self._homes.is_elsewhere(message):
            self._send_on_commit(pending, message, user_name, on_settled)
            return True
        stored_at = self._homes.begin(message.topic) if is_kept and self._homes is not None else 0.0
        self._keep_on_commit(pending, message, user_name, waiting, stored_at)
        return False

    def _keep_on_commit(
        self, pending: Pending, message: Message, user_name: str | None, waiting: Counter[bytes], stored_at: float
    ) -> None:
        is_kept = not message.topic.startswith(b"$")
        if is_kept:
            self._turn_writer.recorder.change(self._retained_row(message, user_name, stored_at))
            if self._homes is not None:
                self._homes.expect(message.topic, stored_at)
        waiting[message.topic] += 1
        reserved = self._retained.bytes_of(message) if is_kept and message.payload else 0
        self._retained.reserved_bytes += reserved
        on_end = partial(self._end_retaining, message.topic, waiting, reserved)
        also_on_refused = pending.on_refused

        def on_commit() -> None:
            on_end()
            self._retain(message.unrecorded(), user_name, is_kept, stored_at)

        def on_refused() -> None:
            on_end()
            if also_on_refused is not None:
                also_on_refused()

        pending.on_commit, pending.on_refused = on_commit, on_refused

    def retain_on_commit(
        self, pending: Pending, message: Message, user_name: str | None, on_settled: Callable[[], None] | None = None
    ) -> bool:
        """Write the retained message of another node's client with its block, and show it from the commit on.

        Whether ``on_settled`` will be called: another home keeps the message (see `retained_homes`).
        """
        return self._retain_on_commit(pending, message, user_name, self._retaining, on_settled)

    def retain_here(self, pending: Pending, message: Message, user_name: str | None, stored_at: float) -> None:
        """Write a retained message that another home has brought, and show it from the commit on."""
        self._keep_on_commit(pending, message, user_name, self._retaining, stored_at)

    def retain_in_memory(self, message: Message, user_name: str | None) -> None:
        """Retain a message of another node's client whose topic has no row."""
        self._retain(message, user_name, False)

    def restore_retained(self, stored: StoredMessage) -> None:
        """Take over a message found at start."""
        if stored.message.payload:
            self._retained.put(stored.message, stored.user_name, stored.stored_at, is_on_disk=True)
        elif self._homes is not None:
            self._homes.note_removed(stored.message.topic, stored.stored_at)

    def trace(self, message: Message) -> None:
        """Report a message of another node's client whose topic is traced."""
        self._tracer.on_message(message)

    def _end_retaining(self, topic: bytes, waiting: Counter[bytes], reserved: int) -> None:
        self._retained.reserved_bytes -= reserved
        waiting[topic] -= 1
        if not waiting[topic]:
            del waiting[topic]
        if self._homes is not None:
            self._homes.end(topic)

    def load_retained(self, held: Retained) -> Retained | None:
        """The message of this topic as it is now, with its payload; None if there is none any more, or it is damaged.

        Raises Unavailable if it cannot be read now.
        """
        topic = held.message.topic
        now = self._retained.get(topic)
        if now is None or not now.is_on_disk:
            return now
        try:
            stored = self._rows.read(topic)
        except Unavailable:
            raise
        except BraidError as problem:
            log.error("%s", problem)
            return None
        if stored is None:
            log.error("the retained message of topic %s is missing on disk", topic.decode())
            return None
        return Retained(stored.message, stored.user_name, stored.stored_at)

    def _record(
        self,
        message: Message,
        publisher: Flow | None,
        session_only: bool,
        is_recorded: bool,
        packet: Packet | None,
    ) -> Pending:
        if packet is not None:
            return self.record_packet(packet, message, session_only=session_only, is_recorded=is_recorded)
        recorder = self._turn_writer.recorder
        if is_recorded:
            return recorder.record(message, publisher, None, 0, 0, session_only)
        return recorder.await_rows(message, publisher, None, 0, 0)

    def record_packet(self, packet: Packet, message: Message, *, session_only: bool, is_recorded: bool) -> Pending:
        """Record the message of a client's PUBLISH, or only wait for its rows; its key, if any, is recorded with it."""
        key = packet.key
        pending = packet.connection.record(
            message, packet.qos, packet.packet_id, session_only, is_recorded, packet.sent, None if key is None else key.row
        )
        if key is not None and not pending.is_refused:
            key.recorded()
        return pending

    def _retained_row(self, message: Message, user_name: str | None, stored_at: float) -> Change:
        if message.payload or self._homes is not None or not self._is_home:
            return self._rows.put(message, user_name, stored_at)
        return self._rows.remove(message.topic)

    def may_retain(self, message: Message, *, is_here: bool = False) -> bool:
        """Whether there is room for a retained message; counted if not. ``is_here``: this core is the home of its topic."""
        if not message.payload:
            return True
        bytes_max = self._live.now.retained.payload_bytes_max or KEPT_BYTES_MAX
        if min(bytes_max, KEPT_BYTES_MAX) < len(message.payload) or not self._has_place(message, is_here):
            self._statistics.dropped_retained_full += 1
            self._state.drop("retained_full", message.publisher, message.topic)
            return False
        return True

    def _has_place(self, message: Message, is_here: bool) -> bool:
        homes = None if is_here or message.topic.startswith(b"$") else self._homes
        if homes is not None and homes.is_elsewhere(message):
            return homes.has_room(message)
        return self._retained.has_place(message)

    def _retain(self, message: Message, user_name: str | None, is_on_disk: bool, stored_at: float = 0.0) -> None:
        if not message.payload:
            self._retained.remove(message.topic)  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            if self._homes is not None and not message.topic.startswith(b"$"):
                self._homes.note_removed(message.topic, stored_at)
            return
        self._retained.put(message, user_name, stored_at, is_on_disk=is_on_disk)
        self._statistics.retained += 1

    def deliver_with_flags(self, message: Message, route: Route, publisher: Flow | None) -> int:
        """Deliver a message to its destinations, through hooks if there are any; returns how many there were."""
        if route.flags & HOOK_DELIVER:
            return self._lane.publish_asking(message, route, publisher, self.ask_deliver_hooks)
        return self._lane.publish(message, route, publisher)

    def ask_deliver_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this subscriber gets it; None if a hook withholds it, which is counted.

        A message that a hook made from a record still counts as that record. It is copied: the hook may use its own again.
        """
        changed = self._hooks.deliver(message, client_id)
        if changed is None:
            self._statistics.deliveries_dropped_by_hook += 1
            self._state.drop("hook", client_id, message.topic)
        elif changed is not message and message.timestamp:
            return changed.in_place_of(message)
        return changed
