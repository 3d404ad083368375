"""A client of a ``World`` that numbers its messages, or gives them keys."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from braidmq.broker.broker import Broker
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Packet, Puback, Publish, Pubrec
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import World


def check_of(topic: str, payload: bytes) -> str:
    """The check value of a message, as the documentation says it."""
    return f"{zlib.crc32(topic.encode() + payload):08x}"


def request(peer: Peer, client_id: str, base: int = 0, *, clean: bool = True, expiry: int = 0, **more: str) -> None:
    """CONNECT as a producer; ``more`` are user properties, ``_`` for ``-``."""
    named = {"producer_sequence": str(base), **more}
    user_properties = tuple((name.replace("_", "-"), value) for name, value in named.items())
    properties = Properties(session_expiry_interval=expiry or None, user_properties=user_properties)
    peer.client_id = client_id
    peer.send(Connect(client_id, MQTT5, clean, properties=properties))


def connect(world: World, client_id: str = "p", base: int = 0, *, node: Broker | None = None, **more: object) -> Peer:
    """A producer that is connected to this node or to the world's first one."""
    peer = world.open(node=node)
    request(peer, client_id, base, **more)  # type: ignore[arg-type]
    connack = peer.expect(Connack)
    assert connack.reason == 0, connack
    peer.connack = connack
    return peer


def told(peer: Peer) -> dict[str, str]:
    """The user properties of the CONNACK."""
    return dict(peer.connack.properties.user_properties)


def sequence(peer: Peer) -> int:
    """Where the broker says that the producer is."""
    return int(told(peer)["producer-sequence"])


def publishes(
    payloads: Iterable[bytes], qos: int = 1, topic: str = "t", keys: Iterable[str] | None = None, first_id: int = 1
) -> list[Packet]:
    """PUBLISH packets; keys are those of a producer with keys."""
    packets: list[Packet] = []
    given = list(payloads)
    for number, (payload, key) in enumerate(zip(given, keys or [""] * len(given), strict=True)):
        properties = Properties(user_properties=(("producer-key", key),)) if key else NO_PROPERTIES
        packets.append(Publish(topic, payload, qos, packet_id=first_id + number if qos else None, properties=properties))
    return packets


def answers(packets: list[Packet]) -> list[int]:
    """The reasons of PUBACK and PUBREC, in order; 0x10 counts as success."""
    assert all(isinstance(packet, Puback | Pubrec) for packet in packets), packets
    return [packet.reason if packet.reason != 0x10 else 0 for packet in packets]  # type: ignore[union-attr]


def recorded(world: World, topic_filter: str = "#") -> list[bytes]:
    """The payloads in the log, in order of time."""
    replay = world.log.replay([topic_filter], 0, with_session_only=True)
    found: list[bytes] = []
    while not replay.is_caught_up:
        found += [record.payload for _, record in replay.next(1000)]
    return found
