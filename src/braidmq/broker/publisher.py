"""A message on its way through the broker: hooks, retaining, recording, routing.

A message that is recorded, or retained with QoS 1 or 2, waits for the disk: it is retained, delivered and acknowledged after its
commit, and not at all if it cannot be stored. Any other goes to its subscribers at once.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from braidmq.broker.flags import HOOK_DELIVER, HOOK_PUBLISH, TRACED
from braidmq.broker.hooks import Client
from braidmq.broker.ports import Change
from braidmq.broker.shared_log import SharedFlow
from braidmq.lane.flow import Flow
from braidmq.lane.message import Message
from braidmq.lane.recorder import VALUE_BYTES_MAX, Pending
from braidmq.lane.routes import Route, Subscription
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.connection import Connection

# The largest payload of a message that is kept as a row of its own; topic, properties and names come on top.
KEPT_BYTES_MAX = VALUE_BYTES_MAX - 512 * 1024

# The connection that a message came on, its QoS there and its packet id.
Packet = tuple["Connection", int, int]


class Publisher:
    """Publishes for connections and for the broker itself."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._retaining: Counter[bytes] = Counter()  # topics whose retained message waits for the disk, and how many do

    def publish(
        self,
        message: Message,
        publisher: Flow | None = None,
        user_name: str | None = None,
        client: Client | None = None,
        packet: Packet | None = None,
    ) -> int:
        """Retain, record and route a message whose right to be published is settled; the code to acknowledge it with.

        ``packet``: the connection that it came on, its QoS there and its packet id. -1 if its acknowledgement waits for the log.
        """
        if publisher is None:
            self._broker.statistics.own_messages += 1
        route = self._broker.routes.resolve(message.topic)
        if route is None:
            return Reason.TOPIC_NAME_INVALID
        if route.flags & HOOK_PUBLISH:
            changed = self._broker.hooks.publish(message, client)
            if changed is None:
                self._broker.statistics.dropped_by_hook += 1
                self._broker.state.drop("hook", message.publisher, message.topic)
                return 0
            if changed.topic != message.topic:
                route = self._broker.routes.resolve(changed.topic)
                if route is None:
                    return Reason.TOPIC_NAME_INVALID
            message = changed
        if route.flags & TRACED:
            self._broker.tracer.on_message(message)
        if message.retain and not self._may_retain(message):
            return Reason.QUOTA_EXCEEDED
        is_recorded = message.qos >= route.keep_qos
        is_kept = message.retain and not message.topic.startswith(b"$")
        # A message without QoS must not overtake one of its topic that waits for the disk.
        if not is_recorded and not (is_kept and (message.qos or message.topic in self._retaining)):
            if is_kept:
                self._broker.keeper.write(self._retained_row(message, user_name))
            if message.retain:
                self._retain(message, user_name)
            return 0 if self.deliver_with_flags(message, route, publisher) else Reason.NO_MATCHING_SUBSCRIBERS
        pending = self._record(message, publisher, message.qos < route.record_qos, is_recorded, packet)
        if not message.retain or pending.is_refused:
            return -1
        if is_kept:
            self._broker.keeper.recorder.change(self._retained_row(message, user_name))
        self._retaining[message.topic] += 1
        pending.on_commit = partial(self._on_retained, message.unrecorded(), user_name)
        pending.on_refused = partial(self._end_retaining, message.topic)
        return -1

    def is_retaining(self, topic: bytes) -> bool:
        """Whether a retained message of this topic waits for the disk: its row is to stay."""
        return topic in self._retaining

    def _on_retained(self, message: Message, user_name: str | None) -> None:
        self._end_retaining(message.topic)
        self._retain(message, user_name)

    def _end_retaining(self, topic: bytes) -> None:
        self._retaining[topic] -= 1
        if not self._retaining[topic]:
            del self._retaining[topic]

    def _record(
        self,
        message: Message,
        publisher: Flow | None,
        session_only: bool,
        is_recorded: bool,
        packet: Packet | None,
    ) -> Pending:
        if packet is not None:
            connection, qos, packet_id = packet
            return connection.record(message, qos, packet_id, session_only, is_recorded)
        recorder = self._broker.keeper.recorder
        if is_recorded:
            return recorder.record(message, publisher, None, 0, 0, session_only)
        return recorder.await_rows(message, publisher, None, 0, 0)

    def _retained_row(self, message: Message, user_name: str | None) -> Change:
        rows = self._broker.keeper.storage.retained
        return rows.put(message, user_name) if message.payload else rows.remove(message.topic)

    def _may_retain(self, message: Message) -> bool:
        if not message.payload:
            return True
        bytes_max = self._broker.settings.retained.payload_bytes_max or KEPT_BYTES_MAX
        if min(bytes_max, KEPT_BYTES_MAX) < len(message.payload) or not self._broker.retained.has_place(message):
            self._broker.statistics.dropped_retained_full += 1
            self._broker.state.drop("retained_full", message.publisher, message.topic)
            return False
        return True

    def _retain(self, message: Message, user_name: str | None) -> None:
        if not message.payload:
            self._broker.retained.remove(message.topic)  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            return
        self._broker.retained.put(message, user_name)
        self._broker.statistics.retained += 1

    def deliver_with_flags(self, message: Message, route: Route, publisher: Flow | None) -> int:
        """Hand a message to its destinations, through hooks if there are any; how many there were."""
        if route.flags & HOOK_DELIVER:
            return self._deliver_with_hooks(message, route, publisher)
        return self._broker.lane.publish(message, route, publisher)

    def _deliver_with_hooks(self, message: Message, route: Route, publisher: Flow | None) -> int:
        reached = 0
        for subscription in route.targets:
            target: Subscription | None = subscription
            if subscription.is_behind and message.timestamp:
                if subscription.prompt is None:
                    reached += 1  # it will read the message in the log
                    continue
                target = subscription = subscription.prompt
            if isinstance(subscription.flow, SharedFlow):  # the member is asked for when it is chosen
                subscription.flow.deliver(message, subscription, message.qos, message.retain)
                reached += 1
                continue
            if subscription.no_local and subscription.flow is publisher:
                target = subscription.echo
            if target is None:
                continue
            changed = self.ask_deliver_hooks(message, target.flow.client_id)
            if changed is None:
                continue
            if changed is not message and message.timestamp:
                # It is still that record, whatever a hook made of it; and the hook may use its message again.
                changed = changed.unrecorded()
                changed.set_position(message.shard, message.timestamp)
            target.flow.deliver(changed, target, min(changed.qos, target.qos), changed.retain and target.retain_as_published)
            reached += 1
        self._broker.state.work += len(route.targets)
        counters = self._broker.state.counters
        counters.delivered += reached
        if reached == 0:
            counters.dropped_no_subscribers += 1
        return reached

    def ask_deliver_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this subscriber gets it; None if a hook keeps it from them, and then it is counted."""
        changed = self._broker.hooks.deliver(message, client_id)
        if changed is None:
            self._broker.statistics.deliveries_dropped_by_hook += 1
            self._broker.state.drop("hook", client_id, message.topic)
        return changed
