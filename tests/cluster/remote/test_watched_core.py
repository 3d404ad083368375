"""Which core a node watches: the nodes are spread evenly, and come back to a core one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from braidmq.cluster.remote.watched_core import WatchedCore, preferred
from tests.support.simulator.many_cores import ManyCores
from tests.support.simulator.peer import payloads

NODES = [f"node {number}" for number in range(1000)]
CORES = ["core1", "core2", "core3"]
WAIT_S = 90.0


class Clock:
    """Calls back what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, callback: Callable[[], None]) -> Call:
        self.due.append((self.now + seconds, callback))
        return Call(self, callback)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        calls = [call for at, call in self.due if at <= self.now]
        self.due = [each for each in self.due if each[0] > self.now]
        for call in calls:
            call()


class Call:
    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback

    def cancel(self) -> None:
        self._clock.due = [each for each in self._clock.due if each[1] is not self._callback]


class Core:
    """A core as one node sees it; the log of what is watched is the node's."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.is_following = True
        self._log = log

    def watch(self) -> None:
        self._log.append(f"watch {self.name}")

    def unwatch(self) -> None:
        self._log.append(f"unwatch {self.name}")


class Node:
    """A node, and the cores in the order in which it prefers them."""

    def __init__(self, name: str = "node") -> None:
        self.clock = Clock()
        self.log: list[str] = []
        self.watched = WatchedCore(name, self.clock.later, lambda: self.clock.now, lambda: WAIT_S)
        left = list(CORES)
        self.cores: list[Core] = []
        while left:
            self.cores.append(Core(preferred(name, left), self.log))
            left.remove(self.cores[-1].name)

    def connect(self, *cores: Core) -> None:
        for core in cores:
            self.watched.connected(core, core)


def test_nodes_are_spread_evenly_and_so_are_those_of_a_core_that_is_gone() -> None:
    before = {node: preferred(node, CORES) for node in NODES}
    after = {node: preferred(node, CORES[:2]) for node in NODES}

    assert all(280 < count < 390 for count in Counter(before.values()).values())
    assert all(450 < count < 550 for count in Counter(after.values()).values())
    assert all(after[node] == before[node] for node in NODES if before[node] != CORES[2])


@pytest.mark.parametrize("name", NODES[:10])
def test_the_core_that_answers_first_is_watched_until_the_preferred_one_is_there(name: str) -> None:
    node = Node(name)
    first, second, third = node.cores
    for core in node.cores:
        core.is_following = False  # there was no time yet

    node.connect(third, first, second)

    assert node.watched.core is first
    assert node.log == [f"watch {third.name}", f"unwatch {third.name}", f"watch {first.name}"]


def test_a_preferred_core_that_comes_later_is_watched_after_a_while() -> None:
    node = Node()
    first, second, third = node.cores
    node.connect(second, third)
    node.clock.wait(5)
    node.log.clear()

    node.connect(first)
    node.clock.wait(WAIT_S - 1)
    assert node.log == []
    node.clock.wait(1)

    assert node.log == [f"unwatch {second.name}", f"watch {first.name}"]


def test_what_is_being_loaded_is_loaded_to_its_end() -> None:
    node = Node()
    first, second, _ = node.cores
    node.connect(second)
    node.clock.wait(5)
    second.is_following = False
    node.connect(first)

    node.clock.wait(WAIT_S)
    assert node.watched.core is second
    second.is_following = True
    node.clock.wait(WAIT_S)

    assert node.watched.core is first


def test_another_core_is_watched_at_once_when_the_watched_one_is_lost() -> None:
    node = Node()
    first, second, third = node.cores
    node.connect(first, second, third)
    node.log.clear()

    node.watched.lost(first)
    node.watched.lost(third)
    node.watched.lost(second)

    assert node.log == [f"watch {second.name}"]
    assert node.watched.core is None
    node.connect(third)
    assert node.watched.core is third


def test_a_core_that_is_gone_again_is_not_returned_to() -> None:
    node = Node()
    first, second, _ = node.cores
    node.connect(second)
    node.clock.wait(5)
    node.connect(first)
    node.watched.lost(first)
    node.log.clear()

    node.clock.wait(WAIT_S)

    assert node.log == []
    node.watched.close()
    assert node.clock.due == []


@pytest.mark.parametrize("lost", range(3))
def test_no_route_is_missed_when_a_node_goes_back_to_a_core(lost: int) -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        core = list(cluster.cores.values())[lost]
        subscriber = two.client("subscriber", expiry=0)
        subscriber.subscribe("before", qos=0)
        one.cut(core)
        cluster.settle()
        subscriber.subscribe("meanwhile", qos=0)
        one.connect(core)
        cluster.settle()

        cluster.wait(301)
        subscriber.subscribe("after", qos=0)
        cluster.settle()
        source = one.client("source", expiry=0)
        for topic in ("before", "meanwhile", "after"):
            source.publish(topic, topic.encode(), qos=0)
        cluster.settle()

        assert payloads(subscriber.receive()) == [b"before", b"meanwhile", b"after"]
