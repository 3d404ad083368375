"""``$SYS`` in a cluster: a client sees the figures of its own node, and what each node says under its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Publish
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer

INTERVAL_S = 10.0


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld(sys={"interval": f"{INTERVAL_S:.0f}s"}) as world:
        yield world


def places(world: ClusterWorld) -> dict[str, Replicant | ClusterWorld]:
    """The core and two replicants."""
    return {"core": world, "one": world.replicant("one"), "two": world.replicant("two")}


def topics(client: Peer) -> list[str]:
    return [packet.topic for packet in client.receive() if isinstance(packet, Publish)]


@pytest.mark.parametrize("topic_filter", ["$SYS/broker/#", "$SYS/#", "$SYS/broker/uptime"])
@pytest.mark.parametrize("to", ["core", "one"])
def test_a_client_gets_the_figures_of_its_own_node_only(world: ClusterWorld, to: str, topic_filter: str) -> None:
    nodes = places(world)
    watcher = nodes[to].client("w", expiry=0)
    watcher.subscribe(topic_filter, qos=0)

    for node in nodes.values():
        node.broker.sys_topics.start()

    assert topics(watcher).count("$SYS/broker/uptime") == 1


@pytest.mark.parametrize("to", ["core", "one", "two"])
def test_figures_under_the_names_of_nodes_reach_every_node(world: ClusterWorld, to: str) -> None:
    nodes = places(world)
    for node in nodes.values():  # all of them have the core's settings, and so its name
        node.broker.sys_topics.start()
    watcher = nodes[to].client("w", expiry=0)
    retained = watcher.subscribe("$SYS/brokers/+/sysdescr", qos=0)
    assert len(retained) == 1, "that of its own node"

    world.wait(INTERVAL_S)

    assert len(topics(watcher)) == 2, "those of the other nodes"


@pytest.mark.parametrize("to", ["core", "two"])
def test_presence_is_seen_on_nodes_where_the_client_is_not(world: ClusterWorld, to: str) -> None:
    nodes = places(world)
    watcher = nodes[to].client("w", expiry=0)
    watcher.subscribe("$SYS/brokers/+/clients/#", qos=0)

    client = nodes["one"].client("sensor", expiry=0)
    client.disconnect()

    assert [topic.split("/", 4)[4] for topic in topics(watcher)] == ["sensor/connected", "sensor/disconnected"]
