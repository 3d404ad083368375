"""Scans of a node: credit, bounds, failures and the loss of the connection."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import Unavailable
from braidmq.broker.reading.shown import Showing, ShownScan
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record, encode_record
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame
from braidmq.net.proto_v1 import ScanClose, ScanCredit, ScanRecords
from tests.storage.message_log import Stage
from tests.support.fakes.storage import FakeLog
from tests.support.remote_scans import ScanPair

START = {0: 0, 1: 0}


def filled(tmp_path: Path, count: int, size: int) -> Stage:
    stage = Stage(tmp_path, shards=2)
    for number in range(count):
        stage.append("c", "t", b"%d" % number + bytes(size))
    stage.settle()
    return stage


def test_the_core_sends_no_more_than_its_credit_and_one_message(tmp_path: Path) -> None:
    with filled(tmp_path, 100, 10_000) as stage:
        pair = ScanPair(stage.log, credit_bytes=100_000)
        scan = pair.open(["#"], START)
        scan.next(1, slice_s=0.0)
        pair.serve()
        sent = sum(len(body) for _, _, body in pair.to_node)
        pair.serve()
        assert sent == sum(len(body) for _, _, body in pair.to_node) <= 100_000 + 70_000

        pair.deliver()
        taken = scan.next(100, slice_s=0.0)
        pair.serve()

        assert len(pair.to_node), "what was taken is credit again"
        assert 10 <= len(taken) <= 17


def test_a_record_larger_than_a_frame_arrives_whole(tmp_path: Path) -> None:
    with filled(tmp_path, 2, 2 * BODY_BYTES_MAX) as stage:
        pair = ScanPair(stage.log)
        scan = pair.open(["#"], START)
        found = scan.next(5, slice_s=0.0)
        for _ in range(5):
            pair.carry()
            found += scan.next(5, slice_s=0.0)

        assert [len(record.payload) for _, record in found] == [2 * BODY_BYTES_MAX + 1] * 2


def test_a_lost_connection_ends_every_scan_and_wakes_its_reader() -> None:
    pair = ScanPair(FakeLog())
    scan = pair.open(["#"], START)
    scan.next(1, slice_s=0.0)
    wakes: list[bool] = []
    scan.when_ready(lambda: wakes.append(True))

    pair.remote.lost()

    assert wakes == [True]
    with pytest.raises(Unavailable):
        scan.next(1, slice_s=0.0)
    scan.close()
    with pytest.raises(Unavailable):
        pair.open(["#"], START)
    assert len(pair.remote) == 0


def test_a_log_that_cannot_be_read_is_reported_with_its_reason() -> None:
    log = FakeLog()
    log.fault = Unavailable("the disk is slow", 3.0)
    pair = ScanPair(log)
    scan = pair.open(["#"], START)
    scan.next(1, slice_s=0.0)

    pair.carry()

    with pytest.raises(Unavailable, match="the disk is slow") as raised:
        scan.next(1, slice_s=0.0)
    assert raised.value.retry_after_s == 3.0
    assert log.scans == []
    scan.close()
    assert not pair.to_home, "the core has closed it"


def test_a_scan_whose_source_is_not_ready_takes_no_turns() -> None:
    log = FakeLog()
    log.is_ready = False
    log.records = [(0, Record(11, encode_record(b"t", b"", 1, False, "p")))]
    pair = ScanPair(log)
    pair.open(["#"], START).next(1, slice_s=0.0)

    pair.carry()
    reads = log.reads
    pair.carry()

    assert log.reads == reads
    assert len(log.waiting) == 1


def test_closing_releases_the_scan_at_the_core() -> None:
    log = FakeLog()
    pair = ScanPair(log)
    scan = pair.open(["#"], START)
    scan.next(1, slice_s=0.0)
    pair.carry()
    assert len(pair.home) == 1

    scan.close()
    pair.carry()

    assert len(pair.home) == 0
    assert log.scans == []


def test_a_scan_that_was_never_read_is_unknown_to_the_core() -> None:
    pair = ScanPair(FakeLog())

    pair.open(["#"], START).close()

    assert not pair.to_home


def test_scans_of_a_node_beyond_the_maximum_wait_for_others() -> None:
    log = FakeLog()
    pair = ScanPair(log, scans_max=2)
    scans = [pair.open(["#"], START) for _ in range(4)]
    for scan in scans:
        scan.next(1, slice_s=0.0)
    pair.carry()
    assert (len(pair.home), pair.home.rejected) == (2, 0)

    scans[2].close()  # it has not begun
    scans[0].close()
    pair.carry()

    assert len(pair.home) == 2
    assert not _fails(scans[3].next)


def test_a_node_has_a_limited_number_of_scans_that_wait() -> None:
    pair = ScanPair(FakeLog(), scans_max=2, waiting_max=1)
    scans = [pair.open(["#"], START) for _ in range(4)]
    for scan in scans:
        scan.next(1, slice_s=0.0)

    pair.carry()

    assert [_fails(scan.next) for scan in scans] == [False, False, False, True]
    assert pair.home.rejected == 1


def test_scans_that_wait_end_with_the_connection() -> None:
    log = FakeLog()
    pair = ScanPair(log, scans_max=1)
    for scan in [pair.open(["#"], START) for _ in range(2)]:
        scan.next(1, slice_s=0.0)
    pair.carry()

    pair.home.lost()

    assert len(pair.home) == 0
    assert log.scans == []


def _fails(read: object) -> bool:
    try:
        read(1, slice_s=0.0)  # type: ignore[operator]
    except Unavailable:
        return True
    return False


def test_the_end_of_the_connection_releases_all_scans_of_the_core() -> None:
    log = FakeLog()
    pair = ScanPair(log)
    pair.open(["#"], START).next(1, slice_s=0.0)
    pair.carry()

    pair.home.lost()

    assert log.scans == []


def test_a_negative_credit_closes_the_connection() -> None:
    pair = ScanPair(FakeLog())
    pair.open(["#"], START).next(1, slice_s=0.0)
    pair.serve()

    with pytest.raises(BadFrame):
        pair.home.on_frame(1, 0, msgspec.msgpack.encode(ScanCredit(-1)))


@pytest.mark.parametrize("body", [b"\xc1", msgspec.msgpack.encode(ScanRecords([], [], [], {}, True, {}))])
def test_the_core_closes_the_connection_at_a_message_that_it_cannot_read(body: bytes) -> None:
    with pytest.raises(BadFrame):
        ScanPair(FakeLog()).home.on_frame(1, 0, body)


def test_the_node_closes_the_connection_at_a_message_that_it_cannot_read() -> None:
    pair = ScanPair(FakeLog())
    pair.open(["#"], START)
    uneven = msgspec.msgpack.encode(ScanRecords([0], [], [], {}, True, {}))
    broken = msgspec.msgpack.encode(ScanRecords([0], [1], [b"?"], {}, True, {}))

    for body in (b"\xc1", uneven, broken, msgspec.msgpack.encode(ScanClose())):
        with pytest.raises(BadFrame):
            pair.remote.on_frame(1, 0, body)


def record(timestamp: int, topic: bytes = b"t") -> tuple[int, Record]:
    return 0, Record(timestamp, encode_record(topic, b"", 1, False, "p"))


def test_at_the_end_the_node_learns_the_watermarks_whatever_its_filters() -> None:
    log = FakeLog()
    log.records = [record(11)]
    pair = ScanPair(log)
    scan = pair.open(["other"], START)
    scan.next(1, slice_s=0.0)

    pair.carry()
    scan.next(1, slice_s=0.0)

    assert scan.is_caught_up
    assert scan.positions() == log.watermarks


def test_a_reader_whose_feed_moves_on_after_the_end_reads_what_lies_between() -> None:
    log, state = FakeLog(), State(1000, 1000)
    log.records = [record(11)]
    state.marks = [10, 1]
    showing = Showing(state)
    showing.is_remote = True
    pair = ScanPair(log)
    remote = pair.open(["t"], {0: 11, 1: 1})
    scan = ShownScan(remote, showing, {0: 11, 1: 1})
    remote.next(1, slice_s=0.0)
    pair.carry()
    assert remote.next(1, slice_s=0.0) == []
    assert remote.is_caught_up

    log.records += [record(12), record(13)]
    state.marks = [13, 1]
    before = scan.is_caught_up
    found = scan.next(10, slice_s=0.0)
    pair.carry()
    found += scan.next(10, slice_s=0.0)

    assert not before
    assert [each.timestamp for _, each in found] == [12, 13]
    assert scan.is_caught_up


def test_a_reader_that_stops_between_two_messages_of_the_core_misses_nothing(tmp_path: Path) -> None:
    with filled(tmp_path, 40, 10_000) as stage:
        first = ScanPair(stage.log, credit_bytes=50_000)
        scan = first.open(["#"], START)
        scan.next(1, slice_s=0.0)
        first.carry()
        found = scan.next(100, slice_s=0.0)
        scan.close()
        rest = stage.log.replay(["#"], scan.positions()).next(100, slice_s=1.0)

        assert 0 < len(found) < 40
        assert [int(each.payload.rstrip(b"\0")) for _, each in found + rest] == list(range(40))
