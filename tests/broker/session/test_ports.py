"""The broker uses the ports that it is given, which a cluster replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.local import LocalExclusiveTopics, LocalRegistry
from braidmq.broker.session.ports import NodePorts, RetainedReads, Routes
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from braidmq.storage.fences import FenceTable
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


class NotedRoutes:
    """Notes which filters come and go, and passes them on."""

    def __init__(self, local: Routes) -> None:
        self._local = local
        self.noted: list[tuple[str, bytes]] = []
        self.waiting: list[Callable[[], None]] | None = None  # callbacks, while other nodes do not know the routes

    @property
    def count(self) -> int:
        return self._local.count

    def add(self, subscription: Subscription) -> bool:
        self.noted.append(("add", subscription.topic_filter))
        return self._local.add(subscription)

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        self.noted.append(("remove", topic_filter))
        return self._local.remove(topic_filter, flow)

    def is_known(self) -> bool:
        return self.waiting is None

    def when_known(self, callback: Callable[[], None]) -> None:
        if self.waiting is None:
            callback()
        else:
            self.waiting.append(callback)


class NotedRetained:
    """Notes which filters are asked for, and passes them on."""

    def __init__(self, local: RetainedReads) -> None:
        self._local = local
        self.asked: list[bytes] = []

    def may_match(self, topic_filter: bytes) -> bool:
        return self._local.may_match(topic_filter)

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        self.asked.append(topic_filter)
        return self._local.match(topic_filter)


def test_subscriptions_use_the_routes_given_to_the_broker() -> None:
    made: list[NotedRoutes] = []

    def extend(local: Routes) -> Routes:
        made.append(NotedRoutes(local))
        return made[0]

    with World(ports=NodePorts(extend_routes=extend)) as world:
        client = world.connect("c", expiry=0)
        client.subscribe("a/+", qos=0)
        world.connect("p", expiry=0).publish("a/b", b"m", qos=0)
        assert payloads(client.receive()) == [b"m"]
        client.unsubscribe("a/+")

    assert made[0].noted == [("add", b"a/+"), ("remove", b"a/+")]


@pytest.mark.parametrize("expiry", [0, 60], ids=["memory", "durable"])
def test_suback_waits_until_every_publisher_reaches_the_subscription(expiry: int) -> None:
    made: list[NotedRoutes] = []

    def extend(local: Routes) -> Routes:
        made.append(NotedRoutes(local))
        return made[0]

    with World(ports=NodePorts(extend_routes=extend)) as world:
        client = world.connect("c", expiry=expiry)
        waiting: list[Callable[[], None]] = []
        made[0].waiting = waiting
        client.send(Subscribe(1, [SubscribeOption("a/+", 1)]))
        world.settle()
        assert client.receive() == []

        made[0].waiting = None
        for callback in waiting:
            callback()
        world.settle()

        assert [type(packet) for packet in client.receive()] == [Suback]


def test_retained_messages_come_from_the_store_given_to_the_broker() -> None:
    made: list[NotedRetained] = []

    def extend(local: RetainedReads) -> RetainedReads:
        made.append(NotedRetained(local))
        return made[0]

    with World(ports=NodePorts(extend_retained=extend)) as world:
        world.connect("p", expiry=0).publish("a/b", b"m", qos=0, retain=True)

        assert payloads(world.connect("c", expiry=0).subscribe("a/+", qos=0)) == [b"m"]

    assert made[0].asked == [b"a/+"]


def test_client_ids_and_exclusive_topics_are_claimed_at_the_ports_given_to_the_broker() -> None:
    fences, exclusive = FenceTable(), LocalExclusiveTopics()

    with World(ports=NodePorts(registry=LocalRegistry(fences), exclusive=exclusive)) as world:
        world.connect("c", expiry=0).subscribe("$exclusive/t")

        assert fences.guard("c") > 0
        assert not exclusive.is_free(b"t", "other")
        assert len(world.log.fences) == 0
