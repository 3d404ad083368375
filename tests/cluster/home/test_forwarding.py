"""Publishers of messages that are not recorded wait for the nodes that want them, within a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from braidmq.cluster.home.forwarding import CONFIRM_S, Forwarding
from braidmq.lane.peers.peer import PeerFlow


class Flow:
    """What is counted of a node."""

    def __init__(self) -> None:
        self.forwarded = self.confirmed = 0
        self.is_lagging = False


class Target:
    def __init__(self) -> None:
        self.counted = Flow()

    @property
    def flow(self) -> PeerFlow:
        return cast("PeerFlow", self.counted)


class Bench:
    """Two nodes, and a clock."""

    def __init__(self) -> None:
        self.one, self.two = Target(), Target()
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.done: list[str] = []
        self.lagging: list[object] = []
        self.forwarding = Forwarding(lambda: (self.one, self.two), self._later, lambda: self.now, self.lagging.append)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, call))

    def wait(self, name: str) -> None:
        self.forwarding.when_confirmed(lambda: self.done.append(name))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due, self.timers = (
            [each for each in self.timers if each[0] <= self.now],
            [each for each in self.timers if each[0] > self.now],
        )
        for _, call in due:
            call()


def test_without_forwarded_messages_nobody_waits() -> None:
    bench = Bench()

    bench.wait("a")

    assert bench.done == ["a"]
    assert bench.timers == []


def test_a_wait_ends_when_every_node_has_confirmed_what_it_was_sent_before() -> None:
    bench = Bench()
    bench.one.counted.forwarded = 3
    bench.two.counted.forwarded = 1
    bench.wait("a")
    bench.one.counted.forwarded = 5
    bench.wait("b")

    bench.forwarding.note_confirmed(bench.one.flow, 4)
    assert bench.done == []
    bench.forwarding.note_confirmed(bench.two.flow, 1)
    assert bench.done == ["a"]
    bench.forwarding.note_confirmed(bench.one.flow, 5)

    assert bench.done == ["a", "b"]


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    bench = Bench()
    bench.one.counted.forwarded = bench.two.counted.forwarded = 1
    bench.wait("a")

    bench.forwarding.note_gone(bench.one.flow)
    assert bench.done == []
    bench.forwarding.note_confirmed(bench.two.flow, 1)

    assert bench.done == ["a"]


def test_c33_a_node_that_does_not_confirm_in_time_lags_until_it_has_confirmed_everything() -> None:
    bench = Bench()
    bench.one.counted.forwarded = 1
    bench.wait("a")
    bench.pass_time(CONFIRM_S / 2)
    bench.one.counted.forwarded = 2
    bench.wait("b")

    bench.pass_time(CONFIRM_S / 2)
    assert bench.done == ["a"]
    assert bench.one.counted.is_lagging
    assert not bench.two.counted.is_lagging
    bench.wait("c")
    assert bench.done == ["a", "c"], "nobody waits for it"
    bench.pass_time(CONFIRM_S / 2)
    assert bench.done == ["a", "c", "b"], "those that waited already do so for a second at most"

    bench.forwarding.note_confirmed(bench.one.flow, 1)
    assert bench.one.counted.is_lagging
    bench.forwarding.note_confirmed(bench.one.flow, 2)
    assert not bench.one.counted.is_lagging


def test_c33_a_node_that_confirms_in_time_does_not_lag() -> None:
    bench = Bench()
    bench.one.counted.forwarded = 1
    bench.wait("a")
    bench.forwarding.note_confirmed(bench.one.flow, 1)
    bench.pass_time(CONFIRM_S / 2)
    bench.one.counted.forwarded = 2
    bench.wait("b")

    bench.pass_time(CONFIRM_S / 2)

    assert bench.forwarding.lagged == 0
    bench.forwarding.note_confirmed(bench.one.flow, 2)
    bench.pass_time(CONFIRM_S)
    assert bench.forwarding.lagged == 0
    assert bench.timers == [], "nothing is watched without a wait"
