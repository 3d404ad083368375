"""One node's cluster clock: what it says of now and of earlier moments."""

from __future__ import annotations

import pytest

from braidmq.base.listening.tcp_info import TICK_S
from braidmq.cluster.clock.cluster_clock import BOUND_MS_MAX, UNKNOWN_MS, ClockReading, ClusterClock
from braidmq.net.proto_v1_clock import TimeTold

TICK_MS = round(TICK_S * 1000)


class Machine:
    """The two clocks of a machine."""

    def __init__(self) -> None:
        self.boot_s = 1000.0
        self.suspended_s = 0.0

    def boot_time(self) -> float:
        return self.boot_s

    def monotonic(self) -> float:
        return self.boot_s - self.suspended_s

    def run(self, seconds: float) -> None:
        self.boot_s += seconds

    def suspend(self, seconds: float) -> None:
        self.boot_s += seconds
        self.suspended_s += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> ClusterClock:
    return ClusterClock(machine.boot_time, machine.monotonic)


def told(at_s: float, reign: int = 1, bound_s: float = 0.0, ceiling_s: float = 1e9) -> TimeTold:
    return TimeTold(reign, at_s, bound_s, ceiling_s)


def test_a_clock_that_was_told_nothing_orders_no_connection(clock: ClusterClock) -> None:
    assert not clock.reading().is_usable
    assert not clock.at(999.0).is_usable
    assert clock.tell() == TimeTold(0)
    assert not clock.take(TimeTold(0), 999.0)


def test_the_reference_says_what_it_began_with_and_has_no_error_but_rounding(machine: Machine, clock: ClusterClock) -> None:
    clock.begin(1, 5000.0)
    machine.run(2.5)

    assert clock.reading() == ClockReading(5_002_500, 1)
    assert clock.at(machine.monotonic() - 2.0) == ClockReading(5_000_500, 1 + TICK_MS)


def test_an_answer_is_dated_to_the_middle_of_its_round_trip(machine: Machine, clock: ClusterClock) -> None:
    sent_at = machine.boot_time()
    machine.run(0.04)

    assert clock.take(told(5000.0), sent_at)

    assert clock.reading() == ClockReading(5_000_020, 22), "half of 40 ms, a little drift, and the rounding"


def test_an_error_above_a_second_orders_no_connection(machine: Machine, clock: ClusterClock) -> None:
    sent_at = machine.boot_time()
    machine.run(2.1)
    clock.take(told(5000.0), sent_at)

    assert clock.reading().bound_ms > BOUND_MS_MAX
    assert not clock.is_known


def test_of_several_answers_the_one_with_the_smallest_error_counts(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, bound_s=0.01), machine.boot_time())

    assert not clock.take(told(5000.5, bound_s=0.02), machine.boot_time())
    assert clock.reading().ms == 5_000_000
    assert clock.take(told(5000.005, bound_s=0.001), machine.boot_time())
    assert clock.reading() == ClockReading(5_000_005, 2)


def test_an_old_answer_is_replaced_once_it_has_drifted(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, bound_s=0.001), machine.boot_time())
    machine.run(5.0)

    assert clock.take(told(5005.002, bound_s=0.005), machine.boot_time()), "1 ms more every second"
    assert clock.reading().ms == 5_005_002


def test_a_new_reign_is_followed_however_good_the_old_estimate_was_and_an_older_one_is_not(
    machine: Machine, clock: ClusterClock
) -> None:
    clock.take(told(5000.0, reign=4), machine.boot_time())

    assert clock.take(told(5000.2, reign=5, bound_s=0.3), machine.boot_time())
    assert not clock.take(told(7000.0, reign=4), machine.boot_time())

    assert clock.reign == 5
    assert clock.reading().ms == 5_000_200


def test_a_clock_that_was_fast_runs_slowly_until_it_is_right(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.125, bound_s=0.2), machine.boot_time())

    clock.take(told(5000.0), machine.boot_time())

    assert clock.reading() == ClockReading(5_000_125, 126)
    machine.run(0.125)
    assert clock.reading().ms == 5_000_187
    machine.run(0.125)
    assert clock.reading().ms == 5_000_250
    machine.run(0.25)
    assert clock.reading() == ClockReading(5_000_500, 2)


def test_what_was_said_of_a_moment_is_said_again_after_the_clock_was_corrected(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, bound_s=0.5), machine.boot_time())
    machine.run(1.0)
    moments = [machine.monotonic() - ago for ago in (0.9, 0.5, 0.1)]
    before = [clock.at(moment) for moment in moments]

    for correction_s in (0.4, -0.3):
        clock.take(told(clock.reading().ms / 1000 + correction_s, reign=clock.reign + 1), machine.boot_time())
        machine.run(0.05)

    assert [clock.at(moment) for moment in moments] == before


def test_a_reading_stays_below_the_ceiling(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, ceiling_s=5010.0), machine.boot_time())
    machine.run(9.0)
    assert clock.reading().is_usable

    machine.run(2.0)
    assert clock.reading().bound_ms == UNKNOWN_MS
    assert clock.tell() == TimeTold(0), "and it tells no other node"

    clock.take(told(5011.1, ceiling_s=5040.0, bound_s=9.0), machine.boot_time())
    assert clock.reading().is_usable, "the estimate is still the best, and the ceiling is higher"


def test_an_answer_of_a_node_that_knows_less_lowers_no_ceiling(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, ceiling_s=5060.0, bound_s=0.1), machine.boot_time())

    assert clock.take(told(5000.0, ceiling_s=5030.0), machine.boot_time())

    assert clock.ceiling_s == 5060.0


def test_a_moment_that_the_old_reign_could_not_date_is_dated_by_the_next_one(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, ceiling_s=5010.0), machine.boot_time())
    machine.run(20.0)
    moment = machine.monotonic() - 4.0
    assert not clock.at(moment).is_usable

    clock.take(told(5021.0, reign=2), machine.boot_time())

    assert abs(clock.at(moment).ms - 5_017_000) <= clock.at(moment).bound_ms
    assert clock.at(moment).is_usable
    assert clock.at(machine.monotonic() - 15.0).ms == 5_005_000, "the first reign has dated this one"
    earlier = [clock.at(machine.monotonic() - ago).ms for ago in (12.0, 10.0, 8.0, 4.0, 1.0, 0.0)]
    assert earlier == sorted(earlier)


def test_a_successor_hands_on_its_error_until_nobody_can_follow_the_old_reign(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, bound_s=0.2, ceiling_s=5030.0), machine.boot_time())

    clock.succeed(2, 5060.0, 5030.0)

    assert clock.is_reference
    assert clock.tell().bound_s == pytest.approx(0.2)
    machine.run(31.0)
    assert clock.tell().bound_s > 0.2
    machine.run(2.0)
    assert clock.tell().bound_s == 0.0


def test_a_reference_takes_no_answer_of_its_own_reign(machine: Machine, clock: ClusterClock) -> None:
    clock.take(told(5000.0, bound_s=0.2, ceiling_s=5030.0), machine.boot_time())
    clock.succeed(2, 5060.0, 5030.0)

    assert not clock.take(told(5000.1, reign=2), machine.boot_time())
    assert clock.take(told(5000.1, reign=3), machine.boot_time())
    assert not clock.is_reference


def test_a_connection_from_before_the_machine_was_suspended_is_no_newer_for_it(machine: Machine, clock: ClusterClock) -> None:
    clock.begin(1, 5000.0)
    machine.run(1.0)
    accepted_at = machine.monotonic()
    clock.look()
    machine.run(0.4)
    unseen_at = machine.monotonic()  # the kernel dates it so, whether it came before or after the suspension

    machine.suspend(60.0)

    assert clock.at(accepted_at) == ClockReading(5_001_000, 1 + TICK_MS)
    assert not clock.at(unseen_at - 0.1).is_usable, "nobody knows how old it is"
    machine.run(1.0)
    assert clock.at(machine.monotonic() - 0.5) == ClockReading(5_061_900, 1 + TICK_MS)


def test_reading_the_two_clocks_of_the_machine_takes_time_and_is_no_suspension(machine: Machine, clock: ClusterClock) -> None:
    clock.begin(1, 5000.0)
    for late_s in (0.03, 0.0, 0.04):
        machine.run(0.5)
        machine.boot_s += late_s
        machine.suspended_s += late_s
        clock.look()
        machine.suspended_s -= late_s
        machine.boot_s -= late_s

    assert clock.at(machine.monotonic() - 0.2) == ClockReading(5_001_300, 1 + TICK_MS)
