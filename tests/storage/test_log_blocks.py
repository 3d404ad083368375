"""Blocks: many records that are appended, written and acknowledged as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base.errors import UsageError
from braidmq.lane.records.records import Record, encode_record
from braidmq.storage.format.record import VALUE_BYTES_MAX
from braidmq.storage.log import LogOptions
from braidmq.storage.rows.changes import Change, Put, WriteRefusal
from tests.storage.message_log import BrokenDisk, Stage, unexpected

RECORD = encode_record(b"t", b"x", 1, False, "p")


class FakeBlock:
    """A block that notes what it is told, in a list that several may share."""

    def __init__(self, name: str = "block", told: list[str] | None = None) -> None:
        self.entries: dict[int, list[tuple[bytes, bytes]]] = {}
        self.changes: list[Change] = []
        self.size_bytes = 0
        self.producers: list[tuple[int, bytes, int, int]] = []
        self.stamps: list[dict[int, list[int]]] = []
        self.refusals: list[WriteRefusal] = []
        self._name = name
        self._told = told if told is not None else []

    def add(self, shard: int, topic: str, payload: bytes) -> FakeBlock:
        value = encode_record(topic.encode(), payload, 1, False, "p")
        self.entries.setdefault(shard, []).append((topic.encode(), value))
        self.size_bytes += len(value)
        return self

    def marks(self) -> list[tuple[int, bytes, int, int]]:
        return self.producers

    def committed(self, stamps: dict[int, list[int]]) -> None:
        self.stamps.append(stamps)
        self._told.append(self._name)

    def refused(self, refusal: WriteRefusal) -> None:
        self.refusals.append(refusal)
        self._told.append(f"{self._name} refused")

    def payloads(self) -> dict[int, list[bytes]]:
        return {shard: [Record(0, value).payload for _, value in entries] for shard, entries in self.entries.items()}


def test_a_block_is_notified_once_with_the_timestamps_of_its_records(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        block = FakeBlock()
        for number in range(100):
            block.add(number % 3, f"t/{number % 7}", b"%d" % number)

        stage.log.append_block(block)
        stage.log.flush()
        assert block.stamps == []
        stage.settle()

        (stamps,) = block.stamps
        stored = {(shard, record.timestamp): record.payload for shard, record in stage.read("#")}
        assert {shard: [stored[shard, stamp] for stamp in each] for shard, each in stamps.items()} == block.payloads()
        assert all(each == sorted(set(each)) for each in stamps.values())
        assert len(stored) == 100


def test_blocks_and_changes_of_one_flush_are_acknowledged_and_stored_in_the_order_of_the_calls(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        told: list[str] = []
        first, second = FakeBlock("first", told).add(1, "t", b"1").add(1, "t", b"2"), FakeBlock("second", told)
        second.add(1, "t", b"5").add(0, "t", b"0")
        between, last = FakeBlock("between", told).add(1, "t", b"3").add(1, "t", b"4"), FakeBlock("last", told).add(1, "t", b"6")

        stage.log.append_block(first)
        stage.log.append_block(between)
        stage.log.change([Put(0, b"\xe9", b"")], on_commit=lambda: told.append("rows"), on_refused=unexpected)
        stage.log.append_block(second)
        stage.log.append_block(last)
        stage.settle()

        assert told == ["first", "between", "rows", "second", "last"]
        in_shard = {shard: [record for at, record in stage.read("#") if at == shard] for shard in (0, 1)}
        assert [record.payload for record in in_shard[1]] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        stamps = [record.timestamp for record in in_shard[1]]
        assert (first.stamps, between.stamps, last.stamps) == ([{1: stamps[:2]}], [{1: stamps[2:4]}], [{1: stamps[5:]}])
        assert second.stamps == [{1: stamps[4:5], 0: [in_shard[0][0].timestamp]}]


def test_watermarks_and_followers_are_updated_before_the_block_is_notified(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        told: list[str] = []
        block = FakeBlock("block", told).add(2, "t", b"1")
        seen: list[bool] = []

        def follow(shard: int, records: object) -> None:
            told.append("follower")
            seen.append(stage.log.watermarks[2] > 0)

        stage.log.follow(2, follow)
        stage.log.append_block(block)
        stage.settle()

        assert told == ["follower", "block"]
        assert seen == [True]


def test_the_rows_of_a_block_are_written_with_its_records_or_not_at_all(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        kept = FakeBlock().add(0, "t", b"1")
        kept.changes = [Put(2, b"\xe9row", b"kept")]
        stage.log.append_block(kept)
        stage.settle()
        disk.is_full = True
        stage.log.check()
        lost = FakeBlock().add(0, "t", b"2").add(1, "t", b"3")
        lost.changes = [Put(2, b"\xe9row", b"lost")]
        stage.log.append_block(lost)
        stage.settle()

        assert stage.log.row(2, b"\xe9row") == b"kept"
        assert stage.payloads("#") == [b"1"]
        assert (lost.stamps, [refusal.is_in_doubt for refusal in lost.refusals]) == ([], [False])
        assert stage.log.stats().refused == 2
        assert stage.log.pending_bytes == 0


def test_producer_sequences_are_written_with_the_records_or_not_at_all(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        kept = FakeBlock().add(0, "t", b"1")
        kept.producers = [(0, b"p", 7, 0xC0FFEE), (2, b"q", 9, 1)]  # shard 2 has no record, now or before
        stage.log.append_block(kept)
        stage.settle()
        disk.is_full = True
        stage.log.check()
        lost = FakeBlock().add(0, "t", b"2")
        lost.producers = [(0, b"p", 8, 2)]
        stage.log.append_block(lost)
        stage.settle()
        assert len(lost.refusals) == 1
        assert stage.log.producer_mark(0, b"p") == (7, 0xC0FFEE)

    with Stage(tmp_path) as stage:
        marks = [stage.log.producer_mark(*each) for each in ((0, b"p"), (2, b"q"), (1, b"p"))]
        assert marks == [(7, 0xC0FFEE), (9, 1), (0, None)]
        block = FakeBlock().add(2, "t", b"3")
        stage.log.append_block(block)
        stage.settle()
        assert stage.payloads("#") == [b"1", b"3"]


def test_a_block_of_rows_alone_is_notified_too(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        block = FakeBlock()
        block.changes = [Put(0, b"\xe9", b"v")]
        stage.log.append_block(block)
        stage.settle()

        assert block.stamps == [{}]
        assert stage.log.row(0, b"\xe9") == b"v"


def test_a_block_whose_commit_failed_is_in_doubt(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        disk.is_broken = True
        block = FakeBlock().add(0, "t", b"1")
        stage.log.append_block(block)
        stage.log.flush()
        while not stage.log.check().needs_restart:
            pass

        assert (block.stamps, [refusal.is_in_doubt for refusal in block.refusals]) == ([], [True])
        assert stage.payloads("#") == []


def test_blocks_are_held_and_then_rejected_at_the_bounds_of_the_queue(tmp_path: Path) -> None:
    with Stage(tmp_path, options=LogOptions(pending_bytes_max=100_000)) as stage:
        blocks = [FakeBlock().add(0, "t", bytes(10_000)) for _ in range(20)]
        held_after = 0
        for number, block in enumerate(blocks, start=1):
            stage.log.append_block(block)
            if stage.log.is_congested and not held_after:
                held_after = number

        assert held_after == 5
        assert [bool(block.refusals) for block in blocks] == [False] * 10 + [True] * 10
        stage.settle()
        assert [len(block.stamps) for block in blocks] == [1] * 10 + [0] * 10
        assert not stage.log.is_congested


@pytest.mark.parametrize(
    ("shard", "entry"),
    [
        (3, (b"t", encode_record(b"t", b"", 0, False, ""))),
        (-1, (b"t", encode_record(b"t", b"", 0, False, ""))),
        (0, (b"", encode_record(b"", b"", 0, False, ""))),
        (0, (b"t", b"no record")),
        (0, (b"t", b"\x09newer")),
        (0, (b"t", b"\2" + RECORD[1:])),
        (0, (b"t", RECORD[:7])),
        (0, (bytes(65_536), RECORD)),
        (0, (b"t", bytes(VALUE_BYTES_MAX + 1))),
    ],
    ids=lambda value: value if isinstance(value, int) else f"{len(value[0])}-{len(value[1])}",
)
def test_a_block_with_an_invalid_record_is_rejected_before_others_are_touched(
    tmp_path: Path, shard: int, entry: tuple[bytes, bytes]
) -> None:
    with Stage(tmp_path) as stage:
        stage.append("a", "t", b"1")
        block = FakeBlock().add(0, "t", b"2")
        block.entries.setdefault(shard, []).append(entry)
        with pytest.raises(UsageError):
            stage.log.append_block(block)
        stage.settle()

        assert stage.payloads("#") == [b"1"]
        assert (block.stamps, block.refusals) == ([], [])


def test_a_block_with_a_row_of_the_log_itself_is_refused(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        block = FakeBlock().add(0, "t", b"1")
        block.changes = [Put(0, b"\xe0", b"")]
        with pytest.raises(UsageError):
            stage.log.append_block(block)

        assert stage.log.pending_bytes == 0


def test_the_log_reports_its_number_of_shards(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=3) as stage:
        assert stage.log.shards == 3
