"""Producers with keys: a message of the open batch is recorded once, whoever sends it and in whatever order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from braidmq.base.shards import shard_of
from braidmq.broker.messages.producers import find_key
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.packets import Connack, Disconnect, Packet, Puback, Publish, Pubrec
from braidmq.mqtt.properties import Properties, write_properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import read_varint
from braidmq.storage.format.key_rows import KEYS_END, KEYS_PREFIX
from tests.support.simulator.peer import Peer
from tests.support.simulator.producers import answers, connect, publishes, recorded, request, told
from tests.support.simulator.world import World
from tests.support.simulator.world_through_node import WorldThroughNode, each_kind

SHARDS = 2
NAME = "query"


@pytest.fixture(params=[World, WorldThroughNode], ids=["one", "through"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with request.param() as world:
        yield world


def id_of(number: int, name: str = NAME, *, fits: bool = True) -> str:
    """The client id of a partition, with the salt that gives it the shard of its query, or just not."""
    home = shard_of(name, SHARDS)
    ids = (f"{name}-{number}-{salt}" for salt in range(100))
    return next(each for each in ids if (shard_of(each, SHARDS) == home) == fits)


def keyed(world: World, number: int = 0, base: int = 1 << 32, **more: Any) -> Peer:
    return connect(world, id_of(number), base, producer_keys=NAME, **more)


def rows(keys: str, qos: int = 1) -> list[Packet]:
    """A PUBLISH for each letter, which is its key and its payload."""
    return publishes([key.encode() for key in keys], qos, keys=keys)


def key_rows(world: World) -> int:
    shard = shard_of(NAME, SHARDS)
    return len(list(world.log.rows(shard, KEYS_PREFIX, KEYS_END)))


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_resent_by_others_in_another_order_are_acknowledged_and_recorded_once(world: World, qos: int) -> None:
    first = keyed(world, 0)
    first.send(*rows("abcd", qos))
    assert answers(first.receive()) == [0] * 4
    first.cut()

    left, right = keyed(world, 1), keyed(world, 2)
    left.send(*rows("fdbg", qos))
    right.send(*rows("caeb", qos))

    assert answers(left.receive()) == answers(right.receive()) == [0] * 4
    assert sorted(recorded(world)) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


def test_a_repeat_is_not_delivered_again(world: World) -> None:
    subscriber = world.connect("s", expiry=0)
    subscriber.subscribe("t")
    producer = keyed(world)
    producer.send(*rows("ab"))
    producer.receive()
    producer.send(*rows("bc"))
    producer.receive()

    assert [publish.payload for publish in subscriber.acknowledge_all()] == [b"a", b"b", b"c"]


def test_keys_are_known_after_a_crash_if_and_only_if_their_records_are_on_disk(world: World) -> None:
    producer = keyed(world)
    producer.send(*rows("ab"))
    producer.receive()
    producer.send(*rows("cd"))
    world.turn(3)
    assert world.is_writing

    world.crash(loses_power=True)

    assert recorded(world) == [b"a", b"b"]
    again = keyed(world)
    again.send(*rows("abcde"))
    assert answers(again.receive()) == [0] * 5
    assert recorded(world) == [b"a", b"b", b"c", b"d", b"e"]


def test_the_same_key_twice_at_once_is_recorded_once(world: World) -> None:
    left, right = keyed(world, 1), keyed(world, 2)
    left.send(*rows("aab"))
    right.send(*rows("b"))

    assert answers(left.receive()) == [0, 0, 0]
    assert answers(right.receive()) == [0]
    assert sorted(recorded(world)) == [b"a", b"b"]


def test_a_repeat_is_not_acknowledged_before_the_original_is_on_disk(world: World) -> None:
    left, right = keyed(world, 1), keyed(world, 2)
    left.send(*rows("a"))
    world.turn(3)
    assert world.is_writing
    right.send(*rows("a"))
    world.turn(3)

    assert (left.take(), right.take()) == ([], [])
    assert answers(right.receive()) == answers(left.receive()) == [0]


def test_keys_of_different_names_and_batches_are_independent(world: World) -> None:
    producer = keyed(world)
    producer.send(*rows("a"))
    producer.receive()
    other = connect(world, id_of(0, "other"), 1 << 32, producer_keys="other")
    other.send(*rows("a"))
    other.receive()
    later = keyed(world, 0, 2 << 32)
    later.send(*rows("a"))
    later.receive()

    assert recorded(world) == [b"a", b"a", b"a"]


def test_the_key_is_removed_before_delivery_to_subscribers(world: World) -> None:
    subscriber = world.connect("s", expiry=0)
    subscriber.subscribe("t")
    producer = keyed(world)
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=1000,
        content_type="text",
        correlation_data=b"&\x00\x0cproducer-key\x00\x01x",
        user_properties=(("a", "1"), ("producer-key", "k"), ("b", "2")),
    )

    producer.send(Publish("t", b"x", 1, packet_id=1, properties=properties))

    producer.receive()
    (got,) = subscriber.acknowledge_all()
    assert got.properties.user_properties == (("a", "1"), ("b", "2"))
    assert got.properties.message_expiry_interval == 1000
    assert got.properties.correlation_data == properties.correlation_data


@pytest.mark.parametrize("keys", [None, ["x" * 129]])
def test_a_message_without_a_valid_key_is_rejected(world: World, keys: list[str] | None) -> None:
    producer = keyed(world)

    producer.send(*publishes([b"x"], keys=keys))

    assert answers(producer.receive()) == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert recorded(world) == []


def test_a_rejected_message_can_be_resent_with_its_key(world: World) -> None:
    producer = keyed(world)
    world.fill_disk()
    producer.send(*rows("a"))
    assert answers(producer.receive()) == [Reason.QUOTA_EXCEEDED]
    world.free_disk()
    producer.send(*rows("a"))

    assert answers(producer.receive()) == [0]
    assert recorded(world) == [b"a"]


def test_an_invalid_message_does_not_use_up_its_key(world: World) -> None:
    producer = keyed(world)

    producer.send(*publishes([b"no"], topic="$SYS/x", keys="a"), *publishes([b"yes"], keys="a", first_id=2))

    assert sorted(answers(producer.receive())) == [0, Reason.NOT_AUTHORIZED]
    assert recorded(world) == [b"yes"]


# Batches


def test_a_client_id_with_another_home_than_its_keys_is_refused_and_told_the_number_of_shards(world: World) -> None:
    peer = world.open()

    request(peer, id_of(0, fits=False), producer_keys=NAME)

    peer.connack = peer.expect(Connack)
    assert peer.connack.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
    assert told(peer) == {"shards": str(SHARDS)}


def test_a_later_batch_disconnects_producers_of_an_earlier_one(world: World) -> None:
    zombie = keyed(world, 7, 1 << 32)
    zombie.send(*rows("a"))
    zombie.receive()

    keyed(world, 0, 2 << 32)

    (goodbye,) = zombie.receive()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == Reason.SESSION_TAKEN_OVER


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_producer_of_an_earlier_batch_is_rejected(world: World, is_restarted: bool) -> None:
    keyed(world, 0, 2 << 32)
    if is_restarted:
        world.crash()
    peer = world.open()

    request(peer, id_of(1), 1 << 32, producer_keys=NAME)

    assert peer.expect(Connack).reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.mark.parametrize("is_restarted", [False, True])
def test_keys_of_earlier_batches_are_removed_as_new_ones_arrive(world: World, is_restarted: bool) -> None:
    keys = [f"{number}" for number in range(600)]
    producer = keyed(world, 0, 1 << 32)
    producer.send(*publishes([b""] * 600, keys=keys))
    producer.receive()
    assert key_rows(world) == 601
    if is_restarted:
        world.crash()

    for batch in (2, 3):
        producer = keyed(world, 0, batch << 32)
        producer.send(*publishes([b""] * 310, keys=keys[:310]))
        producer.receive()

    keyed(world, 0, 4 << 32).send(*publishes([b""] * 310, keys=keys[:310]))
    world.settle()
    assert key_rows(world) <= 311 + 2
    assert len(recorded(world)) == 600 + 3 * 310


# Properties in wire form

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)


@given(
    st.builds(
        Properties,
        payload_format_indicator=st.sampled_from([None, 0, 1]),
        message_expiry_interval=st.none() | st.integers(0, 2**32 - 1),
        content_type=st.none() | texts,
        correlation_data=st.none() | st.binary(max_size=30),
        user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    ),
    st.none() | texts,
    st.integers(0, 3),
)
def test_the_key_is_found_at_any_place_among_the_properties(properties: Properties, key: str | None, place: int) -> None:
    pairs = list(properties.user_properties)
    if key is not None:
        pairs.insert(place, ("producer-key", key))
    whole = write_properties(replace(properties, user_properties=tuple(pairs)), PacketType.PUBLISH)
    _, at = read_varint(whole, 0)
    wire = whole[at:]

    found = find_key(wire)

    if key is None:
        assert found is None
    else:
        assert found is not None
        at, end = found
        assert wire[at:end] == b"\x26\x00\x0cproducer-key" + len(key.encode()).to_bytes(2, "big") + key.encode()


@each_kind
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "turn", "settle", "cut", "crash", "power"]),
            st.integers(0, 2),
            st.text("abcdefgh", max_size=5),
        ),
        max_size=25,
    )
)
def test_every_key_is_recorded_at_most_once_and_exactly_once_if_it_was_acknowledged(
    kind: type[World],
    steps: list[tuple[str, int, str]],
) -> None:
    with kind() as world:
        peers: dict[int, Peer] = {}
        sent: dict[tuple[int, int], str] = {}
        acknowledged: set[str] = set()

        def note(number: int) -> None:
            for packet in peers[number].take():
                if isinstance(packet, Puback | Pubrec):
                    acknowledged.add(sent[number, packet.packet_id])

        for step, number, keys in steps:
            match step:
                case "send":
                    if number not in peers or peers[number].is_closed:
                        peers[number] = keyed(world, number)
                    for key in keys:
                        packet_id = len(sent) + 1
                        sent[number, packet_id] = key
                        peers[number].send(*publishes([key.encode()], keys=[key], first_id=packet_id))
                case "turn":
                    world.turn(len(keys))
                case "settle":
                    world.settle()
                case "cut" if number in peers:
                    peers[number].cut()
                case "crash" | "power":
                    for each in peers:
                        note(each)
                    peers.clear()
                    world.crash(loses_power=step == "power")
        world.settle()
        for each in peers:
            note(each)

        found = [payload.decode() for payload in recorded(world)]
        assert len(found) == len(set(found))
        assert acknowledged <= set(found)
