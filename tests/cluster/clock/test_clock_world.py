"""R1: the cluster's clock over asymmetric delays, deaths of its reference, cold starts, jumps of wall clocks, and drift."""

from __future__ import annotations

from itertools import combinations

import pytest

from braidmq.cluster.clock.reference import AHEAD_S
from tests.support.simulator.clock_world import ClockNode, ClockWorld

SEEDS = range(12)

seeds = pytest.mark.parametrize("seed", SEEDS)


def reference_of(world: ClockWorld) -> ClockNode:
    (found,) = [core for core in world.cores if core.is_alive and core.clock.is_reference and core.clock.reign == world.row.reign]
    return found


def assert_is_known_everywhere(world: ClockWorld) -> None:
    assert all(node.clock.is_known for node in world.nodes if node.is_alive)


def check_pairs(world: ClockWorld) -> None:
    """Of readings at the same moment, none differ by more than both bounds, whichever reigns they follow."""
    world.check()
    readings = [reading for node in world.nodes if node.is_alive and (reading := node.read()) is not None]
    for one, other in combinations(readings, 2):
        assert abs(one.ms - other.ms) <= one.bound_ms + other.bound_ms


@seeds
def test_every_estimate_is_within_its_bound_whatever_the_delays(seed: int) -> None:
    world = ClockWorld(seed, cores=3, replicants=3)
    world.start()

    for delays in ((0.0002, 0.02), (0.001, 0.4), (0.0001, 0.0002)):
        world.delays = delays
        world.run(20, lambda: check_pairs(world))

    assert_is_known_everywhere(world)
    assert reference_of(world) is world.cores[0]
    assert all(node.clock.reading().bound_ms < 10 for node in world.nodes)


@seeds
def test_the_successor_of_the_reference_goes_on_from_its_own_estimate(seed: int) -> None:
    world = ClockWorld(seed, cores=3, replicants=3)
    world.cores[1].wall_error_s = -3600.0
    world.start()
    world.run(15, lambda: check_pairs(world))

    world.cores[0].stop()
    world.run(2 * AHEAD_S, lambda: check_pairs(world))

    assert reference_of(world) is world.cores[1]
    assert_is_known_everywhere(world)
    assert world.cores[1].clock.reading().bound_ms == 1, "nobody follows the old reign any more"

    world.cores[0].wall_error_s = 3600.0
    world.cores[0].start()
    world.run(2 * AHEAD_S, lambda: check_pairs(world))

    assert reference_of(world) is world.cores[0]
    assert_is_known_everywhere(world)


@seeds
def test_a_cluster_whose_cores_all_restart_begins_above_every_reading(seed: int) -> None:
    world = ClockWorld(seed, cores=3, replicants=2)
    world.start()
    world.run(world.random.uniform(1, 40), world.check)
    reign, replicants = world.row.reign, world.replicants

    for core in world.cores:
        core.stop()
    world.run(world.random.uniform(0, AHEAD_S), world.check)  # the replicants live on
    for core in world.cores:
        core.wall_error_s = -7200.0
        core.start()
    world.run(20, world.check)

    assert world.row.reign > reign
    assert_is_known_everywhere(world)
    before = world.first_of_reign[reign + 1]
    assert all(core.clock.reading().ms > before for core in world.cores)
    assert all(replicant.clock.reign == world.row.reign for replicant in replicants)


@seeds
def test_a_wall_clock_that_jumps_changes_nothing(seed: int) -> None:
    world = ClockWorld(seed, cores=2, replicants=1)
    world.start()
    world.run(10, world.check)
    before_s = world.now - reference_of(world).clock.estimate_s

    for jump_s in (3600.0, -7200.0, 0.5):
        for core in world.cores:
            core.wall_error_s += jump_s
        world.run(15, lambda: check_pairs(world))

    assert abs(world.now - reference_of(world).clock.estimate_s - before_s) < 0.1


@seeds
def test_cores_that_come_and_go_never_break_a_bound(seed: int) -> None:
    world = ClockWorld(seed, cores=3, replicants=3)
    world.start()
    for _ in range(25):
        core = world.random.choice(world.cores)
        if not core.is_alive:
            core.wall_error_s = world.random.uniform(-3600, 3600)
            core.start()
        elif sum(each.is_alive and each.clock.is_known for each in world.cores) > 1:
            core.stop()
        core.is_cut_off = world.random.random() < 0.2
        world.run(world.random.uniform(0.1, 12), lambda: check_pairs(world))

    for core in world.cores:
        core.is_cut_off = False
        if not core.is_alive:
            core.start()
    world.run(2 * AHEAD_S, world.check)

    assert_is_known_everywhere(world)
    assert reference_of(world) is world.cores[0]
    assert all(node.given > 100 for node in world.nodes)


@seeds
def test_a_clock_whose_core_is_away_is_not_known_above_the_ceiling(seed: int) -> None:
    world = ClockWorld(seed, cores=1, replicants=1)
    world.start()
    world.run(5, world.check)
    (replicant,), (core,) = world.replicants, world.cores

    core.stop()
    world.run(AHEAD_S + 1, world.check)

    assert not replicant.clock.is_known

    asked = replicant.clock.at(replicant.monotonic() - 0.4)
    core.start()
    world.run(5, world.check)

    assert not asked.is_usable
    assert replicant.clock.is_known


def test_the_reference_renews_the_ceiling_before_the_clock_reaches_it() -> None:
    world = ClockWorld(1, cores=1, replicants=0)
    world.start()

    for _ in range(100):
        world.run(0.9)
        assert AHEAD_S / 2 < world.row.ceiling_s - world.cores[0].clock.estimate_s <= AHEAD_S + 0.01
