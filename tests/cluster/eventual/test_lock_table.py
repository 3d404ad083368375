from __future__ import annotations

from braidmq.cluster.eventual.lock_table import LockTable, LockVerdict

HOLD_S = 30.0


def granted(node: str, number: int) -> LockVerdict[str]:
    return LockVerdict(node, number, is_granted=True)


def table_of(locks_max: int = 100) -> LockTable[str]:
    return LockTable(HOLD_S, locks_max)


def test_a_free_lock_is_given_out_at_once() -> None:
    table = table_of()

    assert table.lock("n1", 1, "a", 0.0) == [granted("n1", 1)]
    assert table.lock("n1", 2, "b", 0.0) == [granted("n1", 2)]


def test_requests_for_a_held_lock_are_served_in_the_order_of_their_arrival() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)

    assert table.lock("n2", 1, "a", 1.0) == []
    assert table.lock("n1", 2, "a", 2.0) == []
    assert table.unlock("n1", 1, 3.0) == [granted("n2", 1)]
    assert table.unlock("n2", 1, 4.0) == [granted("n1", 2)]
    assert table.unlock("n1", 2, 5.0) == []
    assert len(table) == 0


def test_a_request_that_is_given_up_is_left_out() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)
    table.lock("n2", 1, "a", 1.0)
    table.lock("n3", 1, "a", 1.0)

    assert table.unlock("n2", 1, 2.0) == []
    assert table.unlock("n1", 1, 3.0) == [granted("n3", 1)]


def test_a_lock_that_is_held_for_too_long_passes_to_the_next_request() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)
    table.lock("n1", 2, "b", 10.0)
    table.lock("n2", 1, "a", 20.0)

    assert table.next_due == HOLD_S
    assert table.expire(HOLD_S - 0.1) == []
    assert table.expire(HOLD_S) == [granted("n2", 1)]
    assert table.overdue == 1
    assert table.next_due == 10.0 + HOLD_S, "the next lock is that of b; a was given out anew"
    assert table.unlock("n1", 1, 31.0) == [], "its holder learns nothing, and unlocks what it no longer has"
    assert table.expire(HOLD_S + 31.0) == []
    assert table.next_due is None


def test_the_death_of_a_node_ends_its_locks_and_its_requests() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)
    table.lock("n1", 2, "a", 0.0)
    table.lock("n2", 1, "a", 0.0)
    table.lock("n2", 2, "b", 0.0)
    table.lock("n1", 3, "b", 0.0)

    assert table.dead("n1", 1.0) == [granted("n2", 1)]
    assert len(table) == 2


def test_a_node_that_connects_again_keeps_the_requests_that_it_names() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)
    table.lock("n1", 2, "b", 0.0)
    table.lock("n2", 1, "a", 0.0)
    table.lock("n2", 2, "b", 0.0)

    assert table.keep("n1", [2], 1.0) == [granted("n2", 1)]
    assert table.unlock("n1", 2, 2.0) == [granted("n2", 2)]


def test_a_full_table_refuses_requests_and_counts_them() -> None:
    table = table_of(locks_max=2)
    table.lock("n1", 1, "a", 0.0)
    table.lock("n1", 2, "a", 0.0)

    assert table.lock("n2", 1, "b", 0.0) == [LockVerdict("n2", 1, is_granted=False)]
    assert table.refused == 1
    table.unlock("n1", 2, 0.0)
    assert table.lock("n2", 2, "b", 0.0) == [granted("n2", 2)]


def test_a_repeated_request_is_not_a_second_one() -> None:
    table = table_of()
    table.lock("n1", 1, "a", 0.0)

    assert table.lock("n1", 1, "a", 1.0) == []
    assert len(table) == 1
    assert table.unlock("n1", 1, 2.0) == []
    assert table.lock("n2", 1, "a", 3.0) == [granted("n2", 1)]
