"""The log cursor takes every record once and in order, however source, client and slots behave."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Unavailable
from braidmq.broker.reading import cursor as module
from braidmq.broker.reading.cursor import LogCursor, Records, RunEnd, TakePlain, is_new, is_shown
from braidmq.broker.reading.source import LogSource
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record, encode_record
from tests.support.fakes.group_services import FakeSlots
from tests.support.fakes.storage import FakeLog

SHARDS = 2


class FakeReader:
    """Takes as many records as there is room for; implements `cursor.ScanReader`."""

    owner = "owner"
    name = "reader"

    def __init__(self, stage: Stage) -> None:
        self.positions = [1000] * SHARDS
        self.taken: list[int] = []
        self.room = 1_000_000
        self.is_bulk = False
        self.gaps = self.wakes = 0
        self.while_offered: Callable[[], None] | None = None
        self.cursor = LogCursor(stage.source, stage.slots, self)

    def filters(self) -> list[str]:
        return ["#"]

    def plain(self) -> TakePlain | None:
        return self.take_plain if self.is_bulk else None

    def take_plain(self, records: Records, place: int) -> int:
        while place < len(records) and self.room:
            self.offer_record(*records[place])
            self.positions[records[place][0]] = records[place][1].timestamp
            place += 1
        return place

    def offer_record(self, shard: int, record: Record) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.taken.append(record.timestamp)
        if self.while_offered is not None:
            self.while_offered()
        return True

    def note_gap(self) -> None:
        self.gaps += 1

    def pause(self) -> None:
        self.cursor.close()

    def wake(self) -> None:
        self.wakes += 1

    def run(self) -> RunEnd:
        return self.cursor.run(monotonic() + 60)


class Stage:
    """A log of two shards, and one reader of it."""

    def __init__(self, count: int = 10) -> None:
        self.log = FakeLog(SHARDS)
        self.state = State(1000, 1000)
        self.put_off: list[tuple[float, Callable[[], None]]] = []
        self.source = LogSource(self.log, self.state, lambda delay_s, callback: self.put_off.append((delay_s, callback)))
        self.slots = FakeSlots()
        self.reader = FakeReader(self)
        self.clock = 1000
        self.append(count)

    def append(self, count: int) -> None:
        value = encode_record(b"t", b"", 1, False, "p", b"", 0, -1, 0, False)
        for _ in range(count):
            self.clock += 1
            self.log.records.append((self.clock % SHARDS, Record(self.clock, value)))
        self.state.marks = list(self.log.watermarks.values())

    @property
    def stamps(self) -> list[int]:
        return [record.timestamp for _, record in self.log.records]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_cursor_reads_to_the_end_in_order(stage: Stage) -> None:
    assert stage.reader.run() is RunEnd.CAUGHT_UP

    assert stage.reader.taken == stage.stamps
    assert stage.reader.positions == stage.state.marks


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_reader_without_room_resumes_at_the_record_it_did_not_take(stage: Stage, is_bulk: bool) -> None:
    reader = stage.reader
    reader.is_bulk = is_bulk
    reader.room = 3
    assert reader.run() is RunEnd.FULL
    assert reader.run() is RunEnd.FULL

    reader.room = 100

    assert reader.run() is RunEnd.CAUGHT_UP
    assert reader.taken == stage.stamps


def test_a_reader_that_lost_its_read_ahead_resumes_at_its_positions(stage: Stage) -> None:
    stage.reader.room = 3
    stage.reader.run()

    stage.reader.pause()

    assert stage.log.scans == []
    assert not stage.slots.reading
    stage.reader.room = 100
    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_reader_closed_while_it_is_offered_a_record_has_taken_that_record(stage: Stage, is_bulk: bool) -> None:
    reader = stage.reader
    reader.is_bulk = is_bulk
    reader.while_offered = reader.pause
    assert reader.run() is RunEnd.FULL
    assert not stage.slots.reading, "it is not idle with a slot that it has left"

    reader.while_offered = None

    assert reader.run() is RunEnd.CAUGHT_UP
    assert reader.taken == stage.stamps


def test_without_a_slot_nothing_is_read(stage: Stage) -> None:
    stage.slots.is_free = False

    assert stage.reader.run() is RunEnd.WAITS

    assert stage.log.reads == 0
    assert stage.log.scans == []


def test_a_run_ends_at_its_deadline_but_takes_at_least_one_record(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.reader.cursor.run(0.0) is RunEnd.MORE
    assert stage.log.reads == 0
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    stage.reader.while_offered = lambda: now.__setitem__(0, now[0] + 1)

    turns = [stage.reader.cursor.run(now[0] + 0.5) for _ in range(4)]

    assert turns == [RunEnd.MORE] * 4
    assert stage.reader.taken == stage.stamps[:4]


# A source that is not ready


def test_a_source_that_is_not_ready_is_not_read_again_until_it_wakes_its_reader(stage: Stage) -> None:
    stage.log.is_ready = False
    assert [stage.reader.run() for _ in range(5)] == [RunEnd.WAITS] * 5
    assert (stage.log.reads, stage.reader.wakes, stage.put_off) == (1, 0, [])

    stage.log.make_ready()

    assert stage.reader.wakes == 1
    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps


def test_a_source_may_become_unready_again(stage: Stage) -> None:
    stage.reader.room = 4
    stage.reader.run()
    stage.reader.room = 100
    stage.log.is_ready = False
    assert stage.reader.run() is RunEnd.WAITS
    stage.log.make_ready()
    stage.log.is_ready = False
    assert stage.reader.run() is RunEnd.WAITS

    stage.log.make_ready()

    assert stage.reader.wakes == 2
    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps


def test_a_reader_closed_while_waiting_is_not_woken(stage: Stage) -> None:
    stage.log.is_ready = False
    stage.reader.run()
    late = list(stage.log.waiting.values())

    stage.reader.pause()
    stage.log.make_ready()
    for callback in late:
        callback()  # a remote source may have sent it before it heard of the end

    assert stage.reader.wakes == 0


def test_a_stale_wake_up_does_not_wake_a_reader_that_waits_again(stage: Stage) -> None:
    stage.log.is_ready = False
    stage.reader.run()
    (late,) = stage.log.waiting.values()
    stage.reader.pause()
    stage.reader.run()

    late()

    assert stage.reader.wakes == 0
    assert stage.reader.run() is RunEnd.WAITS
    assert stage.log.reads == 2
    stage.log.make_ready()
    assert stage.reader.wakes == 1


# A source that fails


def test_a_failing_source_is_retried_later_and_nothing_is_lost(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.reader.room = 2
    stage.reader.run()
    stage.reader.room = 100
    reads = stage.log.reads
    stage.log.fault = Unavailable("no more descriptors", 7.0)
    assert [stage.reader.run() for _ in range(5)] == [RunEnd.WAITS] * 5
    assert stage.log.reads == reads + 1
    assert stage.log.scans == [], "the scan that failed is closed"
    stage.log.fault = None

    ((delay_s, again),) = stage.put_off
    again()

    assert (delay_s, stage.reader.wakes) == (7.0, 1)
    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps
    assert "reader has to wait for recorded messages: no more descriptors" in caplog.text


def test_a_source_that_cannot_be_opened_is_retried_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stage.log, "replay", fail)
        assert stage.reader.run() is RunEnd.WAITS
        assert stage.reader.run() is RunEnd.WAITS
    ((_, again),) = stage.put_off

    again()

    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps


def fail(*_: object, **__: object) -> None:
    raise Unavailable("the shard's leader is unknown")


def test_a_reader_closed_after_a_failure_is_not_woken(stage: Stage) -> None:
    stage.log.fault = Unavailable("gone")
    stage.reader.run()
    ((_, again),) = stage.put_off

    stage.reader.pause()
    again()

    assert stage.reader.wakes == 0


# Messages that followers have not got yet


def test_a_reader_waiting_for_followers_is_woken_when_they_have_the_message(stage: Stage) -> None:
    state, showing = stage.state, stage.source.showing
    state.unshown, state.marks = 2, [stage.stamps[3], stage.stamps[4]]
    state.part_shard, state.part_timestamp = 1, stage.stamps[6]
    assert [stage.reader.run() for _ in range(3)] == [RunEnd.WAITS] * 3
    assert stage.reader.taken == stage.stamps[:5]
    showing.note_progress()
    assert stage.reader.wakes == 0, "there was none"

    state.unshown, state.marks, state.part_shard = 0, list(stage.log.watermarks.values()), -1
    showing.note_progress()

    assert stage.reader.wakes == 1
    assert stage.reader.run() is RunEnd.CAUGHT_UP
    assert stage.reader.taken == stage.stamps


def test_a_reader_that_waits_for_followers_may_be_closed(stage: Stage) -> None:
    stage.state.unshown, stage.state.marks, stage.state.part_shard = 2, [1000, 1000], 0
    stage.reader.run()
    assert len(stage.source.showing) == 1

    stage.reader.pause()

    assert len(stage.source.showing) == 0


events = st.lists(
    st.sampled_from(
        ["run", "run", "run", "room", "full", "pause", "not ready", "ready", "fail", "heal", "slot", "no slot", "append"]
    ),
    max_size=60,
)


@given(events, st.booleans(), st.integers(1, 5))
def test_every_record_is_taken_once_and_in_order_under_any_schedule(steps: list[str], is_bulk: bool, slice_records: int) -> None:
    stage = Stage()
    log, reader = stage.log, stage.reader
    reader.is_bulk = is_bulk
    log.records_per_slice = slice_records
    for step in steps:
        match step:
            case "run":
                reader.run()
            case "room":
                reader.room += 3
            case "full":
                reader.room = 0
            case "pause":
                reader.pause()
            case "not ready":
                log.is_ready = False
            case "ready":
                log.make_ready()
            case "fail":
                log.fault = Unavailable("not now")
            case "heal":
                log.fault = None
            case "slot" | "no slot":
                stage.slots.is_free = step == "slot"
            case "append":
                stage.append(2)
        assert reader.taken == stage.stamps[: len(reader.taken)]

    log.fault = None
    stage.slots.is_free = True
    reader.room = 1000
    for _, again in stage.put_off:
        again()
    log.make_ready()
    assert reader.run() is RunEnd.CAUGHT_UP
    assert reader.taken == stage.stamps


def test_session_only_records_are_shown_only_if_they_are_new() -> None:
    def record(timestamp: int, session_only: bool) -> Record:
        return Record(timestamp, encode_record(b"t", b"", 1, False, "p", b"", 0, -1, 0, session_only))

    assert [is_new(0, timestamp, (5,)) for timestamp in (4, 5, 6)] == [False, False, True]
    assert is_new(1, 1, (5,)), "a shard that was added later"
    assert [is_shown(0, record(each, False), (5,)) for each in (5, 6)] == [True, True]
    assert [is_shown(0, record(each, True), (5,)) for each in (5, 6)] == [False, True]
