"""What every scan of the log does, whether the log is here or on another node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from braidmq.broker.ports import LogScan
from braidmq.lane.records.records import Record
from tests.storage.message_log import Stage
from tests.support.remote_scans import ScanPair

SHARDS = 3


class Bench(NamedTuple):
    """A log, a way to read it, and a way to let time pass."""

    stage: Stage
    open: Callable[..., LogScan]
    carry: Callable[[], None]


@pytest.fixture(params=["local", "remote", "remote with little credit"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with Stage(tmp_path, shards=SHARDS) as stage:
        if request.param == "local":

            def open_local(filters: Sequence[str], start: Mapping[int, int], with_session_only: bool = False) -> LogScan:
                return stage.log.replay(filters, start, with_session_only=with_session_only)

            yield Bench(stage, open_local, lambda: None)
        else:
            pair = ScanPair(stage.log, *([200] if "little" in request.param else []))
            yield Bench(stage, pair.open, pair.carry)


def fill(stage: Stage, count: int, first: int = 0) -> list[bytes]:
    texts = [b"%d" % number for number in range(first, first + count)]
    for text in texts:
        stage.append(f"client{text.decode()}", "even" if int(text) % 2 == 0 else "odd", text)
        stage.settle()
    return texts


def read(bench: Bench, scan: LogScan, count_max: int = 7) -> list[tuple[int, Record]]:
    """Read to the end, waiting as the port says."""
    found: list[tuple[int, Record]] = []
    for _ in range(1000):
        records = scan.next(count_max, slice_s=1.0)
        assert len(records) <= count_max
        found += records
        if scan.is_caught_up:
            return found
        if not records:
            assert scan.is_waiting
            wait(bench, scan)
    raise AssertionError("the scan has no end")


def wait(bench: Bench, scan: LogScan) -> None:
    wakes: list[bool] = []
    scan.when_ready(lambda: wakes.append(True))
    assert wakes == [], "not within the call"
    bench.carry()
    assert wakes == [True], "once"


def beginning() -> dict[int, int]:
    return dict.fromkeys(range(SHARDS), 0)


def test_everything_that_matches_is_returned_once_in_order_of_time(bench: Bench) -> None:
    texts = fill(bench.stage, 50)
    scan = bench.open(["#"], beginning())

    found = read(bench, scan)

    assert [record.payload for _, record in found] == texts
    assert [record.timestamp for _, record in found] == sorted(record.timestamp for _, record in found)
    assert all(shard == bench.stage.log.shard_of(record.publisher) for shard, record in found)
    scan.close()


def test_only_what_matches_is_returned(bench: Bench) -> None:
    fill(bench.stage, 20)

    found = read(bench, bench.open(["odd"], beginning()))

    assert {record.topic for _, record in found} == {b"odd"}
    assert len(found) == 10


def test_another_scan_continues_from_the_positions_of_what_was_handed_out(bench: Bench) -> None:
    texts = fill(bench.stage, 30)
    scan = bench.open(["#"], beginning())
    found: list[bytes] = []
    while len(found) < 10:
        found += [record.payload for _, record in scan.next(3, slice_s=1.0)]
        bench.carry()
    scan.close()

    rest = read(bench, bench.open(["#"], scan.positions()))

    assert found + [record.payload for _, record in rest] == texts


def test_at_the_end_the_positions_are_those_of_the_log(bench: Bench) -> None:
    fill(bench.stage, 30)
    scan = bench.open(["nothing"], beginning())

    assert read(bench, scan) == []

    assert all(scan.positions()[shard] >= mark for shard, mark in bench.stage.log.watermarks.items())


def test_a_scan_that_has_caught_up_goes_on_with_what_is_committed_later(bench: Bench) -> None:
    fill(bench.stage, 5)
    scan = bench.open(["#"], beginning())
    read(bench, scan)

    later = fill(bench.stage, 5, first=5)
    found = scan.next(100, slice_s=1.0)
    if not found:
        bench.carry()
        found = scan.next(100, slice_s=1.0)
    found += read(bench, scan)

    assert [record.payload for _, record in found] == later


def test_session_only_records_are_returned_on_request(bench: Bench) -> None:
    bench.stage.append("c", "t", b"hidden", session_only=True)
    bench.stage.settle()

    assert read(bench, bench.open(["#"], beginning())) == []
    assert [record.payload for _, record in read(bench, bench.open(["#"], beginning(), True))] == [b"hidden"]


def test_a_closed_scan_calls_nobody_back(bench: Bench) -> None:
    fill(bench.stage, 5)
    scan = bench.open(["#"], beginning())
    wakes: list[bool] = []
    scan.next(1, slice_s=0.0)
    scan.when_ready(lambda: wakes.append(True))

    scan.close()
    bench.carry()

    assert wakes == []
