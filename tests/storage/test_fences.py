"""FenceTable: a lower guard of a client id is rejected, and nothing is kept of a client id that is forgotten."""

from __future__ import annotations

from braidmq.storage.fences import FenceTable


def test_a_lower_guard_is_rejected_and_an_equal_one_is_not() -> None:
    fences = FenceTable()

    assert fences.fence("a", 7)

    assert not fences.fence("a", 6)
    assert fences.fence("a", 7)
    assert fences.fence("b", 1)
    assert (fences.guard("a"), fences.guard("b"), fences.guard("c")) == (7, 1, 0)


def test_a_client_id_that_is_forgotten_takes_no_memory_and_begins_anew() -> None:
    fences = FenceTable()
    fences.fence("a", 7)

    fences.forget("a")
    fences.forget("b")

    assert len(fences) == 0
    assert fences.fence("a", 1)
