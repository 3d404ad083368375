"""Delayed messages wait on disk: in memory are their times and where their rows are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.broker.messages import delayed
from braidmq.mqtt.packets import Puback, Publish
from tests.support.held import message_bytes
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World
from tests.support.simulator.world_through_node import each_kind

KIB = 1024


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def answer_to(sender: Peer, topic: str, payload: bytes) -> int:
    """The reason code that a QoS 1 message is answered with."""
    sender.send(Publish(topic, payload, 1, False, packet_id=999))
    return sender.expect(Puback).reason


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payloads_of_delayed_messages_are_not_in_memory(world: World, qos: int) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    before = message_bytes()

    for number in range(20):
        sender.publish("$delayed/5/t", b"%02d" % number + bytes(64 * KIB), qos)

    assert message_bytes() - before < 64 * KIB
    assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (20, 20 * (64 * KIB + len("00t")))
    world.wait(5.1)
    assert [each[:2] for each in payloads(receiver.acknowledge_all())] == [b"%02d" % number for number in range(20)]
    assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (0, 0)


def test_a_restart_does_not_load_the_payloads(world: World) -> None:
    for number in range(20):
        world.connect("sender").publish("$delayed/5/t", b"%02d" % number + bytes(64 * KIB))

    before = message_bytes()
    world.restart()

    assert message_bytes() - before < 64 * KIB
    assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (20, 20 * (64 * KIB + len("00t")))
    receiver = world.connect("receiver")
    receiver.subscribe("t")
    world.wait(5.1)
    assert [each[:2] for each in payloads(receiver.acknowledge_all())] == [b"%02d" % number for number in range(20)]


@each_kind
def test_a_message_beyond_the_bound_in_bytes_is_refused_and_counted(kind: type[World]) -> None:
    with kind(delayed={"bytes_max": 10 * KIB}) as world:
        sender = world.connect("sender")

        assert answer_to(sender, "$delayed/5/t", bytes(6 * KIB)) == 0
        assert answer_to(sender, "$delayed/5/t", bytes(6 * KIB)) == 0x97
        assert answer_to(sender, "$delayed/5/t", bytes(3 * KIB)) == 0
        assert world.broker.statistics.drops["delayed_full"] == 1

        world.wait(5.1)
        assert answer_to(sender, "$delayed/5/t", bytes(6 * KIB)) == 0, "what was published takes no place any more"


@each_kind
def test_messages_on_their_way_to_the_disk_count_for_the_bounds(kind: type[World]) -> None:
    with kind(delayed={"messages_max": 2}) as world:
        sender = world.connect("sender")

        sender.send(*(Publish("$delayed/5/t", b"x", 1, False, packet_id=number) for number in (1, 2, 3)))

        answers = [packet for packet in sender.receive() if isinstance(packet, Puback)]
        assert sorted((answer.packet_id, answer.reason) for answer in answers) == [(1, 0), (2, 0), (3, 0x97)]


@each_kind
def test_a_message_that_could_not_be_stored_takes_no_place(kind: type[World]) -> None:
    with kind() as world:
        sender = world.connect("sender")
        world.fill_disk()

        assert answer_to(sender, "$delayed/5/t", b"x") == 0x97

        assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (0, 0)


def test_a_qos_0_message_that_could_not_be_stored_is_dropped_and_counted(world: World) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    world.fill_disk()

    sender.publish("$delayed/5/t", b"x", 0)

    assert len(world.broker.delayed) == 0
    assert world.broker.statistics.drops["not_stored"] == 1


def test_many_messages_that_are_due_at_once_are_published_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "_SLICE_S", 0.0)  # every slice is over as soon as it has begun
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t", qos=0)
    for number in range(5):
        sender.publish("$delayed/5/t", b"%d" % number)

    world.loop.now += 5.1
    world.turn()

    assert 0 < len(world.broker.delayed) < 5, "some are published, and others have their turn"
    assert payloads(receiver.receive()) == [b"0", b"1", b"2", b"3", b"4"]


def test_due_messages_wait_as_long_as_the_log_is_congested(world: World) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    sender.publish("$delayed/5/t", b"x")
    world.broker.turn_writer.note_slow(True)

    world.wait(6)
    assert payloads(receiver.receive()) == []
    assert len(world.broker.delayed) == 1

    world.broker.turn_writer.note_slow(False)
    world.wait(1)
    assert payloads(receiver.acknowledge_all()) == [b"x"]


def test_messages_that_are_due_together_come_in_the_order_in_which_they_were_sent(world: World) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    for number in range(30):
        sender.publish("$delayed/5/t", b"%02d" % number)

    world.wait(5.1)

    assert payloads(receiver.acknowledge_all()) == [b"%02d" % number for number in range(30)]


def test_a_row_missing_when_it_is_due_is_counted_and_affects_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    sender.publish("$delayed/5/t", b"lost")
    sender.publish("$delayed/5/t", b"found")
    rows = world.broker.turn_writer.storage.delayed
    first = next(iter(rows.load()))
    world.broker.turn_writer.write(rows.remove("sender", first.row_id))
    world.settle()

    world.wait(5.1)

    assert payloads(receiver.acknowledge_all()) == [b"found"]
    assert world.broker.statistics.drops["not_stored"] == 1
    assert "delayed message" in caplog.text
    assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (0, 0)


def test_a_recorded_message_that_is_due_on_a_full_disk_is_published_once_when_there_is_space(world: World) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    sender.publish("$delayed/5/t", b"1")
    sender.publish("$delayed/5/t", b"2")
    world.fill_disk()

    world.wait(6)
    assert payloads(receiver.receive()) == []
    assert len(world.broker.delayed) == 2

    world.free_disk()
    world.wait(2)
    assert payloads(receiver.acknowledge_all()) == [b"1", b"2"]
    assert len(world.broker.delayed) == 0
    world.tick(2)
    world.crash(loses_power=True)
    world.wait(6)
    assert payloads(world.connect("receiver").acknowledge_all()) == []


def test_a_recorded_message_that_was_due_on_a_full_disk_is_published_after_a_restart(world: World) -> None:
    sender, receiver = world.connect("sender"), world.connect("receiver")
    receiver.subscribe("t")
    sender.publish("$delayed/5/t", b"1")
    world.fill_disk()
    world.wait(6)

    world.crash()

    world.wait(6)
    assert payloads(world.connect("receiver").acknowledge_all()) == [b"1"]


def test_a_full_disk_is_tried_with_one_message_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = world.connect("sender")
    for number in range(10):
        sender.publish("$delayed/5/t", b"%d" % number)
    world.fill_disk()
    monkeypatch.setattr(delayed, "_SLICE_S", 0.0)
    before = world.broker.state.counters.dropped_not_stored

    world.wait(6)
    tries = world.broker.state.counters.dropped_not_stored - before
    world.wait(2)

    assert 1 <= tries <= 5
    assert world.broker.state.counters.dropped_not_stored - before <= tries + 5
    assert len(world.broker.delayed) == 10


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_waits_at_its_home_is_not_published_here(world: World, qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = world.broker.turn_writer.storage.delayed
    put = rows.put
    monkeypatch.setattr(rows, "put", lambda *message: (b"", put(*message)[1]))
    receiver = world.connect("receiver")
    receiver.subscribe("t")

    world.connect("sender").publish("$delayed/5/t", b"later", qos)
    world.wait(6)

    assert payloads(receiver.receive()) == []
    assert (len(world.broker.delayed), world.broker.delayed.size_bytes) == (0, 0)
    assert [each.message.payload for each in rows.load()] == [b"later"]
