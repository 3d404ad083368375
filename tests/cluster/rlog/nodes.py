"""Simulated cores and replicants that have nothing but the replication log, and a store that declares nodes dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from braidmq.cluster.rlog.agent import PACE, AgentPace
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.replica import Replica, ReplicaState
from braidmq.cluster.rlog.server import RlogServer
from braidmq.cluster.rlog.tables import STORE, RowChange, Tables, death_of
from braidmq.net.proto_v1 import NotWatched, Position, RlogMessage, Snapshot
from tests.support.simulator.network import Link, Network

PUMP_S = 0.001


class Said(NamedTuple):
    """A message of the replication log; a link carries a watch in each direction."""

    to_server: bool
    number: int
    message: RlogMessage


class RlogNode:
    """One node in one incarnation; a restart makes another one."""

    def __init__(self, cluster: RlogCluster, origin: str, incarnation: int, *, is_core: bool) -> None:
        self.cluster = cluster
        self.origin = origin
        self.incarnation = incarnation
        self.is_core = is_core
        self.is_dead = False
        self.view: dict[tuple[str, bytes], bytes] = {}  # what was told of changed rows, put together
        self.tables = Tables(self._on_change, entries_max=cluster.entries_max)
        self.tables.open(origin, incarnation)
        self.server: RlogServer[Link[Said]] = RlogServer(
            self.tables, lambda origin: origin == self.origin, self._on_applied, cluster.pace
        )
        self.links: dict[str, Link[Said]] = {}  # by the other node's origin
        self.replicas: dict[Link[Said], Replica] = {}
        self.applied_at: dict[str, int] = {}  # by watching node: the last sequence of ours that it has
        self.snapshots = 0
        self._is_pumping = False

    def _on_change(self, changes: list[RowChange]) -> None:
        for origin, key, value in changes:
            if value is None:
                self.view.pop((origin, key), None)
            else:
                self.view[origin, key] = value

    def _on_applied(self, link: Link[Said], origin: str, position: Position) -> None:
        if origin == self.origin and position.incarnation == self.incarnation:
            other = link.other(self)
            assert isinstance(other, RlogNode)
            self.applied_at[other.origin] = max(position.sequence, self.applied_at.get(other.origin, 0))

    # Links

    def join(self, link: Link[Said], other: RlogNode) -> None:
        """A link to another node is there: a core watches every node, a replicant one core."""
        self.links[other.origin] = link
        if self.is_core or (other.is_core and self.watched() is None):
            self._watch(link, other)

    def _watch(self, link: Link[Said], other: RlogNode) -> None:
        def accepts(origin: str) -> bool:
            return origin == other.origin if self.is_core else origin != self.origin

        replica = self.replicas[link] = Replica(self.tables, self.origin, is_core=self.is_core, accepts=accepts)
        # Numbers of a node's watches rise over all its links, as a connection's own would.
        replica.watch = self.cluster.network.random.randrange(1000)
        link.send(self, Said(True, *replica.connect()))

    def watched(self) -> Link[Said] | None:
        """The link of the core that a replicant watches."""
        return next(iter(self.replicas), None)

    def watch_another(self) -> None:
        """Go on at another core, without a word to the one before."""
        before = self.watched()
        if before is not None:
            self.replicas.pop(before).disconnect()
        cores = [link for link in self.links.values() if link is not before and self.cluster.is_core(link.other(self))]
        if cores:
            link = self.cluster.network.random.choice(cores)
            other = link.other(self)
            assert isinstance(other, RlogNode)
            self._watch(link, other)
        elif before is not None and before.is_up:
            other = before.other(self)
            assert isinstance(other, RlogNode)
            self._watch(before, other)

    def cut(self, link: Link[Said]) -> None:
        """The link is gone: the other node's connection is made again after a while."""
        if self.is_dead:
            return
        other = link.other(self)
        assert isinstance(other, RlogNode)
        if self.links.get(other.origin) is link:
            del self.links[other.origin]
        self.server.lost(link)
        if link in self.replicas:
            self.replicas.pop(link).disconnect()
            if not self.is_core:
                self.watch_another()
        self.cluster.connect_later(self, other.origin)

    # Messages

    def receive(self, link: Link[Said], message: Said) -> None:
        """Handle a message, and send what follows from it."""
        if self.is_dead:
            return
        if message.to_server:
            self.server.receive(link, message.number, message.message)
        elif link in self.replicas:
            before = self.tables.vector() if len(self.cluster.nodes) < 20 else {}  # too slow with a thousand nodes
            for number, reply in self.replicas[link].receive(message.number, message.message):
                link.send(self, Said(True, number, reply))
            self._check_monotonic(before)
        else:
            link.send(self, Said(True, message.number, NotWatched()))
        self.turn()

    def _check_monotonic(self, before: dict[str, Position]) -> None:
        for origin, position in before.items():
            log = self.tables.get(origin)
            assert log is None or log.position >= position, "a copy went back"

    def write(self, entries: Sequence[Entry]) -> None:
        """Change rows of this node's own origin."""
        self.tables.write(self.origin, entries)
        self.turn()

    def turn(self) -> None:
        """What a node does at the end of a turn of its loop."""
        for link, number, message in self.server.round():
            link.send(self, Said(False, number, message))
        self._pump()

    def _pump(self) -> None:
        if self.is_dead:
            return
        for link, number, message in self.server.pump():
            self.snapshots += isinstance(message, Snapshot) and message.is_first
            link.send(self, Said(False, number, message))
        if self.server.is_busy and not self._is_pumping:
            self._is_pumping = True
            self.cluster.network.after(PUMP_S, self._pump_again)

    def _pump_again(self) -> None:
        self._is_pumping = False
        self._pump()

    @property
    def is_normal(self) -> bool:
        """Whether all its copies are complete."""
        return bool(self.replicas) and all(replica.state is ReplicaState.NORMAL for replica in self.replicas.values())


class RlogCluster:
    """Cores that are all connected with each other and with every replicant."""

    def __init__(self, seed: int, cores: int, replicants: int, *, entries_max: int = 1000, pace: AgentPace = PACE) -> None:
        self.network: Network[Said] = Network(seed)
        self.entries_max = entries_max
        self.pace = pace
        self.nodes: dict[str, RlogNode] = {}
        self.deaths: list[Entry] = []  # what the store says, in its order
        self._incarnations = 0
        for number in range(cores):
            self.start(f"core{number}", is_core=True)
        for number in range(replicants):
            self.start(f"edge{number}", is_core=False)

    def is_core(self, node: object) -> bool:
        """Whether it is one."""
        return isinstance(node, RlogNode) and node.is_core

    def start(self, origin: str, *, is_core: bool) -> RlogNode:
        """Start a node; it finds the others."""
        self._incarnations += 1
        node = self.nodes[origin] = RlogNode(self, origin, self._incarnations, is_core=is_core)
        if is_core:
            loading = node.tables.begin_load(STORE, Position(1, 0))
            assert loading is not None
            node.tables.end_load(loading)
            self._tell(node, 0)
        for other in list(self.nodes.values()):
            if other is not node and (other.is_core or is_core):
                self.connect_later(node, other.origin)
        return node

    def start_again(self, origin: str, is_core: bool) -> None:
        """Start a node that was killed, in a new incarnation."""
        self.start(origin, is_core=is_core)

    def kill(self, origin: str) -> None:
        """End a node; the store declares it dead after a while."""
        node = self.nodes.pop(origin)
        node.is_dead = True
        for link in list(node.links.values()):
            link.cut()
        self.network.after(self.network.delay(), lambda: self._declare_dead(node))

    def _declare_dead(self, node: RlogNode) -> None:
        death = death_of(node.origin, node.incarnation + 1)
        if any(each.key == death.key and int(each.value or 0) > node.incarnation for each in self.deaths):
            return  # a later incarnation was declared dead before: the store's row does not go back
        self.deaths.append(death)
        for core in self.nodes.values():
            if core.is_core:
                self._tell(core, len(self.deaths) - 1)

    def _tell(self, core: RlogNode, first: int) -> None:
        """The store's stream reaches a core in order; an entry that comes again says the same."""
        upto = len(self.deaths)

        def apply() -> None:
            if not core.is_dead and upto > first:
                log = core.tables.get(STORE)
                assert log is not None
                core.tables.apply(STORE, 1, log.sequence + 1, self.deaths[log.sequence : upto])
                core.turn()

        # A core may learn of a death long after the others.
        self.network.after(self.network.delay() * self.network.random.choice((1, 1, 30)), apply)

    def connect_later(self, node: RlogNode, origin: str) -> None:
        """Let a node connect to another one after a while, if both are there then and are not connected."""

        def connect() -> None:
            other = self.nodes.get(origin)
            if node.is_dead or other is None or origin in node.links:
                return
            link = self.network.connect(node, other)
            before = other.links.get(node.origin)
            if before is not None:
                before.cut()
                other.links.pop(node.origin)
                self.connect_later(node, origin)
                return
            node.join(link, other)
            other.join(link, node)

        self.network.after(self.network.delay() * 3, connect)

    def check_converged(self) -> None:
        """Every node has every origin's rows as their owner has them, and nothing else."""
        live = {origin: dict(node.tables.rows(origin)) for origin, node in self.nodes.items()}
        store = dict(self.deaths)
        for node in self.nodes.values():
            assert node.is_normal or len(self.nodes) == 1, (node.origin, [replica.state for replica in node.replicas.values()])
            found = {origin: rows for origin in (*live, *_known(node)) if (rows := dict(node.tables.rows(origin)))}
            wanted = {origin: rows for origin, rows in live.items() if rows} | ({STORE: store} if store else {})
            assert found == wanted, node.origin
            told: dict[str, dict[bytes, bytes]] = {}
            for (origin, key), value in node.view.items():
                told.setdefault(origin, {})[key] = value
            assert told == wanted, node.origin


def _known(node: RlogNode) -> list[str]:
    return [origin for origin, _ in node.tables]
