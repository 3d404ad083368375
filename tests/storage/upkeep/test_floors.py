"""Retention takes whole epochs by age and bytes, spares what is pinned within a limit, and tells readers of the gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.storage.format.rows import EPOCH_PREFIX, GENERATION_PREFIX, LAYOUT_PREFIX, SHARD_KEY, EpochLimits, EpochRow
from braidmq.storage.reading.reader import RetentionGap
from braidmq.storage.upkeep.floors import RetentionLimits, choose_floor
from tests.storage.log import FAMILY, LAYOUTS, Log, drain, stamps_of

HOUR = 3_600_000_000
# Four epochs of an hour with 100 bytes each; the last one may be the open one.
EPOCHS = [EpochRow(hour * HOUR, hour * HOUR + HOUR - 1, 10, 100) for hour in range(1, 5)]
NOW = 5 * HOUR


def floor(limits: RetentionLimits, pins: tuple[int, ...] = (), watermark: int = NOW, present: int = 0) -> int:
    return choose_floor(EPOCHS, limits, NOW, watermark, pins, present)


def test_without_limits_nothing_is_removed() -> None:
    assert floor(RetentionLimits()) == 0


def test_an_epoch_is_removed_when_its_last_record_is_too_old() -> None:
    assert floor(RetentionLimits(age_us=2 * HOUR)) == 3 * HOUR
    assert floor(RetentionLimits(age_us=2 * HOUR + 1)) == 2 * HOUR


def test_age_removes_the_newest_epoch_too() -> None:
    assert floor(RetentionLimits(age_us=0)) == 5 * HOUR


def test_a_byte_limit_removes_the_oldest_epochs_until_the_rest_fits() -> None:
    assert floor(RetentionLimits(size_bytes=400)) == 0
    assert floor(RetentionLimits(size_bytes=399)) == 2 * HOUR
    assert floor(RetentionLimits(size_bytes=200)) == 3 * HOUR


def test_a_byte_limit_never_removes_the_newest_epoch() -> None:
    assert floor(RetentionLimits(size_bytes=0)) == 4 * HOUR


def test_uncommitted_records_are_kept() -> None:
    assert floor(RetentionLimits(age_us=0), watermark=2 * HOUR + 5) == 2 * HOUR


def test_a_pin_keeps_what_its_reader_has_not_read() -> None:
    limits = RetentionLimits(size_bytes=100, pin_bytes=1000)

    assert floor(limits, pins=(2 * HOUR + 5, 4 * HOUR)) == 2 * HOUR
    assert floor(limits, pins=(3 * HOUR - 1,)) == 3 * HOUR
    assert floor(limits, pins=(NOW,)) == 4 * HOUR


def test_a_pin_holds_only_up_to_its_limit() -> None:
    assert floor(RetentionLimits(size_bytes=100, pin_bytes=100), pins=(0,)) == 3 * HOUR
    assert floor(RetentionLimits(age_us=HOUR, pin_age_us=HOUR), pins=(0,)) == 3 * HOUR


def test_the_floor_never_moves_back() -> None:
    assert floor(RetentionLimits(), present=77) == 77


@given(
    st.integers(0, 6 * HOUR),
    st.integers(0, 500),
    st.lists(st.integers(0, 6 * HOUR), max_size=3),
    st.integers(0, 3 * HOUR),
    st.integers(0, 300),
)
def test_pins_only_ever_keep_more(age_us: int, size_bytes: int, pins: list[int], pin_age_us: int, pin_bytes: int) -> None:
    limits = RetentionLimits(age_us, size_bytes, pin_age_us, pin_bytes)
    further = RetentionLimits(age_us + pin_age_us, size_bytes + pin_bytes)

    assert floor(further) <= floor(limits, tuple(pins)) <= floor(limits)


# On a shard

LIMITS = EpochLimits(count_max=2)


def filled(epochs: int = 3) -> tuple[Log, list[int]]:
    log = Log(limits=LIMITS)
    return log, [stamp for _ in range(epochs) for stamp in log.append("a", "b")]


def raise_floor(log: Log, to: int) -> int:
    batch = log.store.batch()
    raised = log.shard.raise_floor(batch, to)
    log.write(batch)
    return raised


def test_raising_the_floor_removes_whole_epochs_and_their_rows() -> None:
    log, stamps = filled()

    raised = raise_floor(log, stamps[3])

    assert raised == stamps[1] + 1
    assert stamps_of(log.read("#")) == stamps[2:]
    assert {key[:8] for key, _ in log.store.items(FAMILY, b"\0", SHARD_KEY)} == {stamps[at].to_bytes(8, "big") for at in (2, 4)}
    assert len(list(log.store.items(FAMILY, EPOCH_PREFIX, GENERATION_PREFIX))) == 1


def test_the_floor_is_kept_over_a_restart() -> None:
    log, stamps = filled()
    raise_floor(log, stamps[2])

    log = log.reopened()

    assert log.shard.floor == stamps[1] + 1
    assert stamps_of(log.read("#")) == stamps[2:]
    assert [epoch.start for epoch in log.shard.epochs] == [stamps[2], stamps[4]]


def test_an_open_epoch_that_is_too_old_is_closed_and_removed() -> None:
    log, stamps = filled()

    raise_floor(log, stamps[-1] + 1)
    (later,) = log.append("a")

    assert log.shard.floor == stamps[-1] + 1
    assert stamps_of(log.read("#")) == [later]
    assert stamps_of(log.reopened().read("#")) == [later]


def test_an_open_epoch_that_the_same_batch_makes_longer_stays() -> None:
    log = Log(limits=EpochLimits(count_max=3))
    stamps = log.append("a", "b")
    batch = log.store.batch()
    added = log.shard.append(batch, [(b"c", log.read("#")[0].value)] * 2)

    raised = log.shard.raise_floor(batch, added[-1] + 1)
    log.write(batch)

    assert raised == 0
    assert stamps_of(log.read("#")) == [*stamps, *added]


def test_nothing_uncommitted_is_removed() -> None:
    log = Log(limits=LIMITS)
    first = log.append("a", "b")
    second = log.append("a", "b", commit=False)
    log.append("a", commit=False)

    batch = log.store.batch()
    raised = log.shard.raise_floor(batch, second[-1] + 1)
    log.write(batch)

    assert raised == first[-1] + 1
    assert stamps_of(log.read("#")[:2]) == second


def test_a_reader_below_the_floor_gets_the_gap_once_and_continues() -> None:
    log, stamps = filled()
    replay = log.reader.start_replay(["#"], 0)
    assert stamps_of(replay.next(1, slice_s=60)) == stamps[:1]

    raise_floor(log, stamps[4])

    assert stamps_of(drain(replay)) == stamps[4:]
    assert replay.take_gap() == RetentionGap(wanted=stamps[0], floor=stamps[3] + 1)
    assert replay.take_gap() is None


def test_a_start_below_the_floor_is_a_gap_and_earliest_is_not() -> None:
    log, stamps = filled()
    raise_floor(log, stamps[4])

    asked = log.reader.start_replay(["#"], stamps[0])
    earliest = log.reader.start_replay(["#"], 0)

    assert stamps_of(drain(asked)) == stamps_of(drain(earliest)) == stamps[4:]
    assert asked.take_gap() == RetentionGap(stamps[0], stamps[3] + 1)
    assert earliest.take_gap() is None


def test_a_reader_that_had_read_what_was_removed_has_no_gap() -> None:
    log, stamps = filled()
    replay = log.reader.start_replay(["#"], stamps[1])
    raise_floor(log, stamps[2])

    assert stamps_of(drain(replay)) == stamps[2:]
    assert replay.take_gap() is None


# Generations


def test_a_generation_is_removed_with_its_last_record() -> None:
    log, _ = filled()
    batch = log.store.batch()
    log.shard.add_generation(batch, "hashed", LAYOUTS["hashed"])
    log.write(batch)
    later = log.append("a", "b")

    raise_floor(log, later[0])

    assert [each.row.number for each in log.shard.generations] == [2]
    assert [each.row.number for each in log.reopened().shard.generations] == [2]
    assert list(log.store.items(FAMILY, LAYOUT_PREFIX, LAYOUT_PREFIX + b"\0\0\0\2")) == []
    assert stamps_of(log.read("#")) == later


def test_only_the_oldest_generation_can_be_dropped_and_never_the_current_one() -> None:
    log, stamps = filled(1)
    batch = log.store.batch()
    with pytest.raises(UsageError, match="oldest"):
        log.shard.drop_generation(batch, 1)
    log.shard.discard()

    batch = log.store.batch()
    log.shard.add_generation(batch, "learned")
    log.write(batch)
    later = log.append("a")
    batch = log.store.batch()
    log.shard.drop_generation(batch, 1)
    log.write(batch)

    assert stamps_of(log.read("a")) == later
    assert log.shard.floor == stamps[-1] + 1


def test_a_generation_dropped_while_it_is_read_is_a_gap() -> None:
    log, stamps = filled()
    batch = log.store.batch()
    log.shard.add_generation(batch, "learned")
    log.write(batch)
    later = log.append("a", "b")
    replay = log.reader.start_replay(["a", "b"], 0)
    assert stamps_of(replay.next(3)) == stamps[:3]

    batch = log.store.batch()
    log.shard.drop_generation(batch, 1)
    log.write(batch)

    assert stamps_of(drain(replay)) == later
    assert replay.take_gap() == RetentionGap(stamps[2], stamps[-1] + 1)
