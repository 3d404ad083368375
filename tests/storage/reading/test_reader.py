"""Reading in order of time: where it looks, where it need not look, in what slices, and how it hands over to the tail."""

from __future__ import annotations

import pytest

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.records import Record, encode_record
from braidmq.storage.format.rows import SHARD_KEY, EpochLimits
from braidmq.storage.reading.epoch_scan import ScanCache, ScanLimits
from braidmq.storage.reading.reader import LogReader
from tests.storage.log import FAMILY, LAYOUTS, NOON, Log, drain, entries, stamps_of

pytestmark = pytest.mark.smoke

BOTH = pytest.mark.parametrize("layout", sorted(LAYOUTS))


class Ticks:
    """A clock that goes one second further each time it is looked at."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1
        return self.time


def slow_reader(log: Log, scans: ScanCache | None = None, steps: int = 3) -> LogReader:
    """A reader whose slices are over after a few steps."""
    ticks = Ticks()
    return LogReader(log.store, log.shard, scans or ScanCache(now=ticks), ticks, ScanLimits(steps=steps))


# Order and place


@BOTH
def test_records_are_read_in_time_order_although_stored_in_topic_order(layout: str) -> None:
    log = Log(layout)
    stamps = log.append("z", "a", "m/1", "a", "z", "m/2")

    assert stamps_of(log.read("#")) == stamps
    assert [record.topic for record in log.read("z", "m/+", "a")] == [b"z", b"a", b"m/1", b"a", b"z", b"m/2"]


@BOTH
def test_a_record_matched_by_several_filters_is_read_once(layout: str) -> None:
    log = Log(layout)
    stamps = log.append(*(f"a/{number}" for number in range(40)))

    assert stamps_of(log.read("a/+", "a/#", "a/7", "+/7")) == stamps


@BOTH
def test_a_reader_can_stop_and_resume_at_every_record(layout: str) -> None:
    log = Log(layout, limits=EpochLimits(count_max=4))
    stamps = log.append(*["a", "b", "c"] * 5)

    for number, start in enumerate([0, *stamps]):
        assert stamps_of(log.read("#", start=start)) == stamps[number:]


@BOTH
def test_hash_collisions_are_resolved_by_the_topic(layout: str) -> None:
    log = Log(layout)
    topics = [f"d/{number}/{kind}" for number in range(60) for kind in ("x", "y")]
    log.append(*topics)

    for topic in topics[::7]:
        assert [record.topic for record in log.read(topic)] == [topic.encode()]


def test_a_leading_wildcard_does_not_match_broker_topics() -> None:
    log = Log()
    log.append("$SYS/a", "a")

    assert [record.topic for record in log.read("#")] == [b"a"]
    assert [record.topic for record in log.read("$SYS/#")] == [b"$SYS/a"]


def test_session_only_records_are_read_only_on_request() -> None:
    log = Log()
    batch = log.store.batch()
    hidden = encode_record(b"t", b"", 1, False, "p", session_only=True)
    log.shard.append(batch, [(b"t", hidden), *entries(["t"])])
    log.write(batch)

    assert stamps_of(log.read("t")) == [NOON + 1]
    assert stamps_of(drain(log.reader.start_replay(["t"], 0, with_session_only=True))) == [NOON, NOON + 1]


def test_a_position_advances_over_records_that_do_not_match() -> None:
    log = Log(limits=EpochLimits(count_max=4))
    stamps = log.append(*["a"] * 11)
    replay = log.reader.start_replay(["nothing/here"], 0)

    assert drain(replay) == []
    assert replay.position == stamps[-1]


@pytest.mark.parametrize("wrong", [([], 0), (["a"], -1)])
def test_a_replay_without_filters_is_rejected(wrong: tuple[list[str], int]) -> None:
    with pytest.raises(UsageError):
        Log().reader.start_replay(*wrong)


def test_a_record_missing_from_disk_is_corruption() -> None:
    log = Log()
    log.append("a", "b")
    reader = LogReader(log.store, log.shard, limits=ScanLimits(values_bytes_max=0))
    replay = reader.start_replay(["#"], 0)
    assert len(replay.next(1)) == 1
    batch = log.store.batch()
    batch.delete_range(FAMILY, b"\0", SHARD_KEY)
    log.store.write(batch)

    with pytest.raises(Corruption, match="is missing"):
        replay.next(1)


# Where it looks


def test_s11_epochs_without_the_pattern_are_skipped() -> None:
    log = Log("learned", limits=EpochLimits(count_max=100))
    for number in range(50):
        log.append(*["common/topic"] * 99, "rare/topic" if number == 30 else "common/topic")
    log.store.seeks = log.store.records_read = 0

    found = log.read("rare/topic")

    assert len(found) == 1
    assert log.store.seeks == 1
    assert log.store.records_read <= 2


def test_s11_a_filter_that_nothing_matches_costs_no_seek() -> None:
    log = Log("learned", limits=EpochLimits(count_max=100))
    for _ in range(20):
        log.append(*["common/topic"] * 100)
    log.store.seeks = 0

    assert log.read("never/seen") == []
    assert log.store.seeks == 0


@BOTH
def test_an_exact_topic_is_found_by_seeking(layout: str) -> None:
    log = Log(layout)
    log.append(*(f"d/{number}/t" for number in range(500)))
    log.store.records_read = 0

    assert [record.topic for record in log.read("d/123/t")] == [b"d/123/t"]
    assert log.store.records_read < 400


def test_more_filters_than_records_cause_one_scan() -> None:
    log = Log()
    stamps = log.append("a", "b", "c")
    log.store.seeks = 0

    assert stamps_of(log.read(*(f"x/{number}" for number in range(100)), "b")) == stamps[1:2]
    assert log.store.seeks == 1


# Stop and resume, slices, sharing


def test_s12_a_client_with_a_small_window_scans_an_epoch_once() -> None:
    log = Log(limits=EpochLimits(count_max=2000))
    stamps = log.append(*(f"t/{number % 7}" for number in range(1000)))
    log.store.records_read = 0
    replay = log.reader.start_replay(["t/#"], 0)

    found = drain(replay, count=20)

    assert stamps_of(found) == stamps
    assert log.store.records_read <= 1001


def test_s12_readers_of_the_same_filters_share_one_scan() -> None:
    log = Log()
    stamps = log.append(*(f"t/{number % 7}" for number in range(500)))
    log.store.records_read = 0

    for start in (0, stamps[100], stamps[400]):
        replay = log.reader.start_replay(["t/+"], start)
        assert stamps_of(drain(replay, count=50)) == [stamp for stamp in stamps if stamp > start]

    assert log.store.records_read <= 501


def test_a_slice_ends_in_time_and_the_next_one_continues() -> None:
    log = Log()
    stamps = log.append(*["t"] * 100)
    replay = slow_reader(log).start_replay(["#"], 0)
    log.store.records_read = 0

    assert replay.next(100, slice_s=3) == []
    assert 0 < log.store.records_read <= 15
    assert not replay.is_caught_up
    found = []
    for _ in range(100):
        found += replay.next(100, slice_s=3)

    assert stamps_of(found) == stamps


def test_two_readers_at_one_position_share_a_scan() -> None:
    log = Log()
    stamps = log.append(*["t"] * 100)
    reader = slow_reader(log)
    one, other = reader.start_replay(["#"], 0), reader.start_replay(["#"], 0)

    turns = 0
    found: list[Record] = []
    while not found:
        turns += 1
        assert one.next(100, slice_s=3) == []
        found = other.next(100, slice_s=3)

    alone = slow_reader(log).start_replay(["#"], 0)
    turns_alone = 1
    while not alone.next(100, slice_s=3):
        turns_alone += 1
    assert stamps_of(found) == stamps
    assert turns * 2 <= turns_alone + 2


def test_an_answer_is_bounded_in_bytes_but_has_at_least_one_record() -> None:
    log = Log()
    stamps = log.append(*["t"] * 10, payload=bytes(1000))
    replay = log.reader.start_replay(["#"], 0)

    assert stamps_of(replay.next(10, bytes_max=2500)) == stamps[:3]
    assert stamps_of(replay.next(10, bytes_max=1)) == stamps[3:4]


@pytest.mark.parametrize("values_bytes_max", [0, 10_000_000])
def test_lists_with_and_without_values_read_the_same(values_bytes_max: int) -> None:
    log = Log()
    stamps = log.append(*["a", "b"] * 50, payload=bytes(100))
    reader = LogReader(log.store, log.shard, limits=ScanLimits(steps=16, values_bytes_max=values_bytes_max))

    found = drain(reader.start_replay(["a"], 0), count=7)

    assert [(record.timestamp, record.topic, len(record.payload)) for record in found] == [
        (stamp, b"a", 100) for stamp in stamps[::2]
    ]


def test_many_readers_at_different_positions_finish_within_the_memory_bound() -> None:
    log = Log(limits=EpochLimits(count_max=50))
    for _ in range(4):
        log.append(*(f"t/{number}" for number in range(50)))
    ticks = Ticks()
    scans = ScanCache(scans_max=3, bytes_max=1_000_000, claim_s=1_000, now=ticks)
    reader = LogReader(log.store, log.shard, scans, ticks, ScanLimits(steps=5))
    replays = [reader.start_replay([f"t/{number}", "t/+"], 0) for number in range(20)]
    found: list[list[int]] = [[] for _ in replays]

    for _ in range(2_000):
        for replay, seen in zip(replays, found, strict=True):
            seen += stamps_of(replay.next(30, slice_s=3))
            assert len(scans) <= 3
        if all(replay.is_caught_up for replay in replays):
            break

    assert all(seen == stamps_of(log.read("#")) for seen in found)


def test_an_abandoned_scan_is_released_after_a_while() -> None:
    log = Log()
    log.append(*["t"] * 50)
    ticks = Ticks()
    scans = ScanCache(scans_max=1, claim_s=50, now=ticks)
    reader = LogReader(log.store, log.shard, scans, ticks, ScanLimits(steps=2))
    abandoned = reader.start_replay(["+"], 0)
    assert abandoned.next(50, slice_s=2) == []

    found = drain(reader.start_replay(["t"], 0))

    assert len(found) == 50


# Watermark and concurrent appends


def test_s14_a_topic_learned_while_reading_is_not_missed() -> None:
    log = Log("learned")
    stamps = log.append(*(f"d/{number}/t" for number in range(3)))
    replay = slow_reader(log, steps=1).start_replay(["d/+/t"], 0)
    assert replay.next(1, slice_s=1) == []  # watermark and plan are taken, the scan has begun

    stamps += log.append("d/new/t", "d/0/t")

    assert stamps_of(drain(replay)) == stamps


def test_s14_records_above_the_watermark_wait_for_their_commit() -> None:
    log = Log()
    first = log.append("a")
    second = log.append("a", "b", commit=False)
    replay = log.reader.start_replay(["#"], 0)

    assert stamps_of(replay.next(10)) == first
    assert replay.is_caught_up
    log.commit()

    assert stamps_of(replay.next(10)) == second


def test_appends_to_the_open_epoch_do_not_disturb_a_running_scan() -> None:
    log = Log()
    stamps = log.append(*["a", "z"] * 10)
    replay = log.reader.start_replay(["#"], 0)
    found = replay.next(5)

    for number in range(8):
        stamps += log.append("a", "m", "z", f"new/{number}")
        found += replay.next(5)
    found += drain(replay)

    assert stamps_of(found) == stamps


# Hand-over to the tail


@pytest.mark.parametrize("tail_bytes_max", [0, 700, 3_000, 1_000_000])
def test_reading_continues_seamlessly_from_disk_to_tail(tail_bytes_max: int) -> None:
    log = Log(limits=EpochLimits(count_max=7), tail_bytes_max=tail_bytes_max)
    stamps: list[int] = []
    replay = log.reader.start_replay(["a", "b"], 0)
    found = []

    for number in range(60):
        stamps += log.append("a", "b")
        if number % 3 == 0:
            found += replay.next(4)
    found += drain(replay, 3)

    assert stamps_of(found) == stamps


def test_a_reader_that_has_caught_up_reads_the_tail_not_the_disk() -> None:
    log = Log(tail_bytes_max=1_000_000)
    replay = log.reader.start_replay(["a/+"], 0)
    log.store.seeks = log.store.records_read = 0

    stamps = [log.append("a/1", "b", "a/2") for _ in range(400)]
    found = drain(replay, 100)

    assert stamps_of(found) == [stamp for batch in stamps for stamp in (batch[0], batch[2])]
    assert (log.store.seeks, log.store.records_read) == (0, 0)


def test_answers_from_the_tail_are_bounded() -> None:
    log = Log(tail_bytes_max=100_000)
    replay = log.reader.start_replay(["#"], 0)
    stamps = log.append(*["t"] * 10, payload=bytes(1000))

    assert stamps_of(replay.next(2)) == stamps[:2]
    assert stamps_of(replay.next(10, bytes_max=1500)) == stamps[2:4]


def test_the_tail_is_empty_after_a_restart() -> None:
    log = Log(tail_bytes_max=100_000)
    stamps = log.append("a", "b")

    log = log.reopened()
    assert log.shard.tail.since(stamps[0]) is None
    more = log.append("a")

    assert stamps_of(log.read("#")) == [*stamps, *more]
    assert stamps_of(log.shard.tail.since(stamps[-1]) or []) == more
