"""Fetching records by their places: found and deleted records, and a source that is not ready or fails."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.base.errors import Unavailable
from braidmq.broker.reading.fetch import Place, RecordFetch
from braidmq.broker.reading.source import LogSource
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record, encode_record
from tests.support.fakes.storage import FakeLog


class Stage:
    """A log with 300 records in two shards, and a reader of some of them."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.log.records_per_slice = 64
        value = encode_record(b"t", b"", 1, False, "p", b"", 0, -1, 0, False)
        self.log.records = [(number % 2, Record(1000 + number, value)) for number in range(300)]
        state = State(1000, 1000)
        state.marks = list(self.log.watermarks.values())
        self.put_off: list[Callable[[], None]] = []
        self.source = LogSource(self.log, state, lambda _, callback: self.put_off.append(callback))
        self.wakes = 0

    def fetch(self, *places: Place) -> RecordFetch:
        return RecordFetch(self.source, ["#"], places, self.wake, "reader")

    def wake(self) -> None:
        self.wakes += 1

    def place(self, number: int) -> Place:
        shard, record = self.log.records[number]
        return shard, record.timestamp


def run(fetch: RecordFetch) -> dict[Place, bool]:
    """Everything that is said of the places: whether the record was found."""
    known: dict[Place, bool] = {}
    for _ in range(20):
        known.update((place, record is not None) for place, record in fetch.run(1.0).items())
        if fetch.is_over:
            return known
    raise AssertionError("it does not end")


def test_records_of_several_shards_are_found() -> None:
    stage = Stage()
    places = [stage.place(number) for number in (250, 3, 4, 120)]

    assert run(stage.fetch(*places)) == dict.fromkeys(places, True)
    assert stage.log.scans == []


def test_a_long_range_without_wanted_records_is_skipped() -> None:
    stage = Stage()
    places = [stage.place(0), stage.place(299)]

    assert run(stage.fetch(*places)) == dict.fromkeys(places, True)

    assert stage.log.reads == 3, "the first, a piece in vain, and the last"


def test_records_deleted_by_retention_are_reported_as_gone() -> None:
    stage = Stage()
    places = [stage.place(number) for number in (0, 1, 2, 150, 299)]
    gone = places[0], places[3], places[4]
    stage.log.records = [(shard, record) for shard, record in stage.log.records if (shard, record.timestamp) not in gone]

    assert run(stage.fetch(*places)) == {place: place not in gone for place in places}


def test_a_source_that_is_not_ready_is_not_read_until_it_wakes_its_reader() -> None:
    stage = Stage()
    stage.log.is_ready = False
    fetch = stage.fetch(stage.place(7))
    assert [fetch.run(1.0) for _ in range(5)] == [{}] * 5
    assert (stage.log.reads, fetch.is_blocked, stage.wakes) == (1, True, 0)

    stage.log.make_ready()

    assert stage.wakes == 1
    assert run(fetch) == {stage.place(7): True}


def test_a_failing_source_is_retried_later_and_no_record_counts_as_gone() -> None:
    stage = Stage()
    fetch = stage.fetch(stage.place(7))
    stage.log.fault = Unavailable("gone for a moment")
    assert [fetch.run(1.0) for _ in range(5)] == [{}] * 5
    stage.log.fault = None

    (again,) = stage.put_off
    again()

    assert stage.wakes == 1
    assert run(fetch) == {stage.place(7): True}


def test_a_closed_reader_is_not_woken() -> None:
    stage = Stage()
    stage.log.is_ready = False
    fetch = stage.fetch(stage.place(7))
    fetch.run(1.0)
    (late,) = stage.log.waiting.values()

    fetch.close()
    late()

    assert stage.wakes == 0
    assert stage.log.scans == []
