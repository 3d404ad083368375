"""Edge cases of the rules: the operator, a full disk, hooks and restarts together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.broker.messages.hooks import Hook
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Publish
from tests.durability.rules.retained import retained
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


@pytest.fixture
def frail() -> Iterator[World]:
    with World() as world:
        yield world


def test_a_retained_message_that_the_operator_removed_on_a_full_disk_does_not_come_back(frail: World) -> None:
    frail.connect("p").publish("t", b"old", retain=True)
    frail.fill_disk()
    assert frail.broker.pipeline.forget_retained(b"t")
    frail.settle()

    frail.free_disk()
    frail.tick(2)
    frail.crash(loses_power=True)

    assert retained(frail, "s") == []


@pytest.mark.parametrize("last", [b"new", b""])
def test_a_retained_qos_0_message_on_a_full_disk_is_the_same_after_a_restart(frail: World, last: bytes) -> None:
    publisher = frail.connect("p")
    publisher.publish("t", b"old", retain=True)
    frail.fill_disk()
    publisher.send(Publish("t", last, 0, True))
    frail.settle()
    frail.free_disk()
    frail.tick(2)
    before = retained(frail, "s")
    frail.crash(loses_power=True)
    assert retained(frail, "s") == before


def test_a_delayed_message_published_on_a_full_disk_is_not_published_again_after_a_restart(frail: World) -> None:
    subscriber = frail.connect("s", expiry=0)
    subscriber.subscribe("t")
    frail.connect("p").publish("$delayed/5/t", b"m", 0)
    frail.settle()
    frail.fill_disk()
    frail.wait(10)
    assert payloads(subscriber.acknowledge_all()) == [b"m"]
    frail.free_disk()
    frail.tick(2)
    frail.crash(loses_power=True)
    subscriber = frail.connect("s", expiry=0)
    subscriber.subscribe("t")
    frail.wait(10)
    assert payloads(subscriber.acknowledge_all()) == []


class Constant(Hook):
    def __init__(self) -> None:
        self.message = Message(b"t", b"hidden", 1, False, "")

    def deliver(self, message: Message, client_id: str) -> Message:
        return self.message


def test_a_hook_that_gives_the_same_message_each_time_leaves_cursors_right() -> None:
    with World() as world:
        subscriber = world.connect("s")
        subscriber.subscribe("t", qos=1)
        world.broker.hooks.add(Constant())
        publisher = world.connect("p")
        publisher.publish("t", b"1")
        publisher.publish("t", b"2")
        assert payloads(subscriber.receive()) == [b"hidden"] * 2
        world.tick(2)
        (stored,) = [each for each in world.broker.turn_writer.storage.sessions.load() if each.session.client_id == "s"]
        assert len({each.timestamp for each in stored.cursor.inflight}) == 2


def test_an_inflight_retained_message_is_not_resent_after_access_is_withdrawn_and_unsubscribe(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite a/#\ntopic readwrite b/#\n")
    with World(access={"acl_file": str(acl)}) as world:
        world.connect("p", expiry=0).publish("b/1", b"m", 1, retain=True)
        subscriber = world.connect("s")
        subscriber.subscribe("a/#")
        assert payloads(subscriber.subscribe("b/#")) == [b"m"]
        subscriber.unsubscribe("b/#")
        world.tick(2)
        acl.write_text("topic readwrite a/#\n")
        world.crash()
        assert payloads(world.connect("s").receive()) == []


def test_an_inflight_system_topic_is_resent_after_unsubscribe() -> None:
    with World(history={"topics": ["$SYS/#"], "min_qos": 0}) as world:
        subscriber = world.connect("s")
        subscriber.subscribe("$SYS/#", "a")
        world.broker.pipeline.publish(Message(b"$SYS/x", b"1", 2, False, ""))
        assert payloads(subscriber.receive()) == [b"1"]
        subscriber.unsubscribe("$SYS/#")
        world.crash()
        assert payloads(world.connect("s").receive()) == [b"1"]
