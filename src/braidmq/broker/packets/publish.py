"""The slow path of a PUBLISH: retained messages, ``$`` topics, hooks, payload checks, rejections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.messages import delayed
from braidmq.broker.messages.hooks import Client
from braidmq.broker.messages.pipeline import KEPT_BYTES_MAX, Packet
from braidmq.broker.messages.producers import NewKey
from braidmq.lane.path.message import Message
from braidmq.lane.path.recorder import Producer
from braidmq.lane.path.routes import Route
from braidmq.lane.path.scanner import topic_error
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection


def publish(connection: Connection, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
    """Publish on the slow path; returns the reason code for the acknowledgement, or -1 if it is sent elsewhere."""
    if connection.producer is not None and connection.producer.is_keyed:
        code = _publish_keyed(connection, connection.producer, message, route, payload_format, packet_id)
    else:
        code = _publish(message, route, payload_format, Packet(connection, message, message.qos, packet_id, None))
    if code >= 0x80 and code != Reason.NOT_AUTHORIZED and message.qos and not connection.is_v5:
        # MQTT 3 has no way to say no, and an acknowledgement would say that the message is safe.
        connection.close(code, "a message was refused")
        return -1
    return code


def _publish_keyed(
    connection: Connection, producer: Producer, message: Message, route: Route, payload_format: int, packet_id: int
) -> int:
    """Publish a message with a key, unless it is recorded already: then it is acknowledged when that record is on disk."""
    producers = connection.broker.producers
    key = producers.take_key(message)
    if key is None:
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR
    new_key: NewKey | None = None
    if message.qos >= route.keep_qos:
        new_key = producers.new_key(connection, producer, key)
        if new_key is None:
            if message.qos == 0:
                return Reason.SUCCESS
            connection.record(message, message.qos, packet_id, False, False).is_delivered = False
            return -1
    return _publish(message, route, payload_format, Packet(connection, message, message.qos, packet_id, new_key))


def _publish(message: Message, route: Route, payload_format: int, packet: Packet) -> int:
    connection = packet.connection
    broker = connection.broker
    if payload_format and broker.settings.mqtt.check_payload_format and not _is_utf8(message.payload):
        broker.statistics.dropped_payload_format += 1
        broker.state.drop("payload_format", connection.client_id, message.topic)
        return Reason.PAYLOAD_FORMAT_INVALID
    if message.topic.startswith(b"$"):
        return _publish_dollar(message, packet)
    return broker.publisher.publish(message, connection.flow, connection.user_name, _client(connection), packet, route=route)


def _client(connection: Connection) -> Client | None:
    return connection.describe() if connection.broker.hooks.publishes else None


def _publish_dollar(message: Message, packet: Packet) -> int:
    connection = packet.connection
    broker = connection.broker
    if not message.topic.startswith(delayed.PREFIX):
        # $SYS, $LINK and the like are the broker's own; $share and $exclusive are forms of filters.
        broker.statistics.dropped_reserved += 1
        broker.state.drop("reserved", connection.client_id, message.topic)
        return Reason.NOT_AUTHORIZED
    parsed = delayed.parse(message.topic)
    if parsed is None or topic_error(parsed[1], broker.settings.mqtt.topic_levels_max) or parsed[1].startswith(b"$"):
        return Reason.TOPIC_NAME_INVALID
    delay_s, topic = parsed
    if not connection.may_publish(topic):
        broker.state.counters.dropped_not_authorized += 1
        broker.state.drop("not_authorized", connection.client_id, topic)
        return Reason.NOT_AUTHORIZED if deny(connection, topic) else -1
    inner = Message(topic, message.payload, message.qos, message.retain, message.publisher)
    if message.properties:
        expires_at = message.expires_at + delay_s if message.expires_at else 0.0
        inner.set_properties(message.properties, expires_at, message.expiry_offset)
    if not broker.delayed.has_place(inner, delay_s) or len(inner.payload) > KEPT_BYTES_MAX:
        broker.statistics.dropped_delayed_full += 1
        broker.state.drop("delayed_full", connection.client_id, topic)
        return Reason.QUOTA_EXCEEDED
    broker.statistics.delayed += 1
    on_commit, on_refused = broker.delayed.keep(inner, delay_s, connection.user_name)
    pending = broker.publisher.record_packet(packet, inner, session_only=False, is_recorded=False)
    pending.is_delivered = False
    pending.on_commit, pending.on_refused = on_commit, on_refused
    return -1


def deny(connection: Connection, topic: bytes) -> bool:
    """A PUBLISH without permission: MQTT 5 is told by the acknowledgement; False if MQTT 3 is to be cut off for it."""
    if connection.is_v5 or connection.broker.settings.mqtt.deny_action == "ignore":
        return True
    connection.close(Reason.NOT_AUTHORIZED, "publishing without permission")
    return False


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
