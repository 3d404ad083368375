"""A node's log and its home: the network delays and cuts, the disk fills up, the home dies (S5, C18, C19, C30, R20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from braidmq.broker.connection.presence_events import PresenceEvent
from braidmq.cluster.registry.messages import Ending
from tests.support.simulator.blocks import SHARDS, Client, Home, Node, Wire, connect, payloads
from tests.support.simulator.network import Network


class Sim:
    """Random steps from a seed."""

    def __init__(self, seed: int) -> None:
        self.network: Network[Wire] = Network(seed)
        self.random = self.network.random
        self.node = Node(self.network, home_wait_s=0.5)
        self.home = Home(self.network, self.node.clients)
        self.all: list[Client] = []
        self.crashes = 0
        self.was_full = False
        self.positions: dict[str, int] = {}
        self.events: list[PresenceEvent] = []
        connect(self.network, self.node, self.home)
        for name in ("ann", "bob", "cid", "dan"):
            self._join(name)

    def _join(self, name: str) -> None:
        self.all.append(self.node.join(name, len(self.all) + 1))

    def _client(self) -> Client:
        return self.random.choice([each for each in self.all if each.is_open])

    # Steps

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            topic = self.random.choice((b"kept", b"kept", b"live"))
            self.node.publish(self._client(), topic=topic, padding=self._padding())
        if self.random.random() < 0.7:
            self.node.end_turn()

    def _padding(self) -> bytes:
        return b"/" + bytes(600_000) if self.random.random() < 0.01 else b""

    def write_cursor(self) -> None:
        client = self._client()
        position = self.positions[client.client_id] = self.positions.get(client.client_id, 0) + 1
        self.node.write_cursor(client, position)

    def leave(self) -> None:
        if len([each for each in self.all if each.is_open]) > 2:
            client = self._client()
            self.node.release(client)
            self._join(f"{client.client_id}+")

    def tell_presence(self) -> None:
        """A client comes or goes, as far as subscribers of presence are concerned."""
        event = PresenceEvent(self._client().client_id, "n1", (len(self.events), 0, 0, 0), self.random.random() < 0.5, 0)
        self.events.append(event)
        self.node.log.tell_presence(event)
        if self.random.random() < 0.5:
            self.node.end_turn()

    def commit(self) -> None:
        self.home.end_turn()
        self.home.disk.commit(self.random.randrange(1, 4))

    def forward(self) -> None:
        self.home.holds_forward = self.random.random() < 0.5
        waiting, self.home.waits_forward = self.home.waits_forward, []
        self.random.shuffle(waiting)
        for each in waiting:
            each()

    def fill(self) -> None:
        self.home.disk.is_full = self.random.random() < 0.4
        self.was_full |= self.home.disk.is_full

    def pass_time(self) -> None:
        self.network.run(until=self.network.now + self.random.choice((0.01, 0.05, 0.3)))

    def cut(self) -> None:
        if self.node.link is not None:
            self.node.link.cut()

    def crash(self) -> None:
        self.crashes += 1
        self.home.end_turn()
        self.home.crash(self.random.randrange(len(self.home.disk.written) + 1))

    def connect(self) -> None:
        if self.node.link is None and self.home.link is None:
            connect(self.network, self.node, self.home)

    def settle(self) -> None:
        """Everything works again, and comes to rest."""
        self.home.disk.is_full = self.home.holds_forward = False
        for _ in range(30):
            self.network.run(until=self.network.now + 0.6)
            self.connect()
            self.node.end_turn()
            self.network.run(until=self.network.now + 5)
            self.home.end_turn()
            self.home.disk.commit()
            self.forward()
            self.home.holds_forward = False

    def check(self) -> None:
        assert not self.home.errors
        assert self.node.log.unanswered_bytes == 0
        for client in self.all:
            self._check_client(client)
            self._check_presence(client.client_id)
        for name, written in self.home.disk.cursors.items():
            assert written == sorted(written), "no cursor goes back"
            if not self.was_full or name in [each.client_id for each in self.all if each.is_open]:
                assert written[-1] == self.positions[name], "the last one is written"

    def _check_presence(self, client_id: str) -> None:
        told = [(tuple(entry.version), entry.is_online) for entry in self.home.told if entry.client_id == client_id]
        assert all(entry.age_ms >= 0 for entry in self.home.told)
        assert list(dict.fromkeys(told)) == [
            (event.version, event.is_online) for event in self.events if event.client_id == client_id
        ], "every event is told, first in its order"
        if not self.crashes:
            assert len(told) == len(set(told)), "and once, while the home lives"

    def _check_client(self, client: Client) -> None:
        assert len(client.told) == client.sent, "every message is answered"
        numbers = [int(text.split(b"/")[1]) for text in payloads(self.home, client)]
        assert numbers == sorted(set(numbers)), "recorded once, in order"
        name = client.client_id.encode()
        shown = Counter(int(text.split(b"/")[1]) for text in self.home.shown if text.startswith(name + b"/"))
        for number, what in client.told.items():
            if what == "acknowledged":
                assert number in numbers or shown[number], "what was acknowledged is there"
            if what == "refused":
                assert number not in numbers, "what was refused is not there"
                assert self.crashes or not shown[number], "what was refused was not delivered"
            if not self.crashes:
                assert shown[number] + numbers.count(number) <= 1
        releases = [each for each in self.home.released if each[0] == client.channel]
        if not client.is_open:
            assert releases, "every release arrives"
            assert f"released {client.channel}" in self.node.rows
            if not self.crashes:
                assert [ending for _, ending in releases if ending is not Ending.REPEATED] == [Ending.PUBLISH]
        events = [event for channel, event in self.home.events if channel == client.channel]
        if "release" in events:
            assert "message" not in events[events.index("release") :], "the release is behind everything that its client sent"


STEPS: tuple[Callable[[Sim], None], ...] = (
    *(Sim.publish, Sim.pass_time, Sim.commit) * 3,
    *(Sim.write_cursor, Sim.leave, Sim.forward, Sim.connect, Sim.connect),
    *(Sim.fill, Sim.cut, Sim.crash, Sim.tell_presence),
)


def test_simulated_clients_use_all_shards() -> None:
    node = Node(Network(0))
    assert {node.log.shard_of(name) for name in ("ann", "bob", "cid", "dan")} == set(range(SHARDS))


@pytest.mark.parametrize("block", range(10))
def test_under_any_faults_acknowledged_messages_are_recorded_once_and_refused_ones_never(block: int) -> None:
    for seed in range(block * 200, (block + 1) * 200):
        sim = Sim(seed)
        try:
            for _ in range(sim.random.randrange(120)):
                sim.random.choice(STEPS)(sim)
            sim.settle()
            sim.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
