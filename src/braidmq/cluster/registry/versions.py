"""Versions say which of two connections of a client id is the newer one; guards, in contrast, order decisions (R24).

A version is the time of its connection by the cluster's clock, in milliseconds. Clocks of different nodes differ, so each version
comes with an error bound, and *slack* is the sum of two bounds. If two versions differ by no more than that, neither is older,
and the one that arrives later at the home wins (R1). Versions of one clock, that is of one node in one of its lives, are compared
as exactly as the kernel dates connections.

A newcomer that wins within slack with a version that is not the higher one is granted the version it has won against, with the
next *arrival*. So granted versions of a client id only rise, and none is ahead of what a clock has shown (R10).
"""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil
from typing import Final, NamedTuple, Protocol

from braidmq.base.listening.tcp_info import TICK_S
from braidmq.cluster.clock.cluster_clock import BOUND_MS_MAX, ClockReading

SAME_CLOCK_MS: Final = ceil(TICK_S * 1000)  # by which the times of two connections to one node may be wrong
NOT_KNOWN_MS: Final = BOUND_MS_MAX  # the bound of a claim without a version (R23)


class Version(NamedTuple):
    """The order of a client id's channels. ``registration``, ``counter``: the node and the channel that the time is of."""

    ms: int
    registration: int
    counter: int
    arrival: int = 0


class Stamp(NamedTuple):
    """A version, the error bound of its time, and the clock that has shown it."""

    version: Version
    bound_ms: int
    source: Hashable  # None: not known, so it is compared with slack


class VersionClock(Protocol):
    """The clock that versions are taken from."""

    def reading(self) -> ClockReading:
        """The time now."""

    def at(self, monotonic_s: float) -> ClockReading:
        """The time at an earlier instant of ``time.monotonic``."""


def is_older(newcomer: Stamp, other: Stamp) -> bool:
    """Whether a connection is certainly older than another one."""
    if newcomer.source is not None and newcomer.source == other.source:
        return newcomer.version.ms + SAME_CLOCK_MS < other.version.ms
    return newcomer.version.ms + newcomer.bound_ms + other.bound_ms < other.version.ms


def granted(newcomer: Stamp, highest: Stamp | None) -> Stamp:
    """The version that a newcomer is registered with, above the highest one that it has won against."""
    if highest is None or newcomer.version > highest.version:
        return newcomer
    version = highest.version
    return highest._replace(version=version._replace(arrival=version.arrival + 1))
