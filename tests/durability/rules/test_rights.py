"""Rights that are withdrawn while the node is down hold from its start on."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.mqtt.packets import Publish, Pubrel
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    """An ACL file that allows reading and writing below a/ and b/."""
    file = tmp_path / "acl"
    file.write_text("topic readwrite a/#\ntopic readwrite b/#\n")
    return file


def withdraw_reading_b(acl: Path) -> None:
    acl.write_text("topic readwrite a/#\ntopic write b/#\n")


def test_a_session_gets_nothing_by_a_subscription_that_it_may_no_longer_have(acl: Path) -> None:
    with World(access={"acl_file": str(acl)}) as world:
        subscriber = world.connect("s")
        subscriber.subscribe("a/#", "b/#", qos=1)
        subscriber.disconnect()
        publisher = world.connect("p", expiry=0)
        publisher.publish("a/1", b"a/1")
        publisher.publish("b/1", b"b/1")

        withdraw_reading_b(acl)
        world.restart()
        subscriber = world.connect("s")

        assert subscriber.connack.session_present
        assert payloads(subscriber.acknowledge_all()) == [b"a/1"]
        publisher = world.connect("p", expiry=0)
        publisher.publish("b/2", b"b/2")
        publisher.publish("a/2", b"a/2")
        assert payloads(subscriber.acknowledge_all()) == [b"a/2"]


def test_the_withdrawn_subscription_is_gone_from_the_disk_too(acl: Path) -> None:
    with World(access={"acl_file": str(acl)}) as world:
        world.connect("s").subscribe("a/#", "b/#", qos=1)
        withdraw_reading_b(acl)
        world.crash()
        world.tick(2)

        (stored,) = world.broker.turn_writer.storage.sessions.load()

        assert [each.written for each in stored.subscriptions] == ["a/#"]


@pytest.mark.parametrize("unsubscribes", [False, True], ids=["subscribed", "unsubscribed before"])
def test_inflight_messages_that_may_no_longer_be_read_are_not_resent(acl: Path, unsubscribes: bool) -> None:
    with World(access={"acl_file": str(acl)}) as world:
        subscriber = world.connect("s")
        subscriber.subscribe("a/#", "b/#")
        publisher = world.connect("p", expiry=0)
        publisher.publish("b/1", b"once", 1)
        publisher.publish("b/2", b"exactly once", 2)
        once, exactly_once = subscriber.receive()
        assert isinstance(once, Publish)
        assert isinstance(exactly_once, Publish)
        assert exactly_once.packet_id is not None
        if unsubscribes:
            subscriber.unsubscribe("b/#")
        world.tick(2)

        withdraw_reading_b(acl)
        world.crash(loses_power=True)
        subscriber = world.connect("s")

        assert subscriber.receive() == [Pubrel(exactly_once.packet_id)], "the id must not come back with another message"
        world.connect("p", expiry=0).publish("a/1", b"a/1", 2)
        (publish,) = subscriber.receive()
        assert isinstance(publish, Publish)
        assert publish.payload == b"a/1"
        assert publish.packet_id != exactly_once.packet_id
