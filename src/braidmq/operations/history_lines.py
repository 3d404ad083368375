"""Records of the log as lines of a response."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec import structs

from braidmq.base.errors import ProtocolViolation
from braidmq.control import history as lines
from braidmq.lane.records.records import Record
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.properties import read_properties
from braidmq.mqtt.wire import write_varint


def record_line(shard: int, record: Record) -> lines.RecordLine:
    """The record with all its fields."""
    payload, encoding = _text(record.payload)
    return lines.RecordLine(
        shard=shard,
        timestamp=record.timestamp,
        topic=record.topic.decode(),
        payload=payload,
        encoding=encoding,
        qos=record.qos,
        retain=record.retain,
        client_id=record.publisher,
        published_at=record.published_at,
        expires_at=record.expires_at or None,
        properties=_properties(record.properties) if record.properties else None,
    )


def _text(payload: bytes) -> tuple[str, lines.Encoding]:
    try:
        return payload.decode(), "utf-8"
    except UnicodeDecodeError:
        return b64encode(payload).decode(), "base64"


def _properties(encoded: bytes) -> dict[str, Any]:
    """The MQTT 5 properties of a message, by name; binary data as base64."""
    try:
        properties, _ = read_properties(write_varint(len(encoded)) + encoded, 0, PacketType.PUBLISH)
    except ProtocolViolation:  # they were checked on arrival; the record is useful without them
        return {"unreadable": b64encode(encoded).decode()}
    found = structs.asdict(properties)
    # msgspec encodes bytes as base64 in JSON.
    return {name: value for name, value in found.items() if value not in (None, ())}
