"""Reading the log no further than its messages were shown to its followers."""

from __future__ import annotations

from collections.abc import Callable

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


# A node whose log is elsewhere


def has_caught_up(replay: ShownScan) -> bool:
    return replay.is_caught_up


def make_remote(
    marks: list[int], start: dict[int, int], may_follow: Callable[[], bool] = lambda: True
) -> tuple[FakeLog, State, Showing, ShownScan]:
    log, state, _ = make(marks, unshown=0)
    showing = Showing(state)
    showing.is_remote = True
    return log, state, showing, ShownScan(log.replay(["#"], start), showing, start, may_follow)


def test_the_log_of_another_node_is_read_only_up_to_the_marks_of_the_feed() -> None:
    _, state, _, replay = make_remote([11, 12], {0: 10, 1: 10})

    assert not replay.is_caught_up
    assert stamps(replay.next(10, slice_s=1)) == [(0, 11), (1, 12)]
    assert replay.positions() == {0: 11, 1: 12}
    assert has_caught_up(replay), "what comes next is brought by the feed"

    state.marks[:] = [13, 12]
    assert not has_caught_up(replay)
    assert stamps(replay.next(10, slice_s=1)) == [(0, 13)]


def test_a_reader_at_the_marks_has_caught_up_without_reading() -> None:
    log, _, _, replay = make_remote([10, 10], {0: 10, 1: 10})

    assert replay.is_caught_up
    assert log.reads == 0


def test_c20_a_reader_ahead_of_the_feed_waits_for_it_and_reads_what_lies_between() -> None:
    log, state, showing, replay = make_remote([11, 12], {0: 12, 1: 12})
    assert not replay.is_caught_up
    assert replay.next(10, slice_s=1) == []
    assert replay.is_waiting
    assert log.reads == 0
    assert replay.positions() == {0: 12, 1: 12}, "it never goes back"
    wakes: list[bool] = []
    replay.when_ready(lambda: wakes.append(True))
    showing.note_progress()
    assert wakes == []

    state.marks[:] = [13, 12]
    showing.note_progress()

    assert wakes == [True]
    assert not replay.is_caught_up
    assert stamps(replay.next(10, slice_s=1)) == [(0, 13)]
    assert replay.is_caught_up


def test_c20_a_reader_that_the_feed_has_just_reached_follows() -> None:
    _, state, showing, replay = make_remote([11, 12], {0: 12, 1: 12})
    replay.next(10, slice_s=1)
    wakes: list[bool] = []
    replay.when_ready(lambda: wakes.append(True))

    state.marks[:] = [12, 12]
    showing.note_progress()

    assert wakes == [True]
    assert replay.is_caught_up


def test_c10_a_reader_waits_until_its_routes_are_known() -> None:
    known = False
    _, state, showing, replay = make_remote([11, 12], {0: 11, 1: 12}, lambda: known)
    assert not replay.is_caught_up
    assert replay.next(10, slice_s=1) == []
    assert replay.is_waiting
    wakes: list[bool] = []
    replay.when_ready(lambda: wakes.append(True))
    state.marks[0] = 13
    assert not replay.is_barred(), "what the feed has brought meanwhile, it reads"
    assert stamps(replay.next(10, slice_s=1)) == [(0, 13)]

    known = True
    showing.note_progress()

    assert wakes == [True]
    assert replay.is_caught_up


def test_no_reader_of_another_nodes_log_follows_while_a_message_is_delivered_in_parts() -> None:
    _, state, _, replay = make_remote([10, 10], {0: 10, 1: 10})
    state.part_shard, state.part_timestamp = 0, 11

    assert not replay.is_caught_up
    assert replay.next(10, slice_s=1) == []
    assert replay.is_waiting
    state.part_shard = -1

    assert replay.is_caught_up


def test_c10_a_reader_of_this_nodes_log_waits_for_its_routes_too() -> None:
    known = False
    log, state, _ = make([13, 14], unshown=0)
    showing = Showing(state)
    replay = ShownScan(log.replay(["#"], {0: 13, 1: 14}), showing, {0: 13, 1: 14}, lambda: known)
    assert not replay.is_caught_up
    assert replay.next(10, slice_s=1) == []
    assert replay.is_waiting

    known = True

    assert replay.is_caught_up
