"""The slow path of a PUBLISH: retained messages, ``$`` topics, hooks, payload checks, rejections."""

from __future__ import annotations

from braidmq.broker.connection.connection import Connection
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages import delayed
from braidmq.broker.messages.delayed import DelayedMessages
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.pipeline import KEPT_BYTES_MAX, MessagePipeline, Packet
from braidmq.broker.messages.producer_books import MessageKey
from braidmq.broker.messages.producers import Producers
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.message import Message
from braidmq.lane.path.parser import topic_error
from braidmq.lane.path.state import State
from braidmq.lane.recording.recorder import Producer
from braidmq.lane.routing.routes import Route
from braidmq.mqtt.reasons import Reason


class PublishHandler:
    """Publishes messages of connections; implements `connection.context.SlowPath`."""

    def __init__(
        self,
        pipeline: MessagePipeline,
        delayed_messages: DelayedMessages,
        producers: Producers,
        hooks: Hooks,
        state: State,
        statistics: Statistics,
        live: LiveSettings,
    ) -> None:
        self._pipeline = pipeline
        self._delayed = delayed_messages
        self._producers = producers
        self._hooks = hooks
        self._state = state
        self._statistics = statistics
        self._live = live

    def publish(self, connection: Connection, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        """Publish on the slow path; returns the reason code for the acknowledgement, or -1 if it is sent elsewhere."""
        if connection.producer is not None and connection.producer.is_keyed:
            code = self._publish_keyed(connection, connection.producer, message, route, payload_format, packet_id)
        else:
            packet = Packet(connection, message, message.qos, packet_id, None)
            code = self._publish(connection, message, route, payload_format, packet)
        if code >= 0x80 and code != Reason.NOT_AUTHORIZED and message.qos and not connection.is_v5:
            # MQTT 3 has no way to say no, and an acknowledgement would say that the message is safe.
            connection.close(code, "a message was refused")
            return -1
        return code

    def _publish_keyed(
        self, connection: Connection, producer: Producer, message: Message, route: Route, payload_format: int, packet_id: int
    ) -> int:
        """Publish a message with a key, unless it is recorded already: then it is acknowledged when that record is on disk."""
        key = self._producers.take_key(message)
        if key is None:
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        new_key: MessageKey | None = None
        if message.qos >= route.keep_qos:
            new_key = self._producers.new_key(connection, producer, key)
            if new_key is None:
                if message.qos == 0:
                    return Reason.SUCCESS
                connection.record(message, message.qos, packet_id, False, False).is_delivered = False
                return -1
        packet = Packet(connection, message, message.qos, packet_id, new_key)
        return self._publish(connection, message, route, payload_format, packet)

    def _publish(self, connection: Connection, message: Message, route: Route, payload_format: int, packet: Packet) -> int:
        if payload_format and self._live.now.mqtt.check_payload_format and not _is_utf8(message.payload):
            self._statistics.dropped_payload_format += 1
            self._state.drop("payload_format", connection.client_id, message.topic)
            return Reason.PAYLOAD_FORMAT_INVALID
        if message.topic.startswith(b"$"):
            return self._publish_dollar(connection, message, packet)
        client = connection.describe() if self._hooks.publishes else None
        return self._pipeline.publish(message, connection.flow, connection.user_name, client, packet, route=route)

    def _publish_dollar(self, connection: Connection, message: Message, packet: Packet) -> int:
        if not message.topic.startswith(delayed.PREFIX):
            # $SYS, $LINK and the like are the broker's own; $share and $exclusive are forms of filters.
            self._statistics.dropped_reserved += 1
            self._state.drop("reserved", connection.client_id, message.topic)
            return Reason.NOT_AUTHORIZED
        parsed = delayed.parse(message.topic)
        if parsed is None or topic_error(parsed[1], self._live.now.mqtt.topic_levels_max) or parsed[1].startswith(b"$"):
            return Reason.TOPIC_NAME_INVALID
        delay_s, topic = parsed
        if not connection.may_publish(topic):
            self._state.counters.dropped_not_authorized += 1
            self._state.drop("not_authorized", connection.client_id, topic)
            return Reason.NOT_AUTHORIZED if self.deny(connection, topic) else -1
        inner = Message(topic, message.payload, message.qos, message.retain, message.publisher)
        if message.properties:
            expires_at = message.expires_at + delay_s if message.expires_at else 0.0
            inner.set_properties(message.properties, expires_at, message.expiry_offset)
        if not self._delayed.has_place(inner, delay_s) or len(inner.payload) > KEPT_BYTES_MAX:
            self._statistics.dropped_delayed_full += 1
            self._state.drop("delayed_full", connection.client_id, topic)
            return Reason.QUOTA_EXCEEDED
        self._statistics.delayed += 1
        on_commit, on_refused = self._delayed.keep(inner, delay_s, connection.user_name)
        pending = self._pipeline.record_packet(packet, inner, session_only=False, is_recorded=False)
        pending.is_delivered = False
        pending.on_commit, pending.on_refused = on_commit, on_refused
        return -1

    def deny(self, connection: Connection, topic: bytes) -> bool:
        """A PUBLISH without permission: MQTT 5 clients get a reason code; False if an MQTT 3 connection must be closed."""
        if connection.is_v5 or self._live.now.mqtt.deny_action == "ignore":
            return True
        connection.close(Reason.NOT_AUTHORIZED, "publishing without permission")
        return False


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
