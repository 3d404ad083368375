"""Partitions of a cluster with three cores and an etcd of three members, each on a machine of its own.

The side with etcd's quorum serves. All others are alone: they accept no client, take no message with QoS 1 and 2, pass QoS 0 on
among the clients of each node, and recover by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from braidmq.base.shards import shard_of
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Puback, Publish
from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.cores_on_machines import CoresOnMachines
from tests.support.clients.wire import Wire

pytestmark = [pytest.mark.needs("etcd", "netns"), pytest.mark.timeout(180)]

LEASE_S, HOME_WAIT_S = 2.0, 3.0
PATIENCE_S = 20.0
SHARDS = 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CoresOnMachines]:
    with CoresOnMachines(tmp_path, lease=f"{LEASE_S:g}s", home_wait=f"{HOME_WAIT_S:g}s") as cluster:
        yield cluster


def client_id(core: int, stem: str) -> str:
    """A client id that is at home at a core; the shards are dealt to the cores in turn."""
    return next(name for n in range(1000) if shard_of(name := f"{stem}{n}", SHARDS) % 3 == core - 1)


class Client:
    """A client of a node that comes back when its connection ends: whether a core has what it has not answered is in doubt."""

    def __init__(self, node: NodeProcess, core: int, stem: str) -> None:
        """It is at home at this core."""
        self.client_id = client_id(core, stem)
        self._node = node
        self.wire = node.client(self.client_id)

    def publish(self, payload: bytes) -> None:
        """Publish until a core has the message."""
        end = monotonic() + PATIENCE_S
        while not self._try(payload):
            assert monotonic() < end, f"{payload!r} is not taken"

    def _try(self, payload: bytes) -> bool:
        try:
            self.wire.send(Publish("t/x", payload, 1, False, False, 7))
            return self.wire.receive(Puback, PATIENCE_S).reason == 0
        except (OSError, AssertionError):  # closed, perhaps with a DISCONNECT
            self.wire = Wire(self._node.host, self._node.port)
            with suppress(OSError, AssertionError):  # refused
                self.wire.connect(self.client_id)
            return False


def expect_alone(node: NodeProcess, publisher: Wire, live: Wire) -> None:
    """The node loses all cores; then it takes no message and no client, and passes QoS 0 on among its own."""
    node.await_loss_of("core1", "core2", "core3")
    publisher.send(Publish("t/lost", b"lost", 1, False, False, 9))
    publisher.send(Publish("live/x", b"live", 0))
    assert live.receive_publish(timeout_s=PATIENCE_S).payload == b"live"
    answer = publisher.receive(Puback, PATIENCE_S)
    assert (answer.packet_id, answer.reason) == (9, Reason.QUOTA_EXCEEDED)
    with Wire(node.host, node.port) as newcomer:
        newcomer.send(Connect("newcomer", MQTT5, clean_start=True))
        assert newcomer.receive(Connack, PATIENCE_S).reason == Reason.SERVER_UNAVAILABLE


def read(client: Wire, *wanted: bytes) -> None:
    """Receive until everything wanted has come."""
    left = set(wanted)
    while left:
        left.discard(client.receive_publish(timeout_s=PATIENCE_S).payload)


class Scene:
    """Clients on both replicants, r4 and r5, which have seen each other's messages."""

    def __init__(self, cluster: CoresOnMachines) -> None:
        self.one, self.two = cluster.replicants
        self.reader = self.one.client(client_id(1, "reader"), persistent=True)
        self.reader.subscribe("t/#", qos=1)
        self.near = {core: Client(self.one, core, "near") for core in (1, 2, 3)}
        self.far = Client(self.two, 3, "far")
        self.idle = self.two.client(client_id(2, "idle"))
        self.live = self.two.client(client_id(3, "live"))
        self.live.subscribe("live/#", qos=0)
        self.exchange(b"before")
        self.two.process.arrived()

    def exchange(self, stem: bytes, cores: Sequence[int] = (1, 2, 3), *, far: bool = True) -> None:
        """Messages of these homes arrive, and that of the client on the other node."""
        wanted = [b"%s %d" % (stem, core) for core in cores]
        for core, payload in zip(cores, wanted, strict=True):
            self.near[core].publish(payload)
        if far:
            self.far.publish(stem)
            wanted.append(stem)
        read(self.reader, *wanted)


@pytest.mark.row("F4")
def test_the_side_with_the_quorum_serves_and_the_other_is_alone(cluster: CoresOnMachines) -> None:
    scene = Scene(cluster)

    cluster.machines.part([1, 2, 4], [3, 5])
    scene.exchange(b"majority", (1, 2), far=False)
    expect_alone(scene.two, scene.idle, scene.live)

    cluster.machines.heal()
    scene.exchange(b"back")


@pytest.mark.row("F4")
@pytest.mark.soak
def test_without_a_side_with_the_quorum_all_are_alone_and_come_back(cluster: CoresOnMachines) -> None:
    scene = Scene(cluster)

    cluster.machines.part([1], [2], [3, 5], [4])
    expect_alone(scene.two, scene.idle, scene.live)

    cluster.machines.heal()
    scene.exchange(b"back")


@pytest.mark.row("F4")
@pytest.mark.soak
def test_a_core_whose_packets_are_lost_is_away_and_comes_back(cluster: CoresOnMachines) -> None:
    scene = Scene(cluster)

    for other in (1, 2, 4, 5):  # those of the others arrive there
        cluster.machines.lose(3, other)
    scene.exchange(b"served", (1, 2), far=False)

    cluster.machines.heal()
    scene.exchange(b"back")


@pytest.mark.row("F4")
@pytest.mark.soak
def test_nothing_acknowledged_is_lost_while_the_network_flaps(cluster: CoresOnMachines) -> None:
    scene = Scene(cluster)

    for count in range(6):
        sides = ([1, 2, 4], [3, 5]) if count % 2 else ([1, 3, 4], [2, 5])
        cluster.machines.part(*sides)
        scene.exchange(b"during %d" % count, (1,), far=False)
        cluster.machines.heal()
        scene.exchange(b"after %d" % count, (1,), far=False)

    scene.exchange(b"back")
