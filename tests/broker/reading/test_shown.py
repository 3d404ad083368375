"""Reading the log no further than its messages were shown to its followers."""

from __future__ import annotations

from braidmq.broker.reading.shown import Showing, ShownScan
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record, encode_record
from tests.support.fakes.storage import FakeLog


def make(marks: list[int], unshown: int) -> tuple[FakeLog, State, ShownScan]:
    log, state = FakeLog(), State(1000, 1000)
    log.records_per_slice = 10
    value = encode_record(b"t", b"", 1, False, "p", b"", 0, -1, 0, False)
    log.records = [(shard, Record(timestamp, value)) for shard, timestamp in ((0, 11), (1, 12), (0, 13), (1, 14))]
    state.marks = marks
    state.unshown = unshown
    return log, state, ShownScan(log.replay(["#"], {0: 10, 1: 10}), Showing(state))


def stamps(records: list[tuple[int, Record]]) -> list[tuple[int, int]]:
    return [(shard, record.timestamp) for shard, record in records]


def test_a_fully_shown_log_reads_like_the_replay_itself() -> None:
    _, _, replay = make([13, 14], unshown=0)

    assert not replay.is_caught_up
    assert stamps(replay.next(10, slice_s=1)) == [(0, 11), (1, 12), (0, 13), (1, 14)]
    assert replay.is_caught_up


def test_reading_ends_before_the_first_record_not_yet_shown() -> None:
    _, _, replay = make([11, 12], unshown=2)

    assert stamps(replay.next(10, slice_s=1)) == [(0, 11), (1, 12)]
    assert replay.positions() == {0: 11, 1: 12}
    assert replay.is_caught_up, "the rest is for those who follow"
    assert replay.next(10, slice_s=1) == []
    assert replay.is_waiting


def test_records_held_back_are_delivered_once_shown() -> None:
    _, state, replay = make([11, 12], unshown=2)
    replay.next(10, slice_s=1)

    state.marks[0] = 13
    assert not replay.is_caught_up
    assert stamps(replay.next(10, slice_s=1)) == [(0, 13)]
    state.marks[1] = 14
    state.unshown = 0

    assert not replay.is_caught_up
    assert stamps(replay.next(10, slice_s=1)) == [(1, 14)]
    assert replay.is_caught_up


def test_no_reader_has_caught_up_while_a_message_is_delivered_in_parts() -> None:
    _, state, replay = make([12, 12], unshown=2)
    state.part_shard, state.part_timestamp = 0, 13

    assert stamps(replay.next(10, slice_s=1)) == [(0, 11), (1, 12)]

    assert not replay.is_caught_up
    state.part_shard = -1
    assert replay.is_caught_up


def test_a_read_returns_at_most_the_requested_number_of_records() -> None:
    _, state, replay = make([10, 10], unshown=4)
    replay.next(10, slice_s=1)
    state.marks[:] = [13, 14]

    assert stamps(replay.next(3, slice_s=1)) == [(0, 11), (1, 12), (0, 13)]
    assert stamps(replay.next(3, slice_s=1)) == [(1, 14)]
