"""What tests of retained messages with several cores have in common: one topic, its home, and what is on disk."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec
from tests.support.simulator.many_cores import ManyCores, SimCore
from tests.support.simulator.peer import Peer

ANSWER_S = 2.5  # after which a home that says nothing counts as away
INTENTS = (b"\xef\x02", b"\xef\x03")
TOPIC = "t"


def three_cores(cluster: ManyCores) -> tuple[SimCore, SimCore, SimCore]:
    """The home of ``TOPIC``, and the two others."""
    home = cluster.core_of(TOPIC)
    left, right = (core for core in cluster.cores.values() if core is not home)
    return home, left, right


def retain(client: Peer, payload: bytes, packet_id: int = 1, *, topic: str = TOPIC, qos: int = 1) -> None:
    """Send a PUBLISH and wait for nothing."""
    client.send(Publish(topic, payload, qos, True, False, packet_id if qos else None))


def acknowledged(client: Peer) -> list[int]:
    """The reason codes of all PUBACKs and PUBRECs since the last call."""
    return [packet.reason for packet in client.receive() if isinstance(packet, Puback | Pubrec)]


def set_clock(monkeypatch: pytest.MonkeyPatch, core: SimCore, ahead_s: int) -> None:
    """The log of a core has another time than those of the others."""
    now = core.log.now
    monkeypatch.setattr(core.log, "now", lambda: now() + ahead_s * 1_000_000)


def kept(core: SimCore, topic: str = TOPIC) -> bytes | None:
    """What a core has for a topic, in memory; it is the same on disk."""
    core.settle()
    held = core.broker.retained.get(topic.encode())
    stored = core.broker.turn_writer.storage.retained.read(topic.encode())
    whole = None if held is None else core.broker.pipeline.load_retained(held)
    payload = None if whole is None else whole.message.payload
    assert (stored.message.payload if stored is not None else b"") == (payload or b"")
    return payload


def intents(core: SimCore) -> int:
    """How many intent rows a core has on disk."""
    return sum(len(list(core.log.rows(shard, *INTENTS))) for shard in range(core.log.shards))


def seen(cluster: ManyCores, topic_filter: str = "#") -> set[tuple[bytes, ...]]:
    """What new subscribers on all nodes get, homed at all cores."""
    found = set()
    for number, node in enumerate(cluster.nodes):
        for core in cluster.cores.values():
            client = node.client(cluster.client_of(core, f"seen{number}-"), expiry=0)
            packets = client.subscribe(topic_filter, qos=1)
            assert all(packet.retain for packet in packets if isinstance(packet, Publish))
            found.add(tuple(packet.payload for packet in packets if isinstance(packet, Publish)))
            client.disconnect()
    return found
