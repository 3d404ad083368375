"""Deliveries in flight to an absent client as a few bytes each, when their messages are in the log alone."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, cast

from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.routing.subscription import Subscription

if TYPE_CHECKING:
    from braidmq.lane.flows.flow import Flow

# Stands for the subscription of a message in flight when the rows or the bytes do not say which one it was.
UNKNOWN = Subscription(cast("Flow", None), b"#", 2)
_PACKED = Struct("<HBIq")  # packet id, flags, shard and timestamp of a delivery
PACKED_BYTES = _PACKED.size  # that a delivery takes then


def pack_deliveries(inflight: dict[int, Delivery]) -> bytes | None:
    """The deliveries by packet id as bytes; None unless each of them is in the log alone, or released.

    Which subscription it was for is not kept: it is looked for when the message is read, as after a restart.
    """
    packed = bytearray()
    for packet_id, delivery in inflight.items():
        if delivery.message is not None or delivery.subscription.group is not None or not delivery.is_ready:
            return None
        flags = delivery.qos | (4 if delivery.retain else 0) | (8 if delivery.is_released else 0)
        packed += _PACKED.pack(packet_id, flags | (16 if delivery.is_sent else 0), delivery.shard, delivery.timestamp)
    return bytes(packed)


def unpack_deliveries(packed: bytes) -> list[tuple[int, Delivery]]:
    """Deliveries by packet id, as ``pack_deliveries`` wrote them."""
    found: list[tuple[int, Delivery]] = []
    for packet_id, flags, shard, timestamp in _PACKED.iter_unpack(packed):
        delivery = Delivery(None, UNKNOWN, flags & 3, bool(flags & 4))
        delivery.is_released = bool(flags & 8)
        delivery.is_sent = bool(flags & 16)
        delivery.shard = shard
        delivery.timestamp = timestamp
        found.append((packet_id, delivery))
    return found
