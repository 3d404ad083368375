"""R8, R20: events of clients that come and go, over takeovers, nodes that stand still or die, and homes that restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.hooks import Client, Hook
from braidmq.mqtt.packets import Connack, Publish
from tests.support.simulator.many_cores import ManyCores, SimCore, SimNode
from tests.support.simulator.peer import Peer

TAKEOVER_WAIT_S = 2.0


class Watched:
    """A cluster of two cores with two nodes, and a subscriber at a third node whose home is the other core."""

    def __init__(self, cluster: ManyCores) -> None:
        self.cluster = cluster
        self.one, self.two, third = (cluster.node(name) for name in ("one", "two", "three"))
        self.home, other = cluster.cores.values()
        self.client_id = cluster.client_of(self.home)
        self.watcher: Peer = third.client(cluster.client_of(other, "w"), expiry=0)
        self.watcher.subscribe("$SYS/brokers/+/clients/#", qos=0)

    def connect(self, node: SimNode) -> Peer:
        return node.client(self.client_id, expiry=0)

    def seen(self) -> list[tuple[str, dict[str, Any]]]:
        """The topics of events so far, from the node on, and what they say."""
        events = [packet for packet in self.watcher.receive() if isinstance(packet, Publish)]
        return [(event.topic.removeprefix("$SYS/brokers/"), json.loads(event.payload)) for event in events]

    def topic(self, node: str, what: str) -> str:
        return f"{node}/clients/{self.client_id}/{what}"


@pytest.fixture
def watched() -> Iterator[Watched]:
    with ManyCores(cores=2) as cluster:
        yield Watched(cluster)


def assert_in_order(events: list[tuple[str, dict[str, Any]]]) -> None:
    """Versions rise, and no client leaves later than it comes back."""
    versions: list[list[int]] = [body["version"] for _, body in events]
    assert versions == sorted(versions)
    times: list[int] = [body["connected_at"] if "connected_at" in body else body["disconnected_at"] for _, body in events]
    assert times == sorted(times)


def test_events_name_the_node_and_the_connection(watched: Watched) -> None:
    client = watched.connect(watched.one)
    client.disconnect()

    events = watched.seen()

    assert [topic for topic, _ in events] == [watched.topic("one", "connected"), watched.topic("one", "disconnected")]
    connected, disconnected = (body for _, body in events)
    assert connected["version"] == disconnected["version"]
    assert connected["clientid"] == watched.client_id
    assert connected["ipaddress"] == "127.0.0.1"
    assert connected["sockport"] == 40_000
    assert disconnected["reason"] == "success"
    assert_in_order(events)


def test_r8_a_takeover_between_nodes_is_told_in_the_order_of_the_decisions(watched: Watched) -> None:
    watched.connect(watched.one)
    watched.connect(watched.two)
    watched.connect(watched.one)

    events = watched.seen()

    assert [topic for topic, _ in events] == [
        watched.topic("one", "connected"),
        watched.topic("one", "disconnected"),
        watched.topic("two", "connected"),
        watched.topic("two", "disconnected"),
        watched.topic("one", "connected"),
    ]
    assert events[1][1]["reason"] == "session_taken_over"
    assert_in_order(events)
    assert events[0][1]["version"] < events[2][1]["version"] < events[4][1]["version"]


def test_r8_a_connection_on_a_node_that_stands_still_is_over_before_the_next_one_begins(watched: Watched) -> None:
    watched.connect(watched.one)
    watched.one.freeze(watched.home)
    newer = watched.two.open()
    newer.request_connect(watched.client_id, expiry=0)
    watched.cluster.settle()
    watched.cluster.wait(TAKEOVER_WAIT_S)
    assert newer.expect(Connack).reason == 0

    events = watched.seen()

    assert [topic for topic, _ in events] == [
        watched.topic("one", "connected"),
        watched.topic("one", "disconnected"),
        watched.topic("two", "connected"),
    ]
    assert_in_order(events)

    watched.one.thaw(watched.home)
    watched.cluster.settle()

    for topic, body in watched.seen():
        assert topic == watched.topic("one", "disconnected"), "it says so itself, late"
        assert body["version"] < events[-1][1]["version"], "and its version shows that"


def test_r8_a_connection_that_is_fenced_is_over_though_its_successor_is_never_announced(watched: Watched) -> None:
    watched.connect(watched.one)
    watched.seen()
    watched.one.freeze(watched.home)
    watched.two.open().request_connect(watched.client_id, expiry=0)
    watched.cluster.settle()
    watched.two.freeze(watched.home)

    watched.cluster.wait(TAKEOVER_WAIT_S)

    ((topic, body),) = watched.seen()
    assert topic == watched.topic("one", "disconnected")
    assert body["reason"] == "session_taken_over"


def test_r20_an_event_that_the_home_has_not_answered_outlives_its_restart(watched: Watched) -> None:
    client = watched.connect(watched.one)
    connected = watched.seen()
    watched.home.die()
    watched.cluster.settle()
    client.disconnect()
    watched.cluster.wait(1.0)
    assert watched.seen() == []

    watched.cluster.restart(watched.home)
    watched.cluster.wait(1.0)

    events = [event for event in watched.seen() if event[0] == watched.topic("one", "disconnected")]
    assert events
    assert events[0][1]["version"] == connected[0][1]["version"]
    assert events[0][1]["reason"] == "success"
    assert_in_order([*connected, *events])


def test_r20_an_event_on_its_way_to_a_home_that_dies_is_told_after_its_restart(watched: Watched) -> None:
    client = watched.connect(watched.one)
    watched.seen()
    watched.one.freeze(watched.home)  # the release and the event are in a block that is not read
    client.disconnect()
    watched.cluster.settle()
    watched.home.die()

    watched.cluster.restart(watched.home)
    watched.cluster.wait(1.0)

    assert watched.topic("one", "disconnected") in [topic for topic, _ in watched.seen()]


def test_r20_the_home_tells_of_the_clients_of_a_dead_node(watched: Watched) -> None:
    watched.connect(watched.one)
    watched.seen()

    for core in watched.cluster.cores.values():
        watched.one.cut(core)
        core.home.bury(watched.one.member)
    watched.cluster.settle()

    ((topic, body),) = watched.seen()
    assert topic == watched.topic("one", "disconnected")
    assert body["reason"] == "unspecified_error"
    assert body["ipaddress"] == "127.0.0.1"


def test_r20_a_home_that_has_restarted_tells_of_a_dead_node_what_it_was_declared(watched: Watched) -> None:
    watched.connect(watched.one)
    watched.seen()
    watched.home.die()
    watched.cluster.restart(watched.home)
    watched.cluster.wait(1.0)
    watched.seen()

    for core in watched.cluster.cores.values():
        watched.one.cut(core)
        core.home.bury(watched.one.member)
    watched.cluster.settle()

    ((topic, body),) = watched.seen()
    assert topic == watched.topic("one", "disconnected")
    assert body["clientid"] == watched.client_id


class Follower(Hook):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, list[int], int]] = []

    def client_online(self, client: Client, node: str, version: list[int]) -> None:
        self.told.append(("online", client.client_id, node, version, 0))

    def client_offline(self, client: Client, node: str, version: list[int], reason: int) -> None:
        self.told.append(("offline", client.client_id, node, version, reason))


def followed(core: SimCore) -> Follower:
    follower = Follower()
    core.broker.hooks.add(follower)
    return follower


def test_hooks_of_the_home_are_told_though_no_client_has_subscribed() -> None:
    with ManyCores(cores=2) as cluster:
        home, other = cluster.cores.values()
        follower, elsewhere = followed(home), followed(other)
        one = cluster.node("one")
        client_id = cluster.client_of(home)

        one.client(client_id, expiry=0).disconnect()

        (what, who, node, version, _), (what_2, _, _, version_2, reason) = follower.told
        assert (what, who, node) == ("online", client_id, "one")
        assert (what_2, version_2, reason) == ("offline", version, 0)
        assert elsewhere.told == []
