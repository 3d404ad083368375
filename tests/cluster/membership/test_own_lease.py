"""The lease of a node itself: what it knows of it, and when (C3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.membership.own_lease import LeaseState, OwnLease, margin_of


class Told:
    """What a lease has told its owner."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.lease = OwnLease(
            on_alone=lambda: self.events.append("alone"),
            on_back=lambda: self.events.append("back"),
            on_declared_dead=self.events.append,
        )


def test_a_lease_counts_from_the_sending_of_its_renewal() -> None:
    told = Told()

    told.lease.on_confirmed(sent_at=100.0, granted_s=10.0, now=104.0)

    # Of the ten, one is the margin.
    assert told.lease.check(108.9)
    assert not told.lease.check(109.0)
    assert told.events == ["alone"]


def test_a_renewal_from_before_a_pause_does_not_help_after_it() -> None:
    told = Told()
    told.lease.on_confirmed(100.0, 10.0, 100.1)

    told.lease.on_confirmed(103.0, 10.0, 160.0)  # its answer waited in the socket

    assert told.lease.state is LeaseState.ALONE
    assert told.events == ["alone"]


def test_a_node_is_back_as_soon_as_a_renewal_is_confirmed() -> None:
    told = Told()
    told.lease.on_confirmed(100.0, 10.0, 100.1)
    told.lease.check(130.0)

    told.lease.on_confirmed(130.1, 10.0, 130.2)

    assert told.events == ["alone", "back"]
    assert told.lease.times_alone == 1
    assert told.lease.check(130.3)


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    told = Told()
    told.lease.on_confirmed(105.0, 10.0, 105.1)

    told.lease.on_confirmed(101.0, 10.0, 105.2)

    assert told.lease.check(113.9)


def test_a_node_that_was_declared_dead_never_acts_again() -> None:
    told = Told()
    told.lease.on_confirmed(100.0, 10.0, 100.1)

    told.lease.on_dead("it was away")
    told.lease.on_dead("it was away")
    told.lease.on_confirmed(101.0, 10.0, 101.1)

    assert told.events == ["alone", "it was away"]
    assert not told.lease.check(101.2)


def test_before_its_first_renewal_a_node_is_no_member_and_not_alone() -> None:
    told = Told()

    assert not told.lease.check(5.0)
    assert told.lease.state is LeaseState.NEW
    assert told.events == []


def test_a_renewal_counts_once_the_tables_are_read_as_far_as_they_were_written() -> None:
    told = Told()
    told.lease.on_read(40, 100.0)
    told.lease.on_confirmed(100.0, 10.0, 100.1, position=40)

    told.lease.on_confirmed(103.0, 10.0, 103.1, position=41)  # a node has joined, and this one does not hear of it
    told.lease.on_read(41, 108.9)

    assert told.lease.check(111.9)  # it counts from its sending
    assert not told.lease.check(112.0)


def test_a_node_that_renews_its_lease_and_reads_nothing_is_alone_until_it_has_read() -> None:
    told = Told()
    told.lease.on_read(40, 100.0)
    told.lease.on_confirmed(100.0, 10.0, 100.1, position=40)
    for sent_at in (103.0, 106.0, 109.0, 112.0):
        told.lease.on_confirmed(sent_at, 10.0, sent_at + 0.1, position=41)

    assert not told.lease.check(112.1)
    assert told.events == ["alone"]

    told.lease.on_read(41, 113.0)

    assert told.events == ["alone", "back"]
    assert told.lease.check(120.9)
    assert not told.lease.check(121.0)


def test_what_was_read_before_a_restore_does_not_count_after_it() -> None:
    told = Told()
    told.lease.on_read(1000, 100.0)
    told.lease.on_read(500, 101.0)

    told.lease.on_confirmed(102.0, 10.0, 102.1, position=501)

    assert not told.lease.check(102.1)


@given(st.lists(st.one_of(st.just("join"), st.just("renew"), st.just("read"), st.floats(0, 4)), max_size=60))
def test_whoever_has_joined_for_a_lease_is_known_to_all_that_hold_one(steps: list[str | float]) -> None:
    told, now, granted_s = Told(), 0.0, 10.0
    joined_at: list[float] = []  # by position, from 1
    read = 0
    for step in steps:
        if step == "join":
            joined_at.append(now)
        elif step == "renew":
            told.lease.on_confirmed(now, granted_s, now, len(joined_at))
        elif step == "read":
            read = len(joined_at)
            told.lease.on_read(read, now)
        else:
            assert isinstance(step, float)
            now += step
        if told.lease.check(now):
            assert all(now - each < granted_s for each in joined_at[read:])


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20), st.booleans()), max_size=40))
def test_a_holder_never_acts_when_the_store_may_have_ended_its_lease(steps: list[tuple[float, float, bool]]) -> None:
    """The store ends a lease when its whole time has passed since it took the last renewal, after it was sent."""
    told, now, granted_s = Told(), 0.0, 10.0
    ends_at = 0.0
    for wait_s, travel_s, is_checked in steps:
        sent_at = now = now + wait_s
        ends_at = max(ends_at, sent_at + granted_s)  # the earliest: it took it at once
        now += travel_s
        if is_checked and told.lease.check(now):
            assert now < ends_at
        told.lease.on_confirmed(sent_at, granted_s, now)
        assert told.lease.check(now) == (now < max(ends_at - margin_of(granted_s), 0))
