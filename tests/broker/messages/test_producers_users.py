"""Producers of several users: nobody takes another's name, its keys or its numbers, nor stands in its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from braidmq.base.errors import Unavailable
from braidmq.base.shards import shard_of
from braidmq.mqtt.packets import Connack, Disconnect
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.peer import Peer
from tests.support.simulator.producers import answers, publishes, recorded, request, sequence, told
from tests.support.simulator.world import World
from tests.support.simulator.world_through_node import WorldThroughNode

NAME = "query"
KINDS = ["producer_name", "producer_keys"]


@pytest.fixture(params=[World, WorldThroughNode], ids=["one", "through"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with request.param() as world:
        yield world


def ask(world: World, user: str | None, client_id: str, batch: int = 1, **more: Any) -> Peer:
    """A client whose CONNECT is on its way; its user is the name in its certificate."""
    peer = world.open()
    assert peer.connection.origin is not None
    peer.connection.origin = replace(peer.connection.origin, certificate_name=user)
    request(peer, client_id, batch << 32, **more)
    return peer


def come(world: World, user: str | None, client_id: str, batch: int = 1, **more: Any) -> Peer:
    """A client with the answer to its CONNECT."""
    peer = ask(world, user, client_id, batch, **more)
    peer.connack = peer.expect(Connack)
    return peer


def join(world: World, user: str | None, client_id: str, batch: int = 1, **more: Any) -> Peer:
    """A client that is taken."""
    peer = come(world, user, client_id, batch, **more)
    assert peer.connack.reason == 0, peer.connack
    return peer


def id_of(stem: str) -> str:
    """A client id with the shard of the name."""
    ids = (f"{stem}-{salt}" for salt in range(100))
    return next(each for each in ids if shard_of(each, 2) == shard_of(NAME, 2))


def is_refused(peer: Peer) -> bool:
    """Whether the name is another's, in words and without a word about its batch."""
    said = f"the producer name {NAME} belongs to another user; choose another name"
    return (peer.connack.reason, peer.connack.properties.reason_string, told(peer)) == (
        Reason.NOT_AUTHORIZED,
        said,
        {"shards": "2"},
    )


# Names


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_whose_rows_cannot_be_read_is_refused_for_now(world: World, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise Unavailable("a batch can be read at its home only")

    monkeypatch.setattr(world.broker.turn_writer.storage.producers, "open_batch", fail)
    refused = come(world, None, id_of("s"), 1, **{kind: NAME})
    monkeypatch.undo()
    taken = come(world, None, id_of("s"), 1, **{kind: NAME})

    assert (refused.connack.reason, taken.connack.reason) == (Reason.SERVER_UNAVAILABLE, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 1 << 30])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["mallory", None])
def test_a_name_belongs_to_the_user_who_came_with_it_first(
    world: World, other: str | None, kind: str, batch: int, is_restarted: bool
) -> None:
    owned = join(world, "spark", id_of("s"), 2, **{kind: NAME})
    if is_restarted:
        world.crash()

    assert is_refused(come(world, other, id_of("m"), batch, **{kind: NAME}))

    assert is_restarted or not owned.is_closed
    join(world, "spark", id_of("s"), 2, **{kind: NAME})


def test_keys_of_another_user_do_not_suppress_messages(world: World) -> None:
    owned = join(world, "spark", id_of("s"), producer_keys=NAME)
    assert is_refused(come(world, "mallory", id_of("m"), producer_keys=NAME))

    owned.send(*publishes([b"order"], keys=["4711"]))

    assert answers(owned.receive()) == [0]
    assert recorded(world) == [b"order"]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_without_an_owner_is_taken_over_by_a_named_user(world: World, kind: str, is_restarted: bool) -> None:
    join(world, None, id_of("a"), 2, **{kind: NAME}).cut()
    if is_restarted:
        world.crash()

    assert sequence(come(world, "spark", id_of("s"), 1, **{kind: NAME})) == 2 << 32, "its batch is that of the name"
    assert is_refused(come(world, None, id_of("a"), 2, **{kind: NAME})) is False, "who was refused has not taken it"
    join(world, "spark", id_of("s"), 2, **{kind: NAME})

    assert is_refused(come(world, None, id_of("a"), 2, **{kind: NAME}))
    assert is_refused(come(world, "mallory", id_of("m"), 2, **{kind: NAME}))


def test_taking_over_a_name_disconnects_producers_without_a_user(world: World) -> None:
    nobody = join(world, None, id_of("a"), producer_keys=NAME)

    join(world, "spark", id_of("s"), producer_keys=NAME)

    (goodbye,) = nobody.receive()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == Reason.NOT_AUTHORIZED
    assert goodbye.properties.reason_string == f"the producer name {NAME} belongs to another user; choose another name"


@pytest.mark.parametrize(("user", "batch"), [("spark", 1), (None, 2)])
def test_a_producer_that_still_waits_for_the_disk_is_disconnected_too(world: World, user: str | None, batch: int) -> None:
    waiting = ask(world, None, id_of("a"), producer_keys=NAME)
    world.turn(3)
    later = ask(world, user, id_of("s"), batch, producer_keys=NAME)
    world.turn(3)
    assert world.is_writing

    assert later.expect(Connack).reason == 0
    assert waiting.is_closed
    assert not any(isinstance(packet, Connack) and packet.reason == 0 for packet in waiting.take())


# Numbers


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("other", ["mallory", None])
def test_numbers_belong_to_the_client_id_of_a_user(world: World, other: str | None, is_restarted: bool) -> None:
    owned = join(world, "spark", "p")
    owned.send(*publishes([b"a", b"b"]))
    owned.receive()
    foreign = join(world, other, "p", 1 << 30)
    foreign.send(*publishes([b"x"]))
    foreign.receive()
    if is_restarted:
        world.crash()

    assert sequence(join(world, "spark", "p")) == (1 << 32) + 2
    assert sequence(join(world, other, "p")) == (1 << 62) + 1


def test_numbers_of_another_user_are_not_told(world: World) -> None:
    owned = join(world, "spark", "p")
    owned.send(*publishes([b"a"]))
    owned.receive()

    assert told(join(world, "mallory", "p")) == {"producer-sequence": str(1 << 32), "shards": "2"}


def test_a_sequence_counted_without_a_user_continues_with_one(world: World) -> None:
    nobody = join(world, None, "p")
    nobody.send(*publishes([b"a", b"b"]))
    nobody.receive()

    owned = join(world, "spark", "p")
    assert sequence(owned) == (1 << 32) + 2
    assert "producer-check" in told(owned)
    owned.send(*publishes([b"c"]))
    owned.receive()
    later = join(world, None, "p", 2)
    later.send(*publishes([b"x"]))
    later.receive()

    assert sequence(join(world, "spark", "p")) == (1 << 32) + 3


# Without a user, while there are users


def have_users(world: World, is_so: bool = True) -> None:
    """As a listener says that takes user names from certificates."""
    world.broker.users.has_certificate_names = is_so


def test_numbers_that_a_client_without_a_user_counts_are_not_handed_to_a_user(world: World) -> None:
    have_users(world)
    planted = join(world, None, "p", 1 << 30)
    planted.send(*publishes([b"x"]))
    planted.receive()
    planted.cut()

    assert told(join(world, "spark", "p")) == {"producer-sequence": str(1 << 32), "shards": "2"}


@pytest.mark.parametrize("turns", [(False, True), (True, False), (False, True, False), (True, False, True)])
def test_a_client_without_a_user_continues_its_sequence_with_or_without_configured_users(
    world: World, turns: tuple[bool, ...]
) -> None:
    for count, has_users in enumerate(turns):
        have_users(world, has_users)
        producer = join(world, None, "p")
        assert sequence(producer) == (1 << 32) + count
        producer.send(*publishes([b"%d" % count]))
        producer.receive()
        producer.cut()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_without_a_user_cannot_take_a_new_name_before_its_user_comes(world: World, kind: str) -> None:
    have_users(world)

    planted = come(world, None, id_of("a"), 1 << 30, **{kind: NAME})

    assert planted.connack.reason == Reason.NOT_AUTHORIZED
    assert planted.connack.properties.reason_string == f"the producer name {NAME} needs a user: log in, or publish without a name"
    join(world, "spark", id_of("s"), 1, **{kind: NAME})


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_from_before_there_were_users_continues_without_one(world: World, kind: str) -> None:
    named: dict[str, Any] = {kind: NAME}
    join(world, None, id_of("a"), **named).cut()
    world.crash()
    have_users(world)

    join(world, None, id_of("a"), **named)


def test_the_longest_client_id_has_room_for_any_user(world: World) -> None:
    owned = join(world, "u" * 1000, "p" * 1000)
    owned.send(*publishes([b"a"]))
    assert answers(owned.receive()) == [0]

    assert sequence(join(world, "u" * 1000, "p" * 1000)) == (1 << 32) + 1
