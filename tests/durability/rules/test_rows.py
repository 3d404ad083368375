"""Rows of sessions and retained messages: what a restart finds is what clients were told last."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from braidmq.broker import broker as broker_module
from braidmq.broker.connection.deadlines import TICK_S
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from braidmq.mqtt.properties import Properties
from tests.durability.rules.retained import retained
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


# Retained messages


@pytest.mark.parametrize("history", [{}, {"topics": []}], ids=["recorded", "not recorded"])
def test_a_message_that_expires_does_not_take_the_row_of_the_next_one_with_it(
    monkeypatch: pytest.MonkeyPatch, history: dict[str, object]
) -> None:
    with World(history=history) as world:
        publisher = world.connect("p")
        publisher.send(Publish("t", b"old", 1, True, packet_id=1, properties=Properties(message_expiry_interval=60)))
        assert publisher.expect(Puback).packet_id == 1
        publisher.send(Publish("t", b"new", 1, True, packet_id=2))
        world.turn(3)
        assert world.is_writing

        monkeypatch.setattr(broker_module, "monotonic", lambda: time.monotonic() + 100)
        world.loop.now += TICK_S
        world.turn(3)  # the old message is gone before the new one is committed
        assert len(world.broker.retained) == 0
        assert publisher.expect(Puback).packet_id == 2
        monkeypatch.undo()

        assert retained(world, "before") == [b"new"]
        world.crash(loses_power=True)
        assert retained(world, "after") == [b"new"]


@pytest.mark.parametrize("last", [b"B", b""], ids=["replaced", "removed"])
@pytest.mark.parametrize("history", [{}, {"topics": []}], ids=["recorded", "not recorded"])
def test_a_retained_qos_0_message_does_not_overtake_one_that_waits_for_the_disk(last: bytes, history: dict[str, object]) -> None:
    with World(history=history) as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("t", qos=0)
        publisher = world.connect("p")
        publisher.send(Publish("t", b"A", 1, True, packet_id=1), Publish("t", last, 0, True))
        assert publisher.expect(Puback).packet_id == 1

        assert payloads(subscriber.receive()) == [b"A", last]
        expected = [last] if last else []
        assert retained(world, "before") == expected
        world.crash(loses_power=True)
        assert retained(world, "after") == expected


def test_a_topic_is_retained_as_before_once_nothing_of_it_waits_for_the_disk(world: World) -> None:
    publisher = world.connect("p")
    world.fill_disk()
    publisher.send(Publish("t", b"refused", 1, True, packet_id=1))
    assert publisher.expect(Puback).reason >= 0x80
    world.free_disk()
    subscriber = world.connect("s", expiry=0)
    subscriber.subscribe("t", qos=0)

    publisher.send(Publish("t", b"at once", 0, True))

    assert not world.broker.pipeline.is_retaining(b"t")
    assert payloads(subscriber.receive()) == [b"at once"]
    assert retained(world, "new") == [b"at once"]


def test_a_recorded_message_of_the_brokers_own_topics_is_retained() -> None:
    with World(history={"topics": ["$SYS/#"], "min_qos": 0}) as world:
        world.broker.pipeline.publish(Message(b"$SYS/version", b"1", 0, True, ""))
        world.settle()

        assert payloads(world.connect("s").subscribe("$SYS/version")) == [b"1"]


# Removals that were refused


def stored_sessions(world: World) -> list[str]:
    """Client ids of the sessions on disk, with their wills' topics if they have one."""
    sessions = world.broker.turn_writer.storage.sessions.load()
    return [each.session.client_id if each.will is None else f"{each.session.client_id} {each.will.topic}" for each in sessions]


@pytest.mark.parametrize("passes", [False, True], ids=["at once", "after a while"])
def test_a_session_whose_removal_was_rejected_does_not_mix_with_its_successor(world: World, passes: bool) -> None:
    device = world.connect("device")
    device.subscribe("old/#")
    device.send(Publish("t", b"1", 2, packet_id=7))
    assert device.expect(Pubrec).packet_id == 7
    device.cut()
    world.settle()

    world.fill_disk()
    world.connect("device", clean=True, expiry=0).disconnect()
    assert stored_sessions(world) == ["device"], "the removal was not refused, so nothing is shown here"
    world.free_disk()
    if passes:
        world.tick(2)
    assert not world.connect("device", clean=True).connack.session_present
    world.connect("s").subscribe("t")
    world.crash(loses_power=True)

    device = world.connect("device")
    assert device.connack.session_present
    world.connect("p").publish("old/1", b"unwanted")
    assert device.receive() == []
    device.send(Publish("t", b"2", 2, packet_id=7))
    assert device.expect(Pubrec).packet_id == 7
    device.send(Pubrel(7))
    assert device.expect(Pubcomp) == Pubcomp(7)
    assert payloads(world.connect("s").acknowledge_all()) == [b"2"]


def test_a_session_that_ended_on_a_full_disk_is_gone_after_a_restart(world: World) -> None:
    world.connect("device").disconnect()
    world.fill_disk()
    world.connect("device", clean=True, expiry=0).disconnect()
    assert stored_sessions(world) == ["device"], "the removal was not refused, so nothing is shown here"

    world.free_disk()
    world.tick(2)
    world.crash(loses_power=True)

    assert world.broker.sessions.get("device") is None


def test_a_will_whose_removal_was_refused_is_not_published_again_after_a_restart(world: World) -> None:
    will = Will("w", b"gone", 0, False, Properties(will_delay_interval=5))
    watcher = world.connect("watcher", expiry=0)
    watcher.subscribe("w", qos=0)
    world.connect("device", will=will).cut()
    world.settle()

    world.fill_disk()
    world.wait(10)
    assert payloads(watcher.receive()) == [b"gone"]
    assert stored_sessions(world) == ["device w"], "the removal was not refused, so nothing is shown here"
    world.free_disk()
    world.tick(2)
    world.crash(loses_power=True)

    watcher = world.connect("watcher", expiry=0)
    watcher.subscribe("w", qos=0)
    world.wait(10)
    assert watcher.receive() == []
