"""Wills of clients that a drained node has sent elsewhere (C30)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Connack, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer, payloads

EXPIRIES = pytest.mark.parametrize("expiry", [0, 10, 1000], ids=["memory", "short", "long"])


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


class Moving:
    """A client with a will on a node that is drained, and a watcher of the will on another."""

    def __init__(self, world: ClusterWorld, expiry: int, delay: int | None = None) -> None:
        self.world = world
        self.one, self.two = world.replicant("one"), world.replicant("two")
        self.watcher = self.two.client("w", expiry=0)
        self.watcher.subscribe("will", qos=1)
        will = Will("will", b"gone", 1, False, Properties(will_delay_interval=delay))
        self.client = self.one.client("c", expiry=expiry, will=will)

    def send_away(self) -> None:
        self.client.connection.close(Reason.USE_ANOTHER_SERVER, "", discard_will=True)
        self.world.settle()

    def wait(self, seconds: float) -> list[bytes]:
        """What the watcher gets meanwhile."""
        self.world.wait(seconds)
        self.world.settle()
        return payloads(self.watcher.acknowledge_all())


@EXPIRIES
def test_a_client_that_does_not_come_back_has_its_will_published_after_30_seconds(world: ClusterWorld, expiry: int) -> None:
    moving = Moving(world, expiry)

    moving.send_away()

    assert moving.wait(29) == []
    assert moving.wait(2) == [b"gone"]
    assert moving.wait(2000) == [], "once"


def test_a_longer_delay_counts(world: ClusterWorld) -> None:
    moving = Moving(world, 1000, delay=100)

    moving.send_away()

    assert moving.wait(99) == []
    assert moving.wait(2) == [b"gone"]


@EXPIRIES
@pytest.mark.parametrize("to", ["core", "two"])
@pytest.mark.parametrize("clean_start", [True, False])
def test_a_client_that_comes_back_elsewhere_leaves_no_will(world: ClusterWorld, expiry: int, to: str, clean_start: bool) -> None:
    moving = Moving(world, expiry)
    moving.send_away()
    where: Replicant | ClusterWorld = world if to == "core" else moving.two

    back = where.client("c", expiry=expiry, clean=clean_start)

    assert moving.wait(2000) == []
    back.disconnect()
    assert moving.wait(2000) == []


def test_a_client_of_the_core_waits_for_a_session_that_is_on_its_way_back(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.replicant("one")
    client = one.client("c")
    client.subscribe("a", qos=1)
    writer = world.broker.turn_writer
    write, held = writer.change, []
    monkeypatch.setattr(writer, "change", lambda *arguments: held.append(arguments))
    client.cut()
    world.settle()
    monkeypatch.setattr(writer, "change", write)

    newer = Peer(world.broker, 5, world.loop, settle=world.settle)
    newer.request_connect("c")
    assert newer.receive() == []
    for arguments in held:
        write(*arguments)

    [connack] = newer.receive()
    assert isinstance(connack, Connack)
    assert connack.session_present
