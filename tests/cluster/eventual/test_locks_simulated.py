"""Locks under random faults: nodes ask for the locks of few client ids, connections break, nodes stand still and die."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from braidmq.cluster.eventual.cluster_lock import AskLock, ClusterLock, EndLock, LockScope, LockStep, Settled
from braidmq.cluster.eventual.lock_table import LockTable, LockVerdict
from tests.support.simulator.network import Link, Network

HOLD_S = 30.0
WORK_S = 0.2  # for which a node has a lock: far below HOLD_S
CORES = ("c1", "c2", "c3")
KEYS = ("a", "b")


class Core:
    def __init__(self, sim: Sim, name: str) -> None:
        self.sim = sim
        self.name = name
        self.table: LockTable[str] = LockTable(HOLD_S)
        self.links: dict[str, Link[Any]] = {}

    def receive(self, link: Link[Any], message: Any) -> None:
        node, now = link.other(self).name, self.sim.network.now  # type: ignore[attr-defined]
        match message:
            case AskLock(_, number, key):
                self.answer(self.table.lock(node, number, key, now))
            case EndLock(_, number):
                self.answer(self.table.unlock(node, number, now))
            case list():
                self.answer(self.table.keep(node, message, now))

    def bury(self, node: str) -> None:
        self.answer(self.table.dead(node, self.sim.network.now))

    def answer(self, answers: Iterable[LockVerdict[str]]) -> None:
        for answer in answers:
            if answer.node in self.links:
                self.links[answer.node].send(self, answer)

    def cut(self, link: Link[Any]) -> None:
        node = link.other(self).name  # type: ignore[attr-defined]
        if self.links.get(node) is link:
            del self.links[node]


class Node:
    def __init__(self, sim: Sim, name: str) -> None:
        self.sim = sim
        self.name = name
        self.lock = ClusterLock(CORES, sim.scope)
        self.links: dict[str, Link[Any]] = {}
        self.keys: dict[int, str] = {}
        self.is_dead = False

    def join(self, core: Core) -> None:
        if self.is_dead or core.name in self.links:
            return
        link = self.sim.network.connect(self, core)
        self.links[core.name] = core.links[self.name] = link
        link.send(self, self.lock.up(core.name))

    def ask(self, key: str) -> None:
        if not self.is_dead:
            number, steps = self.lock.acquire(key)
            self.keys[number] = key
            self.sim.open.add((self.name, number))
            self.carry_out(steps)

    def carry_out(self, steps: Iterable[LockStep]) -> None:
        for step in steps:
            match step:
                case AskLock() | EndLock():
                    self.links[step.core].send(self, step)
                case Settled(number, is_held):
                    self.sim.settle(self, number, is_held)

    def receive(self, link: Link[Any], message: Any) -> None:
        if not self.is_dead:
            core = link.other(self).name  # type: ignore[attr-defined]
            self.carry_out(self.lock.answered(core, message.number, message.is_granted))

    def end(self, number: int) -> None:
        if not self.is_dead:
            self.sim.leave(self, number)
            self.carry_out(self.lock.release(number))

    def cut(self, link: Link[Any]) -> None:
        core: Any = link.other(self)
        if not self.is_dead and self.links.get(core.name) is link:
            del self.links[core.name]
            self.carry_out(self.lock.down(core.name))
            self.sim.network.after(0.1, lambda: self.join(core))


class Sim:
    def __init__(self, seed: int, scope: LockScope, is_exclusive: bool) -> None:
        self.network: Network[Any] = Network(seed)
        self.scope = scope
        self.is_exclusive = is_exclusive
        self.open: set[tuple[str, int]] = set()
        self.inside: dict[str, set[tuple[str, int]]] = {key: set() for key in KEYS}
        self.held = self.lost = 0
        self.cores = {name: Core(self, name) for name in CORES}
        self.nodes = {name: Node(self, name) for name in ("n1", "n2", "n3", "n4")}
        for node in self.nodes.values():
            for core in self.cores.values():
                node.join(core)
        self.network.at(0.5, self.tick)

    def tick(self) -> None:
        for core in self.cores.values():
            core.answer(core.table.expire(self.network.now))
        if self.network.now < 200.0:
            self.network.after(0.5, self.tick)

    def settle(self, node: Node, number: int, is_held: bool) -> None:
        self.open.remove((node.name, number))
        if not is_held:
            self.lost += 1
            return
        self.held += 1
        inside = self.inside[node.keys[number]]
        inside.add((node.name, number))
        assert len(inside) == 1 or not self.is_exclusive, f"two nodes have the lock of a client id: {inside}"
        self.network.after(self.network.random.uniform(0, WORK_S), lambda: node.end(number))

    def leave(self, node: Node, number: int) -> None:
        self.inside[node.keys[number]].discard((node.name, number))

    def kill(self, node: Node) -> None:
        """The node dies, and a while later the cores know it."""
        node.is_dead = True
        for link in list(node.links.values()):
            link.cut()
        self.open = {each for each in self.open if each[0] != node.name}
        for inside in self.inside.values():
            inside -= {each for each in inside if each[0] == node.name}
        for core in self.cores.values():
            self.network.after(1.0 + self.network.delay(), partial(core.bury, node.name))


def ask_often(sim: Sim, seconds: float) -> None:
    for _ in range(150):
        node = sim.network.random.choice(list(sim.nodes.values()))
        key = sim.network.random.choice(KEYS)
        sim.network.at(sim.network.random.uniform(0, seconds), partial(node.ask, key))


def cut_often(sim: Sim, seconds: float) -> None:
    def cut() -> None:
        links = [link for node in sim.nodes.values() for link in node.links.values()]
        if links:
            sim.network.random.choice(links).cut()

    for _ in range(40):
        sim.network.at(sim.network.random.uniform(0, seconds), cut)


def check_rest(sim: Sim) -> None:
    """Every request was settled, and no core keeps a lock for anybody."""
    sim.network.run()
    assert not sim.open
    assert not any(sim.inside.values())
    assert [len(core.table) for core in sim.cores.values()] == [0, 0, 0]
    assert not any(len(node.lock) for node in sim.nodes.values() if not node.is_dead)


@pytest.mark.parametrize("scope", [LockScope.LEADER, LockScope.QUORUM, LockScope.ALL])
@pytest.mark.parametrize("seed", range(10))
def test_one_request_at_a_time_has_a_lock_and_all_get_it(seed: int, scope: LockScope) -> None:
    sim = Sim(seed, scope, is_exclusive=True)
    ask_often(sim, 10.0)

    check_rest(sim)

    assert (sim.held, sim.lost) == (150, 0)
    assert sum(core.table.overdue for core in sim.cores.values()) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_quorum_stays_exclusive_while_connections_break_and_nodes_die(seed: int) -> None:
    sim = Sim(seed, LockScope.QUORUM, is_exclusive=True)
    ask_often(sim, 10.0)
    cut_often(sim, 10.0)
    sim.network.at(5.0, lambda: sim.kill(sim.nodes["n4"]))

    check_rest(sim)

    assert sim.held
    assert sum(core.table.overdue for core in sim.cores.values()) == 0


@pytest.mark.parametrize("scope", [LockScope.LEADER, LockScope.ALL])
def test_locks_of_the_reached_cores_come_to_rest_while_connections_break(scope: LockScope) -> None:
    sim = Sim(1, scope, is_exclusive=False)
    ask_often(sim, 10.0)
    cut_often(sim, 10.0)

    check_rest(sim)


def test_a_node_that_stands_still_blocks_its_client_id_for_the_time_of_the_lock() -> None:
    sim = Sim(3, LockScope.QUORUM, is_exclusive=True)
    stuck, other = sim.nodes["n1"], sim.nodes["n2"]
    stuck.end = lambda number: None  # type: ignore[method-assign]
    sim.network.at(3.0, lambda: stuck.ask("a"))
    sim.network.run(until=4.0)
    sim.is_exclusive = False

    other.ask("a")
    sim.network.run(until=3.0 + HOLD_S - 1.0)
    assert ("n2", 1) in sim.open
    sim.network.run(until=3.0 + HOLD_S + 2.0)

    assert ("n2", 1) not in sim.open
    assert sum(core.table.overdue for core in sim.cores.values()) == 2
