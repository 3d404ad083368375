"""Leases of nodes without a connection."""

from __future__ import annotations

from braidmq.cluster.membership.leases import Leases

NODE = ("r1", 7)


def ticked(leases: Leases, since: int, until: int) -> list[tuple[str, int]]:
    """What the ticks of these seconds say at the end."""
    due: list[tuple[str, int]] = []
    for now in range(since + 1, until + 1):
        due = leases.tick(now)
    return due


def test_a_lease_ends_when_a_node_was_without_a_connection_for_its_time() -> None:
    leases = Leases(10, 0)
    leases.add(NODE)

    assert ticked(leases, 0, 9) == []
    assert ticked(leases, 9, 10) == [NODE]


def test_a_node_with_a_connection_keeps_its_lease() -> None:
    leases = Leases(10, 0)
    leases.add(NODE)
    leases.on_connected(NODE)
    leases.on_connected(NODE)
    leases.on_disconnected(NODE)

    assert ticked(leases, 0, 60) == []
    leases.on_disconnected(NODE)

    assert ticked(leases, 60, 69) == []
    assert ticked(leases, 69, 70) == [NODE]


def test_a_reconnected_node_starts_a_new_lease_when_it_disconnects() -> None:
    leases = Leases(10, 0)
    leases.add(NODE)
    ticked(leases, 0, 9)
    leases.on_connected(NODE)
    leases.on_disconnected(NODE)

    assert ticked(leases, 9, 18) == []


def test_time_in_which_the_core_did_not_run_does_not_count() -> None:
    leases = Leases(10, 0)
    leases.add(NODE)

    assert leases.tick(3600) == []
    assert ticked(leases, 3600, 3607) == []
    assert ticked(leases, 3607, 3608) == [NODE]


def test_a_clock_that_goes_back_ends_no_lease() -> None:
    leases = Leases(3, 100)
    leases.add(NODE)

    assert leases.tick(0) == []
    assert leases.tick(2) == []


def test_a_node_that_is_no_member_has_no_lease() -> None:
    leases = Leases(1, 0)
    leases.add(NODE)
    leases.remove(NODE)

    leases.on_disconnected(NODE)

    assert ticked(leases, 0, 9) == []


def test_a_lease_that_has_ended_is_reported_until_the_node_is_removed() -> None:
    leases = Leases(1, 0)
    leases.add(NODE)

    assert ticked(leases, 0, 2) == [NODE]
    assert leases.tick(3) == [NODE]
    leases.remove(NODE)

    assert leases.tick(4) == []
