"""R1: what operators and clients notice of a clock that cannot order connections."""

from __future__ import annotations

import logging

import pytest

from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.clock.watch import ClockWatch
from braidmq.control.cluster import ClockInfo
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1_clock import TimeTold


class Node:
    """A node that was told the time, with a ceiling 30 s above it."""

    def __init__(self) -> None:
        self.boot_s = 100.0
        self.is_reachable = True
        self.clock = ClusterClock(lambda: self.boot_s, lambda: self.boot_s)
        self.watch = ClockWatch(self.clock, lambda: self.is_reachable, lambda: 4999.5)
        self.hear(5000.0)

    def hear(self, at_s: float, bound_s: float = 0.004) -> None:
        self.clock.take(TimeTold(self.clock.reign + 1, at_s, bound_s, at_s + 30), self.boot_s)

    def run(self, seconds: float) -> None:
        self.boot_s += seconds
        self.watch.look()


def test_a_clock_with_a_small_error_refuses_no_client() -> None:
    node = Node()
    node.run(1.0)

    assert node.watch.refusal() is None
    assert node.watch.trouble == ""
    assert node.watch.info == ClockInfo(is_reference=False, reign=1, offset_ms=1500, bound_ms=6)


@pytest.mark.parametrize("bound_s", [0.9, 1.2])
def test_clients_are_refused_above_an_error_of_a_second(bound_s: float) -> None:
    node = Node()
    node.hear(5000.0, bound_s)

    refused = node.watch.refusal()

    assert (refused is not None) == (bound_s > 1)
    assert refused is None or refused.reason == Reason.SERVER_BUSY
    assert node.watch.refused == (bound_s > 1)


def test_an_alarm_is_raised_once_and_ended_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "braidmq.cluster")
    node = Node()
    node.run(29.0)
    node.run(2.0)
    assert node.watch.trouble == "", "an answer may be on its way"

    node.run(3.0)
    node.run(3.0)

    assert "known at all" in node.watch.trouble
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].message.startswith("ALARM: ")
    assert node.watch.info.bound_ms is None

    node.hear(5037.0)
    node.run(0.5)
    node.run(0.5)

    assert node.watch.trouble == ""
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_node_that_reaches_no_core_says_that_and_not_what_follows_from_it() -> None:
    node = Node()
    node.is_reachable = False

    node.run(60.0)
    node.run(60.0)

    assert node.watch.trouble == ""
    assert node.watch.refusal() is None
