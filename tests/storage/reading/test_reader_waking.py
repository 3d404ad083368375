"""Readers that wait for room for their lists are woken when there may be some, the oldest first, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.reader import ShardScan
from tests.storage.log import stamps_of
from tests.storage.reading.desk import CLAIM_S, Desk


class Waiters:
    """Readers that found no room and wait for it."""

    def __init__(self, desk: Desk, count: int, make: Callable[[int], ShardScan] | None = None) -> None:
        self.woken: list[int] = []
        self.scans = [(make or desk.replay)(10 + number) for number in range(count)]
        for number in range(count):
            self.wait(number)

    def wait(self, number: int) -> None:
        scan = self.scans[number]
        assert scan.next(10) == []
        assert scan.is_waiting
        scan.when_ready(partial(self.woken.append, number))


def test_a_reader_is_woken_when_another_has_read_its_list_to_the_end() -> None:
    desk = Desk(scans_max=1)
    reading = desk.replay(1)
    reading.next(99)
    waiters = Waiters(desk, 1)

    reading.next(1)

    assert waiters.woken == [0]
    assert stamps_of(waiters.scans[0].next(10)) == desk.stamps[:10]
    desk.scans.tick()
    assert waiters.woken == [0], "once"


def test_a_reader_is_woken_when_another_is_closed_in_the_middle() -> None:
    desk = Desk(scans_max=1)
    reading = desk.replay(1)
    reading.next(10)
    waiters = Waiters(desk, 1)

    reading.close()

    assert waiters.woken == [0]
    assert stamps_of(waiters.scans[0].next(10)) == desk.stamps[:10]


def test_a_reader_is_woken_when_a_list_is_smaller_than_expected() -> None:
    # A list of this epoch is expected to take 17 000 bytes, as every record may match.
    desk = Desk(scans_max=100, bytes_max=24_000)
    small = desk.reader.start_replay(["t/3", "t/4/+"], 0)
    assert small.next(1, slice_s=0) == []
    waiters = Waiters(desk, 1)

    while not small.next(1):
        pass

    assert waiters.woken == [0]
    assert stamps_of(waiters.scans[0].next(1)) == desk.stamps[:1]


def test_a_closed_reader_is_not_woken() -> None:
    desk = Desk(scans_max=1)
    reading = desk.replay(1)
    reading.next(10)
    waiters = Waiters(desk, 2)

    waiters.scans[0].close()
    reading.close()

    assert waiters.woken == [1]


def test_the_oldest_waiting_readers_are_woken_and_each_wakes_the_next() -> None:
    desk = Desk(scans_max=2)
    readings = [desk.replay(1), desk.replay(2)]
    for each in readings:
        each.next(10)
    waiters = Waiters(desk, 30)

    readings[0].close()
    assert waiters.woken == list(range(8))

    assert stamps_of(waiters.scans[0].next(10)) == desk.stamps[:10]
    assert waiters.woken == list(range(8 + 1 + 8)), "and a few more, as its list is smaller than expected"
    for number in range(1, 17):
        waiters.wait(number)

    assert len(waiters.woken) == 17, "a reader that finds none wakes no other"


def test_waiting_readers_gain_priority_with_time() -> None:
    desk = Desk(scans_max=1)
    reading = desk.replay(1)
    reading.next(10)
    waiters = Waiters(desk, 3)
    desk.clock.time += CLAIM_S + 0.01

    desk.scans.tick()

    assert waiters.woken == [0, 1, 2]
    assert stamps_of(waiters.scans[0].next(10)) == desk.stamps[:10]


def test_families_that_are_read_as_one_wait_as_one() -> None:
    desk = Desk(scans_max=1)
    reading = desk.replay(1)
    reading.next(10)
    seniority = desk.scans.seniority()
    families = [desk.reader.start_replay(["t/#", f"x/{number}"], 0, seniority=seniority) for number in range(2)]
    merged = MergedScan(enumerate(families), desk.clock)
    woken: list[None] = []
    assert merged.next(10) == []
    assert merged.is_waiting

    merged.when_ready(lambda: woken.append(None))
    reading.close()

    assert len(woken) == 1
