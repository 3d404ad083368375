"""What a restart must not change about sessions: when they expire, when wills are published, what was ended for good."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

import pytest

from braidmq.mqtt.packets import Disconnect, Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def crash_for_80_s(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash after which the node is down for so long, by the wall clock."""
    monkeypatch.setattr("braidmq.broker.session.restoration.time", lambda: time() + 80)
    world.crash(loses_power=True)


def will(delay: int | None, qos: int = 1) -> Will:
    return Will("will", b"gone", qos, False, properties=Properties(will_delay_interval=delay))


def stored(world: World) -> list[str]:
    """The client ids whose sessions are on disk."""
    return [each.session.client_id for each in world.broker.turn_writer.storage.sessions.load()]


# Expiry


def test_session_expiry_counts_from_a_crash_as_from_a_disconnect(world: World) -> None:
    world.connect("c", expiry=60)

    world.crash(loses_power=True)
    world.wait(59)
    assert stored(world) == ["c"]
    world.wait(2)

    assert stored(world) == []
    assert not world.connect("c").connack.session_present


def test_downtime_counts_towards_the_expiry_of_an_offline_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expiry in (("short", 60), ("long", 100), ("endless", 0xFFFF_FFFF)):
        world.connect(name, expiry=expiry).disconnect()

    crash_for_80_s(world, monkeypatch)
    world.wait(1)

    assert sorted(stored(world)) == ["endless", "long"]
    world.wait(20)
    assert stored(world) == ["endless"]


def test_a_disconnect_with_expiry_0_deletes_the_session_from_disk(world: World) -> None:
    client = world.connect("c")
    client.subscribe("t")
    client.send(Disconnect(0, Properties(session_expiry_interval=0)))
    world.settle()

    assert stored(world) == []
    world.crash(loses_power=True)
    assert not world.connect("c").connack.session_present


def test_a_session_resumed_with_expiry_0_is_gone_after_a_crash(world: World) -> None:
    world.connect("c").disconnect()
    client = world.connect("c", expiry=0)
    assert client.connack.session_present

    world.crash(loses_power=True)
    world.settle()

    assert not world.connect("c").connack.session_present


def test_a_clean_start_deletes_the_old_session_and_its_rows_from_disk(world: World) -> None:
    client = world.connect("c")
    client.subscribe("old/#")
    client.disconnect()
    world.connect("p").publish("old/1", b"backlog")

    world.connect("c", clean=True)
    world.crash(loses_power=True)
    world.connect("p").publish("old/2", b"later")

    client = world.connect("c")
    assert client.connack.session_present
    assert client.receive() == []


def test_a_memory_session_leaves_nothing_on_disk(world: World) -> None:
    client = world.connect("c", expiry=0)
    client.subscribe("t")

    assert stored(world) == []


def test_the_owner_of_a_session_has_a_higher_version_after_each_start(world: World) -> None:
    versions: list[int] = []
    for _ in range(3):
        world.connect("c")
        session = world.broker.sessions.get("c")
        assert session is not None
        versions.append(session.guard)
        world.crash(loses_power=True)

    assert versions == sorted(set(versions))


# Wills


def test_the_will_of_a_client_connected_at_a_crash_is_published_at_the_next_start(world: World) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(None))

    world.crash(loses_power=True)
    world.settle()

    assert payloads(world.connect("watcher").acknowledge_all()) == [b"gone"]


def test_a_will_is_published_only_once_over_two_crashes(world: World) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(None, 2))

    world.crash(loses_power=True)
    world.settle()
    world.crash(loses_power=True)
    world.settle()

    assert payloads(world.connect("watcher").acknowledge_all()) == [b"gone"]


def test_the_will_of_a_disconnected_client_is_not_published_after_a_crash(world: World) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(5)).disconnect()

    world.crash(loses_power=True)
    world.wait(10)

    assert world.connect("watcher").acknowledge_all() == []


def test_a_delayed_will_survives_a_crash_and_waits_for_the_client(world: World) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(30))
    world.connect("d", will=will(30))

    world.crash(loses_power=True)
    world.wait(20)
    world.connect("d")
    world.wait(20)

    assert payloads(world.connect("watcher").acknowledge_all()) == [b"gone"], "one of the two has come back"


def test_a_will_whose_delay_passed_during_downtime_is_published_at_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(50)).cut()
    world.settle()

    crash_for_80_s(world, monkeypatch)
    world.wait(1)

    assert payloads(world.connect("watcher").acknowledge_all()) == [b"gone"]


def test_a_new_connection_without_a_will_deletes_the_old_will_from_disk(world: World) -> None:
    world.connect("watcher").subscribe("will")
    world.connect("c", will=will(30)).cut()
    world.settle()

    world.connect("c")
    world.crash(loses_power=True)
    world.wait(60)

    assert world.connect("watcher").acknowledge_all() == []
