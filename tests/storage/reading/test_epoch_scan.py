"""The lists that readers share: who keeps one, who has to wait for room, and how much memory all of them take."""

from __future__ import annotations

import gc

import pytest

from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts import make_layout
from braidmq.storage.reading.epoch_scan import ScanCache, ScanLimits
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.reader import LogReader
from braidmq.storage.shard.shard import Shard
from tests.storage.log import Log, stamps_of
from tests.storage.reading.desk import CLAIM_S, Clock, Desk

TERM_S = 5 * CLAIM_S


def test_a_reader_within_a_list_keeps_it_and_a_new_reader_waits() -> None:
    desk = Desk(scans_max=2)
    readers = [desk.replay(1), desk.replay(2)]
    found = [stamps_of(replay.next(10)) for replay in readers]
    newcomer = desk.replay(3)

    for _ in range(20):
        assert newcomer.next(10) == []
        for replay, seen in zip(readers, found, strict=True):
            seen += stamps_of(replay.next(4))

    assert found == [desk.stamps[:90]] * 2
    assert desk.scanned == 2


def test_a_list_read_to_its_end_is_released_at_once() -> None:
    desk = Desk(scans_max=1)
    done, newcomer = desk.replay(1), desk.replay(2)
    done.next(99)
    assert newcomer.next(10) == []

    done.next(10)

    assert done.is_caught_up
    assert stamps_of(newcomer.next(10)) == desk.stamps[:10]


def test_a_reader_that_reaches_the_end_leaves_its_list_to_the_other() -> None:
    desk = Desk(scans_max=1)
    fast, slow = desk.replay(1), desk.replay(1)
    slow.next(10)
    fast.next(100)

    assert desk.replay(2).next(10) == []
    assert stamps_of(slow.next(90)) == desk.stamps[10:]
    assert desk.scanned == 1


def test_the_list_of_a_closed_reader_is_released_at_once() -> None:
    desk = Desk(scans_max=1)
    gone, newcomer = desk.replay(1), desk.replay(2)
    gone.next(10)
    assert newcomer.next(10) == []

    del gone
    gc.collect()

    assert stamps_of(newcomer.next(10)) == desk.stamps[:10]


@pytest.mark.parametrize(("pause_s", "is_kept"), [(CLAIM_S, True), (CLAIM_S + 0.01, False)])
def test_a_pausing_reader_loses_its_claim_and_still_reads_on(pause_s: float, is_kept: bool) -> None:
    desk = Desk(scans_max=1)
    paused, newcomer = desk.replay(1), desk.replay(2)
    paused.next(10)
    desk.clock.time += pause_s

    assert (newcomer.next(100) == []) == is_kept
    assert stamps_of(paused.next(90)) == desk.stamps[10:]
    assert desk.scanned == (1 if is_kept else 3)


def test_an_older_reader_takes_the_list_of_the_youngest() -> None:
    desk = Desk(scans_max=2)
    older, old, young = desk.replay(1), desk.replay(2), desk.replay(3)
    young.next(10)
    old.next(10)

    assert stamps_of(older.next(10)) == desk.stamps[:10]

    assert young.next(10) == []
    assert young.is_waiting
    assert stamps_of(old.next(90)) == desk.stamps[10:]
    assert stamps_of(young.next(90)) == desk.stamps[10:]
    assert desk.scanned == 4


def test_an_older_reader_takes_the_list_that_it_has_left_to_a_younger_one() -> None:
    desk = Desk(scans_max=1)
    later = desk.log.append(*["t/1"] * 100, payload=bytes(100))  # another epoch
    older, young = (desk.reader.start_replay(["t/#"], 0) for _ in range(2))
    young.next(10)
    assert stamps_of(older.next(100)) == desk.stamps

    assert stamps_of(older.next(100)) == later
    assert stamps_of(young.next(90)) == desk.stamps[10:]


def test_slow_readers_release_their_room_and_then_wait_in_order() -> None:
    desk = Desk(scans_max=1)
    slow, newcomer = desk.replay(1), desk.replay(2)
    found: list[int] = []
    waited_s = 0.0
    while not found:
        slow.next(1)
        desk.clock.time += 0.1
        waited_s += 0.1
        found += stamps_of(newcomer.next(50))
        assert waited_s < 2 * TERM_S

    assert waited_s > TERM_S - 0.2
    assert slow.next(1) == []
    assert found + stamps_of(newcomer.next(50)) == desk.stamps
    assert stamps_of(slow.next(100))[-1] == desk.stamps[-1]


def test_lists_that_grow_at_the_same_time_stay_within_the_bound() -> None:
    # A list takes about 17 000 bytes, and a step of a scan adds a tenth of that.
    desk = Desk(scans_max=100, bytes_max=40_000)
    readers = [desk.replay(number) for number in range(10)]
    found: list[list[int]] = [[] for _ in readers]

    for _ in range(300):
        for replay, seen in zip(reversed(readers), found, strict=True):
            seen += stamps_of(replay.next(7, slice_s=0))
            assert desk.scans.size_bytes <= 42_000
            desk.clock.time += 0.001

    assert found == [desk.stamps] * 10
    assert desk.scanned < 15


def test_a_single_reader_of_many_epochs_stays_within_the_bound() -> None:
    desk = Desk(scans_max=100, bytes_max=40_000)
    for _ in range(5):
        desk.stamps += desk.log.append(*(f"t/{number % 7}" for number in range(100)), payload=bytes(100))
    replay = desk.replay(1)
    found = []
    while not replay.is_caught_up:
        found += stamps_of(replay.next(7))
        assert desk.scans.size_bytes <= 42_000

    assert found == desk.stamps


def test_a_narrow_filter_gets_memory_beside_wide_ones() -> None:
    # Room for a wide list and a half, of which a narrow one may take an eighth.
    desk = Desk(scans_max=100, bytes_max=160_000)
    desk.log.append(*(f"other/{number}" for number in range(100)), payload=bytes(900))
    wide = [desk.reader.start_replay(["#", f"x/{number}"], desk.stamps[-1]) for number in range(2)]
    assert [len(replay.next(1)) for replay in wide] == [1, 0]

    found = desk.reader.start_replay(["t/3"], 0).next(2)

    assert wide[1].is_waiting
    assert stamps_of(found) == [desk.stamps[3], desk.stamps[10]]


def test_a_list_larger_than_the_bound_is_built_alone() -> None:
    desk = Desk(bytes_max=1000)
    first, second = desk.replay(1), desk.replay(2)

    assert stamps_of(first.next(10)) == desk.stamps[:10]
    assert second.next(10) == []
    assert len(desk.scans) == 1
    first.next(100)
    assert stamps_of(second.next(100)) == desk.stamps


def test_readers_of_several_shards_do_not_deadlock() -> None:
    clock = Clock()
    scans = ScanCache(2, 1_000_000, CLAIM_S, clock)
    readers = []
    for family in ("shard-00", "shard-01"):
        log = Log(limits=EpochLimits(count_max=2000))
        log.shard = Shard(log.store, family, log.hands.clock(), make_layout, log.options)
        log.append(*["t"] * 1500)
        readers.append(LogReader(log.store, log.shard, scans, clock, ScanLimits(steps=100)))

    def merged(number: int) -> MergedScan:
        seniority = scans.seniority()
        replays = (each.start_replay(["t", f"x/{number}"], 0, seniority=seniority) for each in readers)
        return MergedScan(enumerate(replays), clock)

    replays = [merged(number) for number in range(3)]
    counts = [0, 0, 0]
    turns = 0
    while not all(replay.is_caught_up for replay in replays):
        for number, replay in enumerate(replays):
            counts[number] += len(replay.next(100))
        clock.time += 0.002
        turns += 1
        assert turns < 10_000

    assert counts == [3000] * 3


def test_values_fetched_one_by_one_end_with_the_slice() -> None:
    desk = Desk()
    ticks = iter(range(10_000))
    reader = LogReader(
        desk.log.store, desk.log.shard, desk.scans, lambda: float(next(ticks)), ScanLimits(steps=10, values_bytes_max=0)
    )
    replay = reader.start_replay(["#"], 0)
    found: list[int] = []
    pieces = []
    while not replay.is_caught_up:
        pieces.append(stamps_of(replay.next(100, slice_s=1)))
        found += pieces[-1]

    assert found == desk.stamps
    assert max(map(len, pieces)) <= 16


def test_large_values_end_the_slice_one_by_one_even_among_many_small_ones() -> None:
    log = Log(limits=EpochLimits(count_max=2000))
    log.append(*["small"] * 1000)
    log.append(*["large"] * 5, payload=bytes(300_000))
    ticks = iter(range(100_000))
    reader = LogReader(log.store, log.shard, None, lambda: float(next(ticks)), ScanLimits(values_bytes_max=0))
    replay = reader.start_replay(["large"], 0)
    log.store.records_read = 0
    pieces, read = [], []
    while not replay.is_caught_up:
        before = log.store.records_read
        pieces.append(replay.next(100, slice_s=1))
        read.append(log.store.records_read - before)

    assert sum(map(len, pieces)) == 5
    assert max(map(len, pieces)) == 1
    assert max(read[-10:]) <= 2
