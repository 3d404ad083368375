"""Slots for readers: their number is bounded, idle readers yield theirs, and every waiting reader gets one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.broker.reading.slots import Readers


class FakeReader:
    """Knows whether it has a place, and tries again in the next turn after it was woken."""

    def __init__(self, readers: Readers, owner: object = "same") -> None:
        self.readers = readers
        self.owner = owner
        self.has_place = self.is_woken = False

    def pause(self) -> None:
        self.has_place = False
        self.readers.leave(self)

    def wake(self) -> None:
        self.is_woken = True

    def read(self) -> bool:
        self.has_place = self.readers.admit(self)
        return self.has_place


def make(count_max: int, count: int, owners: int = 1) -> tuple[Readers, list[FakeReader]]:
    """Readers of so many owners, in turn."""
    readers = Readers(count_max)
    return readers, [FakeReader(readers, number % owners) for number in range(count)]


def test_the_number_of_slots_is_bounded_and_a_reader_keeps_its_slot() -> None:
    _, (first, second, third) = make(2, 3)

    assert [first.read(), second.read(), third.read()] == [True, True, False]
    assert [first.read(), second.read(), third.read()] == [True, True, False]


def test_a_released_slot_goes_to_the_next_waiting_reader() -> None:
    _, (first, second, third) = make(1, 3)
    first.read(), second.read(), third.read()

    first.pause()

    assert (second.is_woken, third.is_woken) == (True, False)
    assert second.read()


def test_an_idle_reader_loses_its_slot_only_to_a_waiting_reader() -> None:
    readers, (idle, busy, new) = make(2, 3)
    idle.read(), busy.read()
    readers.note_idle(idle)
    assert idle.has_place

    assert new.read()

    assert (idle.has_place, busy.has_place) == (False, True)
    assert not idle.read()


def test_a_waiting_reader_is_woken_when_a_slot_holder_becomes_idle() -> None:
    readers, (first, second) = make(1, 2)
    first.read(), second.read()

    readers.note_idle(first)

    assert second.is_woken
    assert second.read()
    assert not first.has_place


def test_an_owner_with_fewer_slots_takes_one_from_the_owner_with_most() -> None:
    readers = Readers(4)
    greedy = [FakeReader(readers, "greedy") for _ in range(300)]
    other = FakeReader(readers, "other")
    assert sum(each.read() for each in greedy) == 4

    assert other.read()

    assert [each.has_place for each in greedy[:5]] == [False, True, True, True, False]
    assert len(readers) == 4
    assert readers.displaced == 1


def test_an_owner_takes_no_slot_from_an_owner_with_as_many() -> None:
    readers = Readers(2)
    first, second, third = (FakeReader(readers, name) for name in "abc")

    assert [first.read(), second.read(), third.read()] == [True, True, False]


def test_owners_with_equally_many_slots_take_turns() -> None:
    readers = Readers(1)
    first, second, third = (FakeReader(readers, name) for name in "abc")
    first.read(), second.read(), third.read()

    turns = []
    for _ in range(6):
        reading = next(each for each in (first, second, third) if each.has_place)
        turns.append(reading.owner)
        while reading.read():
            pass
        for each in (first, second, third):
            if each.is_woken:
                each.is_woken = False
                each.read()

    assert turns == ["a", "b", "c"] * 2


def test_a_single_reader_is_never_displaced() -> None:
    readers, (only,) = make(1, 1)

    assert all(only.read() for _ in range(10_000))
    assert readers.displaced == 0


def test_slots_go_to_owners_round_robin_however_many_readers_each_has() -> None:
    readers = Readers(1)
    greedy = [FakeReader(readers, "greedy") for _ in range(10)]
    modest = FakeReader(readers, "modest")
    for each in (*greedy, modest):
        each.read()

    greedy[0].pause()
    assert greedy[1].is_woken, "it has waited longest"
    greedy[1].read()
    greedy[1].pause()

    assert modest.is_woken


def test_a_slot_offered_to_a_reader_that_leaves_is_offered_to_the_next() -> None:
    _, (first, second, third) = make(1, 3)
    first.read(), second.read(), third.read()
    first.pause()
    assert second.is_woken

    second.pause()

    assert third.is_woken
    assert third.read()


@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["read", "idle", "leave"])), max_size=60),
)
@example(count_max=2, owners=3, steps=[(0, "read"), (3, "read")])
def test_slots_are_never_overdrawn_and_every_reader_gets_one_eventually(
    count_max: int, owners: int, steps: list[tuple[int, str]]
) -> None:
    readers, everybody = make(count_max, 6, owners)
    for number, step in steps:
        reader = everybody[number]
        if step == "read":
            reader.read()
        elif step == "idle":
            readers.note_idle(reader)
        else:
            reader.pause()
        assert len(readers) == sum(each.has_place for each in everybody) <= count_max

    # Every reader tries until it has a slot or waits for one. Who gets a slot may displace another, which then waits as well.
    while any(each.read() for each in everybody if not each.has_place):
        pass
    # A waiting reader must be woken when those before it have finished; no other reader tries again.
    waiting = [each for each in everybody if not each.has_place]
    for each in everybody:
        each.is_woken = False
    for _ in everybody:
        for each in everybody:
            if each.has_place:
                each.pause()
        for each in waiting:
            if each.is_woken and not each.has_place:
                each.read()
                waiting = [other for other in waiting if other is not each]
                break

    assert waiting == []
