"""Retention of the whole log: by age, by bytes of all shards together, and what readers are told and may pin."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable
from braidmq.base.units import Seconds
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.rocksdb import MIB, Disk, Tuning
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from braidmq.storage.reading.positions import At, Earliest
from braidmq.storage.shard.clock import ShardClock
from tests.storage.log import NOON, Hands
from tests.storage.message_log import BrokenDisk, Stage, clients_of, drain, tables_bytes, unexpected

SECOND = 1_000_000
# One record is one epoch, so that retention is exact to a record.
SINGLE = LogOptions(limits=EpochLimits(count_max=1), tail_bytes_max=0)


class AgedStage(Stage):
    """A log whose time the test moves."""

    def __init__(self, path: Path, options: LogOptions = SINGLE, **settings: object) -> None:
        self.hands = Hands()
        super().__init__(path, options=options, clock=ShardClock(lambda: self.hands.boot, lambda: self.hands.wall), **settings)  # type: ignore[arg-type]

    def publish_each_second(self, shards: list[int]) -> None:
        """One record a second, into these shards; the payload is the number."""
        for number, shard in enumerate(shards):
            self.publish(clients_of(self.log, shard)[0], "t", b"%02d" % number)
            self.hands.move(SECOND)

    def save(self, name: str, position: int, *, pins: bool = True) -> None:
        self.log.readers.save(name, dict.fromkeys(range(3), position), pins=pins, on_saved=lambda: None, on_refused=unexpected)
        self.settle()


def numbers(*each: int) -> list[bytes]:
    return [b"%02d" % number for number in each]


def test_records_older_than_the_retention_are_deleted(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])

        stage.log.retain()

        assert stage.payloads("#") == numbers(4, 5, 6, 7)


def test_the_time_of_a_step_can_be_given(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(10)) as stage:
        stage.publish_each_second([0, 1, 2])

        stage.log.retain(NOON + 11 * SECOND + 1)

        assert stage.payloads("#") == numbers(2)


def test_bytes_are_shared_by_all_shards_and_the_oldest_go_first(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(1000)) as stage:
        # One shard has nearly everything: it may use the share of the others.
        stage.publish_each_second([0, 1, 0, 0, 0, 0, 0, 0])
        each = stage.log.stats().shards[1].size_bytes
    with AgedStage(tmp_path, retention=Seconds(1000), retention_bytes=str(each * 5)) as stage:
        stage.log.retain()

        # The newest record of a shard always stays.
        assert stage.payloads("#") == numbers(1, 3, 4, 5, 6, 7)


def test_a_reader_below_the_floor_gets_the_gap_once(tmp_path: Path) -> None:
    with AgedStage(tmp_path, shards=1, retention=Seconds(3.5)) as stage:
        stage.publish_each_second([0] * 6)
        replay = stage.log.replay(["#"], stage.log.positions_at(At(NOON)))
        assert [record.payload for _, record in replay.next(1)] == numbers(0)
        stage.log.retain()
        found = [record.payload for _, record in drain(replay)]

        assert found[-3:] == numbers(3, 4, 5)
        starts = stage.log.positions_at(At(NOON + SECOND))
        assert stage.log.gaps(starts)[0].floor == NOON + 2 * SECOND + 1
        late = stage.log.replay(["#"], starts)
        assert [record.payload for _, record in drain(late)] == numbers(3, 4, 5)
        assert late.take_gaps() == stage.log.gaps(starts)
        assert late.take_gaps() == {}


def test_earliest_and_a_complete_range_have_no_gap(tmp_path: Path) -> None:
    with AgedStage(tmp_path, shards=1, retention=Seconds(3.5)) as stage:
        stage.publish_each_second([0] * 6)
        stage.log.retain()

        assert stage.log.gaps(stage.log.positions_at(Earliest())) == {}
        assert stage.log.gaps(stage.log.positions_at(At(NOON + 3 * SECOND))) == {}
        assert stage.payloads("#", start=stage.log.positions_at(Earliest())) == numbers(3, 4, 5)


def test_a_position_from_an_empty_log_reports_what_was_deleted_since(tmp_path: Path) -> None:
    with AgedStage(tmp_path, shards=1, retention=Seconds(3.5)) as stage:
        replay = stage.log.replay(["#"], 0)
        drain(replay)
        positions = replay.positions()
        stage.publish_each_second([0] * 6)
        stage.log.retain()

        assert list(stage.log.gaps(positions)) == [0]


def test_a_pinning_reader_keeps_what_it_has_not_read_up_to_a_limit(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])
        stage.save("query", NOON + SECOND)
        stage.log.retain()
        assert stage.payloads("#") == numbers(2, 3, 4, 5, 6, 7)

        stage.hands.move(4 * SECOND)
        stage.log.retain()
        assert stage.payloads("#") == numbers(3, 4, 5, 6, 7)


def test_a_pin_may_add_as_many_bytes_again_and_no_more(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(1000)) as stage:
        stage.publish_each_second([0] * 8)
        each = stage.log.stats().size_bytes // 8
    with AgedStage(tmp_path, retention=Seconds(1000), retention_bytes=str(each * 3)) as stage:
        stage.save("query", NOON)

        stage.log.retain()

        assert stage.payloads("#") == numbers(2, 3, 4, 5, 6, 7)


def test_a_reader_that_does_not_pin_or_is_dropped_keeps_nothing(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])
        stage.save("idle", NOON, pins=False)
        stage.save("gone", NOON)
        stage.log.readers.drop("gone", on_dropped=lambda: None, on_refused=unexpected)
        stage.settle()

        stage.log.retain()

        assert stage.payloads("#") == numbers(4, 5, 6, 7)


def test_floor_and_remaining_records_survive_reopening(tmp_path: Path) -> None:
    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])
        stage.log.retain()
        floors = [shard.floor for shard in stage.log.stats().shards]

    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        assert [shard.floor for shard in stage.log.stats().shards] == floors
        assert stage.payloads("#") == numbers(4, 5, 6, 7)


def test_a_step_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with AgedStage(tmp_path, SINGLE._replace(disk=disk), retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])
        disk.is_broken = True
        stage.append("a", "t", b"08")
        stage.log.flush()
        while not stage.log.check().needs_restart:
            pass
        with pytest.raises(Unavailable):
            stage.log.retain()

        assert stage.payloads("#") == numbers(0, 1, 2, 3, 4, 5, 6, 7)


def test_retention_continues_on_a_full_disk(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with AgedStage(tmp_path, SINGLE._replace(disk=disk), retention=Seconds(4.5)) as stage:
        stage.publish_each_second([0, 1, 2, 0, 1, 2, 0, 1])
        disk.is_full = True
        stage.log.check()

        stage.log.retain()
        stage.publish("a", "t", b"08")

        assert stage.payloads("#") == numbers(4, 5, 6, 7)
        assert [payload for payload, _ in stage.refusals] == [b"08"]
    with AgedStage(tmp_path, retention=Seconds(4.5)) as stage:
        assert stage.payloads("#") == numbers(4, 5, 6, 7)


def test_a_full_disk_recovers_by_itself_when_old_records_go(tmp_path: Path) -> None:
    class SizedDisk(Disk):
        """A disk with room for little more than the records."""

        def free_bytes(self, path: Path) -> int:
            return 3 * MIB - tables_bytes(path)

    options = LogOptions(tail_bytes_max=0, tuning=Tuning(memtables_bytes=MIB, reserve_bytes=MIB), disk=SizedDisk())
    with AgedStage(tmp_path, options, shards=1, retention=Seconds(100)) as stage:
        noise = random.Random(1)
        published = 0
        while not stage.refusals:
            for _ in range(10):
                stage.append("a", f"t/{published % 10}", noise.randbytes(2000))
                published += 1
            stage.settle()
            stage.log.check()
            assert published < 5000
        stage.hands.move(101 * SECOND)
        stage.log.retain()

        stage.log.reclaim()

        assert stage.log.check().state is HealthState.OK
        stage.publish("a", "t", b"new")
        assert stage.payloads("#") == [b"new"]


def test_a_producer_that_was_silent_for_a_month_is_forgotten(tmp_path: Path) -> None:
    with AgedStage(tmp_path, shards=1, retention=Seconds(10**7)) as stage:
        stage.append("a", "t", b"1", producers=[(0, b"old", 5, 1)])
        stage.settle()
        stage.hands.move(20 * 86_400 * SECOND)
        stage.append("a", "t", b"2", producers=[(0, b"young", 5, 2)])
        stage.settle()
        stage.hands.move(11 * 86_400 * SECOND)
        stage.log.retain()

        assert [stage.log.producer_mark(0, name) for name in (b"old", b"young")] == [(0, None), (5, 2)]
