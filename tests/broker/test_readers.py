"""Places for readers: never more than there are, nobody waits for one who stands still, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.readers import Readers


class FakeReader:
    """Knows whether it has a place, and tries again in the next turn after it was woken."""

    def __init__(self, readers: Readers) -> None:
        self.readers = readers
        self.has_place = self.is_woken = False

    def pause(self) -> None:
        self.has_place = False
        self.readers.leave(self)

    def wake(self) -> None:
        self.is_woken = True

    def read(self) -> bool:
        self.has_place = self.readers.admit(self)
        return self.has_place


def make(count_max: int, count: int) -> tuple[Readers, list[FakeReader]]:
    readers = Readers(count_max)
    return readers, [FakeReader(readers) for _ in range(count)]


def test_there_are_so_many_places_and_whoever_has_one_keeps_it() -> None:
    _, (first, second, third) = make(2, 3)

    assert [first.read(), second.read(), third.read()] == [True, True, False]
    assert [first.read(), second.read(), third.read()] == [True, True, False]


def test_who_leaves_lets_the_next_one_in() -> None:
    _, (first, second, third) = make(1, 3)
    first.read(), second.read(), third.read()

    first.pause()

    assert (second.is_woken, third.is_woken) == (True, False)
    assert second.read()


def test_who_stands_still_loses_the_place_to_who_needs_it_and_to_nobody_else() -> None:
    readers, (idle, busy, new) = make(2, 3)
    idle.read(), busy.read()
    readers.note_idle(idle)
    assert idle.has_place

    assert new.read()

    assert (idle.has_place, busy.has_place) == (False, True)
    assert not idle.read()


def test_who_waits_is_woken_when_another_stands_still() -> None:
    readers, (first, second) = make(1, 2)
    first.read(), second.read()

    readers.note_idle(first)

    assert second.is_woken
    assert second.read()
    assert not first.has_place


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["read", "idle", "leave"])), max_size=60))
def test_places_are_never_overdrawn_and_everybody_gets_one_in_the_end(count_max: int, steps: list[tuple[int, str]]) -> None:
    readers, everybody = make(count_max, 6)
    for number, step in steps:
        reader = everybody[number]
        if step == "read":
            reader.read()
        elif step == "idle":
            readers.note_idle(reader)
        else:
            reader.pause()
        assert len(readers) == sum(each.has_place for each in everybody) <= count_max

    # Whoever was refused a place must be woken when those before it have finished; nobody else tries again.
    waiting = [each for each in everybody if not each.has_place and not each.read()]
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
