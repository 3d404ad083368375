"""Several cores under random faults: lost connections, silent cores, cores that are killed and come back, sessions that move.

Every acknowledged message is recorded once, at the home of its publisher and nowhere else. Every session gets each recorded
message once, apart from repeats that say that they are, and those of each shard in the order of the log.
"""

from __future__ import annotations

import random

import pytest

from braidmq.mqtt.packets import Puback, Publish
from tests.support.simulator.many_cores import ManyCores, SimCore, SimNode
from tests.support.simulator.peer import Peer

STEPS = 60
DOWN_S_MAX = 8.0  # below the time for which publishers wait
SEEDS = 12


class Publisher:
    """A client that publishes, and what it was told."""

    def __init__(self, core: SimCore, client: Peer) -> None:
        self.core = core
        self.client = client
        self.sent = 0
        self.acknowledged: set[int] = set()

    def payload(self, number: int) -> bytes:
        return b"%s/%d" % (self.client.client_id.encode(), number)

    def publish(self) -> None:
        self.sent += 1
        topic = f"a/{self.sent % 3}"
        self.client.send(Publish(topic, self.payload(self.sent), 1, False, False, self.sent))

    def note(self) -> None:
        for packet in self.client.receive():
            assert isinstance(packet, Puback)
            assert packet.reason == 0
            assert packet.packet_id not in self.acknowledged
            self.acknowledged.add(packet.packet_id)


class Reader:
    """A session, over all its connections."""

    def __init__(self, client: Peer) -> None:
        self.client = client
        self.got: list[bytes] = []
        self._seen: set[bytes] = set()

    def take(self) -> None:
        while packets := self.client.receive():
            for packet in packets:
                assert isinstance(packet, Publish)
                assert packet.packet_id is not None
                if packet.payload not in self._seen:
                    self._seen.add(packet.payload)
                    self.got.append(packet.payload)
                else:
                    assert packet.dup, f"{packet.payload!r} has come twice"
                self.client.send(Puback(packet.packet_id))


class Run:
    """One seed."""

    def __init__(self, cluster: ManyCores, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster
        self.nodes = [cluster.node("one"), cluster.node("two")]
        self.cores = list(cluster.cores.values())
        self.down: tuple[SimCore, float] | None = None
        self.publishers = [
            Publisher(core, self.random.choice(self.nodes).client(cluster.client_of(core, prefix), expiry=0))
            for core in self.cores
            for prefix in "pq"
        ]
        self.moving = Reader(self._subscribed(self.nodes[0], "moving", 1000))
        self.live = Reader(self._subscribed(self.nodes[1], "live", 0))
        self.frozen: list[tuple[SimNode, SimCore]] = []

    def _subscribed(self, node: SimNode, client_id: str, expiry: int) -> Peer:
        client = node.client(client_id, expiry=expiry)
        client.subscribe("a/#", qos=1)
        return client

    def step(self) -> None:
        acts = [self.publish] * 6 + [self.take, self.cut, self.connect, self.kill, self.freeze, self.thaw, self.move, self.wait]
        self.random.choice(acts)()
        if self.down is not None and self.cluster.loop.now - self.down[1] >= DOWN_S_MAX:
            self.restart()

    def publish(self) -> None:
        for publisher in self.random.sample(self.publishers, 3):
            for _ in range(self.random.randrange(1, 4)):
                publisher.publish()
        self.cluster.settle()

    def take(self) -> None:
        self.moving.take()
        self.live.take()

    def cut(self) -> None:
        node, core = self.random.choice(self.nodes), self.random.choice(self.cores)
        if core.is_up and (node, core) not in self.frozen:
            node.cut(core)
            self.cluster.settle()

    def connect(self) -> None:
        for node in self.nodes:
            self.cluster.connect(node)

    def kill(self) -> None:
        if self.down is None:
            self.thaw()
            core = self.random.choice(self.cores)
            core.die()
            self.down = core, self.cluster.loop.now
            self.cluster.settle()
        else:
            self.restart()

    def restart(self) -> None:
        if self.down is not None:
            core, self.down = self.down[0], None
            self.cluster.restart(core)

    def freeze(self) -> None:
        node, core = self.random.choice(self.nodes), self.random.choice(self.cores)
        if core.is_up and node.is_connected(core) and (node, core) not in self.frozen:
            node.freeze(core)
            self.frozen.append((node, core))

    def thaw(self) -> None:
        for node, core in self.frozen:
            node.thaw(core)
        self.frozen.clear()
        self.cluster.settle()

    def move(self) -> None:
        """The durable session goes to another node, if its home can be reached from there."""
        node = self.random.choice(self.nodes)
        home = self.cluster.core_of("moving")
        if not all(each.is_connected(home) for each in self.nodes) or any(core is home for _, core in self.frozen):
            return
        self.moving.client.cut()
        self.cluster.settle()
        self.moving.client = node.client("moving")

    def wait(self) -> None:
        self.cluster.wait(self.random.choice([0.5, 1.0, 2.0]))

    def heal(self) -> None:
        self.thaw()
        self.restart()
        self.connect()
        for _ in range(4):
            self.cluster.wait(2)
            self.take()

    def check(self) -> None:
        kept = {core.name: core.records() for core in self.cores}
        for publisher in self.publishers:
            publisher.note()
            assert publisher.acknowledged == set(range(1, publisher.sent + 1))
            mine = [publisher.payload(number) for number in range(1, publisher.sent + 1)]
            assert [each for each in kept[publisher.core.name] if each in set(mine)] == mine
        assert sum(map(len, kept.values())) == sum(publisher.sent for publisher in self.publishers)
        for reader in (self.moving, self.live):
            assert sorted(reader.got) == sorted(payload for payloads in kept.values() for payload in payloads)
            for publisher in self.publishers:
                mine = [publisher.payload(number) for number in range(1, publisher.sent + 1)]
                assert [each for each in reader.got if each in set(mine)] == mine


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_acknowledged_message_is_recorded_once_and_reaches_every_session_once(seed: int) -> None:
    with ManyCores() as cluster:
        run = Run(cluster, seed)
        for _ in range(STEPS):
            run.step()
        run.heal()
        run.check()
