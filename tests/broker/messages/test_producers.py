"""Idempotent producers: what was recorded is told on the next connection, exactly, whatever happened to the last one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.mqtt.packets import Connack, Disconnect, Packet, Puback, Publish, Pubrec, Pubrel
from braidmq.mqtt.reasons import Reason
from braidmq.storage.log import LogOptions
from tests.support.simulator.producers import answers, check_of, connect, publishes, recorded, request, sequence, told
from tests.support.simulator.world import World
from tests.support.simulator.world_through_node import WorldThroughNode, each_kind

pytestmark = pytest.mark.smoke

HUGE = 7 << 32


@pytest.fixture(params=[World, WorldThroughNode], ids=["one", "through"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with request.param() as world:
        yield world


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# Joining


def test_a_new_producer_begins_at_its_base_and_gets_the_number_of_shards(world: World) -> None:
    producer = connect(world, base=HUGE)

    assert told(producer) == {"producer-sequence": str(HUGE), "shards": "2"}


def test_an_ordinary_client_gets_no_producer_properties(world: World) -> None:
    assert world.connect("p").connack.properties.user_properties == ()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"producer_sequence": "x"}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_sequence": "-1"}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_sequence": str(2**63)}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_skip": str(2**64)}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_skip": "3-2"}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_skip": "1-x"}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_refusals": "maybe"}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"producer_keys": ""}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"clean": False}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"client_id": "p" * 1001}, Reason.CLIENT_IDENTIFIER_NOT_VALID),
        ({"client_id": ""}, Reason.CLIENT_IDENTIFIER_NOT_VALID),
    ],
)
def test_an_invalid_producer_connect_is_rejected_with_a_clear_message(world: World, more: dict[str, object], reason: int) -> None:
    peer = world.open()

    request(peer, **{"client_id": "p", **more})  # type: ignore[arg-type]

    connack = peer.expect(Connack)
    assert connack.reason == reason
    assert connack.properties.reason_string


def test_rejecting_a_producer_does_not_disturb_the_connected_one(world: World) -> None:
    producer = connect(world)

    request(world.open(), "p", producer_refusals="maybe")
    world.settle()

    assert not producer.is_closed


# Counting


@pytest.mark.parametrize("qos", [1, 2])
def test_the_next_connection_gets_the_recorded_sequence_and_a_check_of_the_last_message(world: World, qos: int) -> None:
    producer = connect(world, base=HUGE)
    producer.send(*publishes(numbered(1, 6), qos))
    assert answers(producer.receive()) == [0] * 5
    producer.cut()

    again = connect(world, base=HUGE)

    assert told(again) == {"producer-sequence": str(HUGE + 5), "producer-check": check_of("t", b"5"), "shards": "2"}


def test_the_reported_sequence_survives_a_restart_with_the_records(world: World) -> None:
    producer = connect(world, base=HUGE)
    producer.send(*publishes(numbered(1, 6)))
    producer.receive()

    world.crash()

    again = connect(world, base=HUGE)
    assert sequence(again) == HUGE + 5
    assert told(again)["producer-check"] == check_of("t", b"5")


def test_after_a_power_loss_the_sequence_counts_exactly_what_is_on_disk(world: World) -> None:
    producer = connect(world)
    producer.send(*publishes(numbered(1, 4)))
    producer.receive()
    producer.send(*publishes(numbered(4, 9)))
    world.turn(3)  # written, and not synced
    assert world.is_writing

    world.crash(loses_power=True)

    assert recorded(world) == numbered(1, 4)
    assert sequence(connect(world)) == 3


def test_a_higher_base_continues_from_there_without_a_check(world: World) -> None:
    producer = connect(world)
    producer.send(*publishes(numbered(1, 4)))
    producer.receive()

    again = connect(world, base=100)
    assert told(again) == {"producer-sequence": "100", "shards": "2"}
    again.send(*publishes(numbered(4, 5)))
    again.receive()

    assert sequence(connect(world, base=100)) == 101
    assert sequence(connect(world, base=3)) == 101


def test_the_sequence_continues_within_a_connection_over_many_turns(world: World) -> None:
    producer = connect(world)
    for number in range(10):
        producer.send(*publishes([b"%d" % number, b"and %d" % number]))
        assert answers(producer.receive()) == [0, 0]

    again = connect(world)

    assert sequence(again) == 20
    assert told(again)["producer-check"] == check_of("t", b"and 9")


def test_producers_do_not_touch_each_other(world: World) -> None:
    first, second = connect(world, "p1"), connect(world, "p2")
    first.send(*publishes(numbered(0, 3)))
    second.send(*publishes(numbered(0, 5)))
    first.receive()
    second.receive()

    assert (sequence(connect(world, "p1")), sequence(connect(world, "p2")), sequence(connect(world, "p3"))) == (3, 5, 0)


def test_messages_under_way_during_a_takeover_are_counted_before_the_new_connection_is_answered(world: World) -> None:
    old = connect(world)
    old.send(*publishes(numbered(1, 6)))
    world.turn(3)
    assert world.is_writing

    new = world.open()
    request(new, "p")
    world.turn(3)
    assert [type(packet) for packet in new.take()] == []  # it waits for the disk
    new.connack = new.expect(Connack)

    assert sequence(new) == 5
    assert old.is_closed
    assert [type(packet) for packet in old.take()] == [Disconnect]
    assert recorded(world) == numbered(1, 6)


def test_messages_of_the_old_connection_after_a_takeover_are_never_recorded(world: World) -> None:
    old = connect(world)
    old.send(*publishes([b"1"]))
    new = connect(world)
    old.connection.feed(b"\x32\x06\x00\x01t\x00\x09x")

    world.settle()

    assert recorded(world) == [b"1"]
    assert sequence(connect(world)) == sequence(new) == 1


def test_a_durable_session_of_a_producer_is_kept_and_its_sequence_with_it(world: World) -> None:
    producer = connect(world, expiry=1000)
    producer.send(*publishes(numbered(1, 3), qos=2))
    assert answers(producer.receive()) == [0, 0]
    producer.send(Pubrel(1), Pubrel(2))
    producer.receive()
    producer.cut()
    world.crash()

    assert sequence(connect(world, expiry=1000)) == 2


@each_kind
def test_messages_without_qos_and_outside_of_history_use_their_numbers_but_are_not_on_disk(kind: type[World]) -> None:
    with kind(history={"topics": ["kept/#"]}) as world:
        producer = connect(world)
        producer.send(*publishes([b"1"], topic="kept/a"))  # 1
        producer.send(*publishes([b"2"], qos=0, topic="kept/a"))  # 2
        producer.send(*publishes([b"3"], topic="other"))  # 3
        producer.receive()
        assert sequence(connect(world)) == 1

        again = connect(world)
        again.send(*publishes([b"2"], qos=0, topic="kept/a"), *publishes([b"3"], topic="other"))
        again.send(*publishes([b"4"], topic="kept/a"))
        again.receive()

        assert sequence(connect(world)) == 4


@each_kind
def test_recorded_messages_without_qos_are_counted(kind: type[World]) -> None:
    with kind(history={"min_qos": 0}) as world:
        producer = connect(world)
        producer.send(*publishes(numbered(1, 4), qos=0))
        world.settle()

        assert sequence(connect(world)) == 3


@each_kind
def test_retained_and_delayed_messages_are_counted_with_what_is_written_of_them(kind: type[World]) -> None:
    with kind(history={"topics": []}) as world:
        producer = connect(world)
        producer.send(Publish("r", b"1", 1, retain=True, packet_id=1))
        producer.send(Publish("$delayed/100/d", b"2", 1, packet_id=2))
        assert answers(producer.receive()) == [0, 0]
        world.crash()

        again = connect(world)

        assert sequence(again) == 2
        assert told(again)["producer-check"] == check_of("$delayed/100/d", b"2")
        assert (len(world.broker.retained), len(world.broker.delayed)) == (1, 1)


@each_kind
def test_classes_of_the_log_have_one_sequence_between_them(kind: type[World]) -> None:
    classes = {"long": {"topics": ["long/#"], "retention": "100d"}}
    with kind(history={"classes": classes}) as world:
        producer = connect(world)
        producer.send(*publishes([b"1"], topic="long/a"))
        producer.receive()
        world.crash()
        assert sequence(connect(world)) == 1

        again = connect(world)
        again.send(*publishes([b"2"], topic="t"), *publishes([b"3"], topic="long/a", first_id=2))
        again.receive()
        world.crash()

        assert sequence(connect(world)) == 3


# Refusals


@pytest.fixture(params=[World, WorldThroughNode], ids=["one", "through"])
def guarded(request: pytest.FixtureRequest) -> Iterator[World]:
    with tempfile.NamedTemporaryFile("w", suffix=".acl") as file:
        file.write("topic readwrite t\ntopic readwrite deep/#\ntopic readwrite $SYS/#\n")
        file.flush()
        Path(file.name).chmod(0o600)
        with request.param(access={"acl_file": file.name}, mqtt={"topic_levels_max": 3}) as world:
            yield world


def refused_packets(qos: int) -> list[Packet]:
    """One PUBLISH for each way of being refused by what it is."""
    topics = ("forbidden", "deep/1/2/3/4", "$SYS/x")
    return [Publish(topic, b"no", qos, packet_id=10 + number) for number, topic in enumerate(topics)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_rejected_message_uses_up_its_number(guarded: World, qos: int) -> None:
    producer = connect(guarded)
    producer.send(*publishes([b"1"], qos), *refused_packets(qos), *publishes([b"5"], qos, first_id=2))

    packets = producer.receive()
    assert sorted((packet.packet_id, packet.reason & 0x80 and packet.reason) for packet in packets) == [  # type: ignore[union-attr]
        (1, 0),
        (2, 0),
        (10, Reason.NOT_AUTHORIZED),
        (11, Reason.TOPIC_NAME_INVALID),
        (12, Reason.NOT_AUTHORIZED),
    ]
    assert sequence(connect(guarded)) == 5
    assert recorded(guarded) == [b"1", b"5"]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("qos", [1, 2])
def test_a_producer_that_stops_at_refusals_has_nothing_recorded_after_one(guarded: World, qos: int, number: int) -> None:
    producer = connect(guarded, producer_refusals="stop")
    (bad,) = refused_packets(qos)[number : number + 1]
    producer.send(*publishes(numbered(1, 4), qos), bad, *publishes(numbered(5, 9), qos, first_id=5))

    packets = producer.receive()

    answer, goodbye = packets
    assert isinstance(answer, Puback | Pubrec)
    assert isinstance(goodbye, Disconnect)
    assert answer.packet_id == bad.packet_id  # type: ignore[union-attr]
    assert answer.reason == goodbye.reason >= 0x80
    assert producer.is_closed
    assert recorded(guarded) == numbered(1, 4)
    assert sequence(connect(guarded)) == 3


def test_a_rejected_message_can_be_skipped_only_directly_after_the_recorded_sequence(guarded: World) -> None:
    producer = connect(guarded, producer_refusals="stop")
    producer.send(*publishes(numbered(1, 4)), *refused_packets(1)[:1])
    producer.receive()

    assert sequence(connect(guarded, producer_skip="5")) == 3
    assert sequence(connect(guarded, producer_skip="3")) == 3
    assert sequence(connect(guarded, producer_skip="5-9")) == 3
    assert sequence(connect(guarded, producer_skip="2-6")) == 6
    skipping = connect(guarded, producer_skip="4")
    assert told(skipping) == {"producer-sequence": "4", "shards": "2"}
    skipping.send(*publishes([b"5"]))
    skipping.receive()

    assert sequence(connect(guarded, producer_skip="4")) == 5


def test_messages_that_the_log_refuses_use_up_their_numbers(world: World) -> None:
    producer = connect(world)
    producer.send(*publishes([b"1"]))
    producer.receive()
    world.fill_disk()
    producer.send(*publishes([b"2"]))
    assert answers(producer.receive()) == [Reason.QUOTA_EXCEEDED]
    world.free_disk()
    producer.send(*publishes([b"3"]))
    producer.receive()

    assert sequence(connect(world)) == 3
    assert recorded(world) == [b"1", b"3"]


def test_a_producer_that_stops_has_nothing_recorded_after_what_the_log_refused(world: World) -> None:
    producer = connect(world, producer_refusals="stop")
    producer.send(*publishes([b"1"]))
    producer.receive()
    world.fill_disk()
    producer.send(*publishes([b"2"]))
    world.turn(3)
    world.free_disk()

    assert [type(packet) for packet in producer.take()] == [Puback, Disconnect]
    assert producer.is_closed
    assert (sequence(connect(world)), recorded(world)) == (1, [b"1"])


def test_a_full_disk_rejects_a_producer_instead_of_reporting_a_wrong_sequence(world: World) -> None:
    world.fill_disk()
    peer = world.open()

    request(peer, "p")

    assert peer.expect(Connack).reason == Reason.QUOTA_EXCEEDED


@each_kind
def test_a_full_backlog_rejects_the_remaining_messages_of_a_producer_that_stops(kind: type[World]) -> None:
    with kind(LogOptions(pending_bytes_max=20_000)) as world:
        producer = connect(world, producer_refusals="stop")
        for first in range(0, 60, 2):
            if producer.is_closed:
                break
            producer.send(*publishes([bytes(1000), bytes(1000)], first_id=first + 1))
            world.turn(2)
        world.settle()

        assert producer.is_closed or len(recorded(world)) == 60
        assert sequence(connect(world)) == len(recorded(world))


# Everything at once


@each_kind
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "turn", "settle", "cut", "crash", "power", "full", "free", "bad"]),
            st.integers(1, 5),
            st.sampled_from([1, 2]),
        ),
        max_size=25,
    )
)
def test_a_producer_that_resumes_at_the_reported_sequence_has_every_message_recorded_once_in_order(
    kind: type[World],
    steps: list[tuple[str, int, int]],
) -> None:
    """A client that numbers its rows, stops at refusals, and knows nothing but what the CONNACK says."""
    with kind(mqtt={"topic_levels_max": 3}) as world:
        bad: set[int] = set()
        first, last = 0, 0  # of the last run of rows that were given up
        next_row, furthest = 1, 0
        producer = connect(world, producer_refusals="stop")

        def resume() -> None:
            nonlocal producer, next_row
            producer = connect(world, producer_refusals="stop", producer_skip=f"{first}-{last}")
            next_row = sequence(producer) + 1

        def send(qos: int) -> None:
            nonlocal next_row, furthest, first, last
            furthest = max(furthest, next_row)
            if next_row in bad:
                first, last = (first if last == next_row - 1 else next_row), next_row
                producer.send(Publish("a/b/c/d/e", b"bad", qos, packet_id=next_row))
            else:
                producer.send(*publishes(numbered(next_row, next_row + 1), qos, first_id=next_row))
            next_row += 1

        for step, count, qos in steps:
            if producer.is_closed and step in ("send", "bad"):
                world.free_disk()
                resume()
            match step:
                case "send":
                    for _ in range(count):
                        if not producer.is_closed:
                            send(qos)
                case "bad":
                    # A row is what it is: one that went out as a good one does not turn bad later.
                    if next_row > furthest:
                        bad.add(next_row)
                    send(qos)
                case "turn":
                    world.turn(count)
                case "settle":
                    world.settle()
                case "cut":
                    producer.cut()
                case "crash" | "power":
                    world.crash(loses_power=step == "power")
                    resume()
                case "full":
                    world.fill_disk()
                case "free":
                    world.free_disk()
        world.free_disk()
        world.settle()
        resume()

        rows = [int(payload) for payload in recorded(world)]
        assert rows == [row for row in range(1, next_row) if row not in bad]
