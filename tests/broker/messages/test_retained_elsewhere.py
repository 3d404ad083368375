"""Retained messages that other nodes keep: they are read in pages, and this node sends its own there."""

from __future__ import annotations

import pytest

from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.ports import NodePorts, RetainedReads
from braidmq.lane.path.message import Message
from tests.support.fakes.retained import PagedRetained, PagedSearch
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


class Elsewhere:
    """A node that keeps no retained messages."""

    def __init__(self) -> None:
        self.reads: list[PagedRetained] = []
        self.world = World(ports=NodePorts(extend_retained=self._extend, is_home=False))

    def _extend(self, local: RetainedReads) -> RetainedReads:
        self.reads.append(PagedRetained(local))
        return self.reads[0]

    @property
    def search(self) -> PagedSearch:
        """The last search that a subscription has begun."""
        return self.reads[-1].searches[-1]


def retained(topic: bytes, payload: bytes) -> Retained:
    return Retained(Message(topic, payload, 1, True, "p"), None, 1.0)


def test_a_subscription_waits_for_each_page_and_does_not_ask_meanwhile() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        client = world.connect("c", expiry=0)
        assert payloads(client.subscribe("a/+", qos=1)) == []
        search = elsewhere.search
        world.tick(10)
        asked = search.asked

        search.arrive([retained(b"a/1", b"one"), retained(b"a/2", b"two")], is_last=False)
        world.settle()
        first = payloads(client.receive())
        world.tick(10)
        search.arrive([retained(b"a/3", b"three")], is_last=True)
        world.settle()

        assert asked == 1, "a search that waits is left alone"
        assert first == [b"one", b"two"]
        assert payloads(client.receive()) == [b"three"]
        assert search.asked == 6, "two messages, no more yet; one message, the end"


def test_other_subscriptions_are_served_while_one_waits_for_its_page() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        client = world.connect("c", expiry=0)
        client.subscribe("a/+", qos=0)
        waiting = elsewhere.search

        world.connect("p", expiry=0).publish("a/x", b"live", qos=0)
        assert payloads(client.receive()) == [b"live"]
        waiting.arrive([retained(b"a/1", b"late")], is_last=True)
        world.settle()

        assert payloads(client.receive()) == [b"late"]


def test_a_search_goes_on_after_its_source_was_away() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        client = world.connect("c", expiry=0)
        client.subscribe("a", qos=0)
        search = elsewhere.search
        search.is_failing = True
        search.arrive([retained(b"a", b"m")], is_last=True)
        world.settle()
        assert payloads(client.receive()) == []
        asked = search.asked

        search.is_failing = False
        world.wait(1.0)

        assert asked == 2, "it is not asked again before a second has passed"
        assert payloads(client.receive()) == [b"m"]


def test_a_client_that_has_gone_is_not_served_when_its_page_arrives() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        client = world.connect("c", expiry=0)
        client.subscribe("a", qos=0)
        search = elsewhere.search
        client.disconnect()
        world.settle()

        search.arrive([retained(b"a", b"m")], is_last=True)
        world.settle()

        assert search.asked == 1


def test_a_node_that_is_not_home_sends_retained_messages_away_and_delivers_them_live() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("a", qos=0)
        publisher = world.connect("p", expiry=0)

        publisher.publish("a", b"kept", qos=0, retain=True)
        world.settle()

        assert payloads(subscriber.receive()) == [b"kept"]
        assert world.broker.retained.get(b"a") is None
        assert [each.message.payload for each in world.broker.turn_writer.storage.retained.load()] == [b"kept"]

        publisher.publish("a", b"", qos=0, retain=True)
        world.settle()

        left = [each.message.payload for each in world.broker.turn_writer.storage.retained.load()]
        assert left == [b""], "the home of the publisher is told, in the order of its messages"


@pytest.mark.parametrize("qos", [1, 2])
def test_no_row_of_a_retained_message_is_sent_beside_its_record(qos: int) -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("a", qos=0)

        world.connect("p", expiry=0).publish("a", b"kept", qos, retain=True)

        assert payloads(subscriber.receive()) == [b"kept"]
        assert list(world.broker.turn_writer.storage.retained.load()) == []
        assert world.broker.retained.get(b"a") is None


def test_a_node_that_is_not_home_keeps_its_own_topics() -> None:
    elsewhere = Elsewhere()
    with elsewhere.world as world:
        world.broker.pipeline.publish(Message(b"$SYS/x", b"own", 0, True, ""))

        assert payloads(world.connect("c", expiry=0).subscribe("$SYS/x", qos=0)) == [b"own"]
