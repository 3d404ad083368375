"""A shard stamps, places and remembers: over failed writes, crashes, repeats and new generations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.lane.records.records import encode_record
from braidmq.storage.format.rows import (
    OFFSET_MAX,
    SHARD_KEY,
    EpochLimits,
    ShardRow,
    decode_shard,
    encode_shard,
)
from tests.storage.log import FAMILY, NOON, Log, entries, stamps_of
from tests.support.fakes.store import FakeStore

pytestmark = pytest.mark.smoke

HOUR = 3_600_000_000
RECORD = encode_record(b"t", b"x", 1, False, "p")


def keys(log: Log) -> list[bytes]:
    return [key for key, _ in log.store.items(FAMILY, b"\0", SHARD_KEY)]


def epoch_starts(log: Log) -> list[int]:
    return [epoch.start for epoch in log.shard.epochs]


# Timestamps


def test_timestamps_follow_the_clock_and_rise_strictly_when_it_stands() -> None:
    log = Log()

    first = log.append("a", "b")
    log.hands.move(10)
    second = log.append("a")

    assert first == [NOON, NOON + 1]
    assert second == [NOON + 10]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-50, 50)), min_size=1, max_size=20))
def test_timestamps_rise_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    log = Log()
    stamps: list[int] = []

    for count, moved in steps:
        log.hands.boot += moved
        stamps += log.append(*["t"] * count)

    assert all(earlier < later for earlier, later in pairwise(stamps))


# Epochs


def test_s7_a_record_after_a_suspended_night_begins_a_new_epoch_before_its_key_is_built() -> None:
    log = Log()
    (before,) = log.append("t")

    log.hands.move(8 * HOUR)
    (after,) = log.append("t")

    assert epoch_starts(log) == [before, after]
    assert [key[:8] for key in keys(log)] == [before.to_bytes(8, "big"), after.to_bytes(8, "big")]
    assert all(key[-4:] == bytes(4) for key in keys(log))


def test_an_epoch_ends_at_its_age_to_the_microsecond() -> None:
    log = Log()
    (start,) = log.append("t")
    log.hands.move(HOUR - 1)
    log.append("t")
    log.hands.move(1)

    (later,) = log.append("t")

    assert epoch_starts(log) == [start, later]
    assert later == start + HOUR


def test_s7_an_epoch_of_large_records_ends_by_its_bytes() -> None:
    log = Log(limits=EpochLimits(bytes_max=1_000))

    stamps = log.append(*["t"] * 10, payload=bytes(300))

    assert len(epoch_starts(log)) == 4
    assert all(epoch.size_bytes <= 1_000 for epoch in log.shard.epochs)
    assert stamps_of(log.read("#")) == stamps


def test_a_record_larger_than_an_epoch_has_one_of_its_own() -> None:
    log = Log(limits=EpochLimits(bytes_max=100))

    stamps = log.append("a", "b", payload=bytes(500))

    assert epoch_starts(log) == stamps
    assert stamps_of(log.read("b")) == stamps[1:]


def test_an_epoch_ends_by_its_count() -> None:
    log = Log(limits=EpochLimits(count_max=3))

    stamps = log.append(*["t"] * 7)

    assert epoch_starts(log) == stamps[::3]
    assert [epoch.count for epoch in log.shard.epochs] == [3, 3, 1]
    assert [epoch.end for epoch in log.shard.epochs] == [stamps[2], stamps[5], stamps[6]]


@pytest.mark.parametrize("limits", [EpochLimits(count_max=0), EpochLimits(bytes_max=0), EpochLimits(age_max_us=OFFSET_MAX + 1)])
def test_limits_beyond_the_key_format_are_rejected(limits: EpochLimits) -> None:
    log = Log(limits=limits)

    with pytest.raises(UsageError):
        log.append("t")


# Recovery


def test_s7_after_a_crash_the_last_timestamp_is_not_that_of_the_last_key() -> None:
    log = Log("learned")
    log.append("z/z", "y/y")
    (last,) = log.append("z/z")
    newest_key = max(keys(log))
    assert int.from_bytes(newest_key[-4:], "big") + NOON < last

    log = log.reopened()
    (after,) = log.append("a")

    assert log.shard.last == after == last + 1


def test_recovery_reads_no_record() -> None:
    log = Log(limits=EpochLimits(count_max=5))
    for _ in range(20):
        log.append("a", "b", "c")
    store = log.store.crashed(len(log.store.writes))

    Log(store=store)

    assert store.seeks > 0
    assert store.records_read == 0


def test_every_batch_holds_the_shard_row() -> None:
    log = Log()
    log.append("a")
    log.append("b", "c")

    rows = [
        decode_shard(value)
        for changes in log.store.writes
        for kind, _, key, value in changes
        if (kind, key) == ("put", SHARD_KEY)
    ]

    assert [(row.last, row.epoch_start, row.epoch_count) for row in rows] == [(NOON, NOON, 1), (NOON + 2, NOON, 3)]


def test_the_open_epoch_continues_after_a_restart() -> None:
    log = Log(limits=EpochLimits(count_max=4))
    first = log.append("a", "b", "c")

    log = log.reopened()
    second = log.append("d", "e")

    assert epoch_starts(log) == [first[0], second[1]]
    assert stamps_of(log.read("#")) == [*first, *second]


def test_a_crash_loses_only_what_was_not_committed() -> None:
    log = Log()
    kept = log.append("a", "b")
    log.append("c", commit=False)

    log = log.reopened(kept=1)

    assert stamps_of(log.read("#")) == kept
    assert log.shard.watermark == kept[-1]


def test_records_without_a_shard_row_are_corruption() -> None:
    log = Log()
    log.append("a")
    batch = log.store.batch()
    batch.delete(FAMILY, SHARD_KEY)
    log.store.write(batch)

    with pytest.raises(Corruption, match="no shard row"):
        Log(store=log.store)


def test_a_shard_row_without_a_generation_is_corruption() -> None:
    store = FakeStore()
    batch = store.batch()
    batch.put(FAMILY, SHARD_KEY, encode_shard(ShardRow(last=NOON)))
    store.write(batch)

    with pytest.raises(Corruption, match="no generation"):
        Log(store=store)


# Failed writes


def test_a_failed_write_leaves_the_shard_as_it_was() -> None:
    log = Log(limits=EpochLimits(count_max=3))
    stamps = log.append("a", "b", producer=b"n", sequence=1)
    before = (log.shard.last, list(log.shard.epochs), log.shard.producer_mark(b"n"), log.shard.floor)
    log.store.fails = True

    with pytest.raises(Unavailable):
        log.append("c", "d", "e/e", producer=b"n", sequence=3)
    log.shard.discard()

    assert (log.shard.last, list(log.shard.epochs), log.shard.producer_mark(b"n"), log.shard.floor) == before
    log.store.fails = False
    again = log.append("c", "d", "e/e", producer=b"n", sequence=3)
    assert stamps_of(log.read("#")) == [*stamps, *again]


def test_what_the_layout_learned_in_a_failed_batch_is_written_with_the_next_one() -> None:
    log = Log("learned")
    log.append("known")
    log.store.fails = True
    with pytest.raises(Unavailable):
        log.append("new/topic")
    log.shard.discard()
    log.store.fails = False
    stamps = log.append("new/topic")

    log = log.reopened()
    more = log.append("new/topic")

    assert stamps_of(log.read("new/topic")) == [*stamps, *more]
    assert len({key[8:-4] for key in keys(log)}) == 2


def test_a_failed_first_write_leaves_no_rows() -> None:
    log = Log()
    log.store.fails = True
    with pytest.raises(Unavailable):
        log.append("a")
    log.shard.discard()
    log.store.fails = False

    stamps = log.append("b")

    assert stamps_of(log.reopened().read("#")) == stamps


def test_a_sealed_draft_takes_nothing_more() -> None:
    log = Log()
    batch = log.store.batch()
    log.shard.append(batch, entries(["a"]))
    log.shard.seal(batch)

    with pytest.raises(UsageError, match="sealed"):
        log.shard.append(batch, entries(["b"]))


def test_a_draft_is_adopted_only_when_it_is_sealed() -> None:
    log = Log()
    batch = log.store.batch()
    log.shard.append(batch, entries(["a"]))

    with pytest.raises(UsageError, match="only a sealed draft"):
        log.shard.adopt(log.store.write(batch))


def test_several_appends_in_one_batch_are_one_write() -> None:
    log = Log()
    batch = log.store.batch()
    stamps = [stamp for topic in ("a", "b", "a") for stamp in log.shard.append(batch, entries([topic]))]

    log.write(batch)

    assert stamps_of(log.read("#")) == stamps == [NOON, NOON + 1, NOON + 2]
    assert len(log.store.writes) == 1


# Commit and tail


def test_nothing_is_visible_before_its_commit() -> None:
    log = Log(tail_bytes_max=10_000)
    log.append("a", commit=False)

    assert log.read("#") == []
    assert log.shard.tail.since(0) == []

    log.commit()

    assert len(log.read("#")) == 1
    assert len(log.shard.tail.since(0) or []) == 1


def test_a_commit_shows_the_writes_up_to_its_number_in_order() -> None:
    log = Log()
    first, second, third = (log.append(topic, commit=False) for topic in "abc")

    assert stamps_of(log.shard.commit(2)) == [*first, *second]
    assert log.shard.watermark == second[-1]
    assert stamps_of(log.shard.commit(2)) == []
    assert stamps_of(log.shard.commit(3)) == third
