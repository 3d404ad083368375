"""How large batches and partitions are, how far behind a query is, and what is said about it."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from braidmq.flight import wire
from braidmq.spark.source.backlog import BacklogMeter
from braidmq.spark.source.stream import StreamReader
from tests.spark.driving import at, batch_reader, read_positions, rows_of, stream_reader
from tests.support.fakes.history_service import FakeHistoryService


class Clock:
    """Seconds, moved by the test."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def patient_reader(history: FakeHistoryService, clock: Clock, monkeypatch: pytest.MonkeyPatch, **options: str) -> StreamReader:
    reader = stream_reader(history, minRowsPerTrigger="3", maxTriggerDelay="60s", **options)
    monkeypatch.setattr(reader, "_clock", clock)
    monkeypatch.setattr(reader._backlog, "_clock", clock)
    return reader


def test_a_batch_waits_for_its_minimum_of_rows_or_for_the_delay(
    history: FakeHistoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    reader = patient_reader(history, clock, monkeypatch, topicFilter="a", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    assert limit == ReadMinRows(3)

    history.add("a", shard=0)
    first = reader.latestOffset(start, limit)
    assert first["shards"]["0"] == at(1), "the first batch of a run waits for nothing"

    history.add_many("other", 5, shard=0)
    history.add_many("a", 2, shard=0)
    assert reader.latestOffset(first, limit) == first, "two rows of its filter are too few"
    history.add("a", shard=0)
    assert reader.latestOffset(first, limit) == first, "it does not count again at once"
    clock.now += 1
    second = reader.latestOffset(first, limit)
    assert second["shards"]["0"] == at(9)

    history.add("a", shard=0)
    clock.now += 59
    assert reader.latestOffset(second, limit) == second
    clock.now += 1
    assert reader.latestOffset(second, limit)["shards"]["0"] == at(10), "the delay is over"


def test_counting_while_a_batch_waits_is_one_call_a_second(history: FakeHistoryService, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    reader = patient_reader(history, clock, monkeypatch, startingOffsets="earliest")
    history.add("a", shard=0)
    start = reader.latestOffset(reader.initialOffset(), ReadMinRows(3))
    history.add("a", shard=0)

    for _ in range(250):
        reader.latestOffset(start, ReadMinRows(3))
        reader.reportLatestOffset()
        clock.now += 0.01

    assert len(history.backlogs) == 3


def test_the_minimum_does_not_apply_to_once_and_available_now(
    history: FakeHistoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = patient_reader(history, Clock(), monkeypatch, startingOffsets="earliest")
    history.add("a", shard=0)
    first = reader.latestOffset(reader.initialOffset(), ReadMinRows(3))
    history.add("a", shard=0)

    assert reader.latestOffset(first, ReadAllAvailable())["shards"]["0"] == at(2)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(first, ReadMinRows(3))["shards"]["0"] == at(2)


def test_a_service_that_cannot_count_is_warned_of_and_batches_do_not_wait(
    history: FakeHistoryService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history.knows_backlogs = False
    reader = patient_reader(history, Clock(), monkeypatch, startingOffsets="earliest")
    history.add("a", shard=0)
    first = reader.latestOffset(reader.initialOffset(), ReadMinRows(3))
    history.add("a", shard=0)

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        assert reader.latestOffset(first, ReadMinRows(3))["shards"]["0"] == at(2)
        reader.latestOffset(first, ReadMinRows(3))

    assert caplog.text.count("minRowsPerTrigger is ignored") == 1
    assert history.calls.count(wire.BACKLOG) == 1, "it is not asked again"


def test_progress_reports_the_number_of_rows_left_for_the_filter(history: FakeHistoryService) -> None:
    history.add_many("plant/1", 5, shard=0)
    history.add_many("other", 50, shard=1)
    reader = stream_reader(history, topicFilter="plant/#", startingOffsets="earliest", maxRowsPerTrigger="2")

    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    reported = reader.reportLatestOffset()

    assert reported is not None
    assert reported["shards"] == {"0": at(5), "1": at(55)}
    assert reported["behind"] == {"rows": 3, "isEstimate": False}
    reader.latestOffset(end, ReadAllAvailable())
    assert (reader.reportLatestOffset() or {})["behind"] == {"rows": 0, "isEstimate": False}


def test_a_query_that_reads_up_to_the_end_asks_for_no_count(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    reader = stream_reader(history, startingOffsets="earliest")

    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert (reader.reportLatestOffset() or {})["behind"] == {"rows": 0, "isEstimate": False}
    assert history.backlogs == []


def test_an_estimate_is_called_one_and_a_service_that_cannot_tell_fails_nothing(
    history: FakeHistoryService, caplog: pytest.LogCaptureFixture
) -> None:
    history.add_many("a", 5, shard=0)
    history.is_estimating = True
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    assert (reader.reportLatestOffset() or {})["behind"] == {"rows": 3, "isEstimate": True}

    history.knows_backlogs = False
    older = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    older.latestOffset(older.initialOffset(), ReadMaxRows(2))
    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        reports = [older.reportLatestOffset() for _ in range(3)]

    assert all(report is not None and "behind" not in report for report in reports)
    assert caplog.text.count("cannot report the remaining rows") == 1


def test_a_report_of_a_moment_ago_is_an_estimate_once_the_query_has_moved_on() -> None:
    clock = Clock()
    counts = iter([9, 4])
    meter = BacklogMeter(lambda start, end: wire.Backlog(next(counts), is_estimate=False), clock)

    assert meter.behind({0: 10}, {0: 90}) == {"rows": 9, "isEstimate": False}
    assert meter.behind({0: 20}, {0: 90}) == {"rows": 9, "isEstimate": True}
    clock.now += 1
    assert meter.behind({0: 20}, {0: 90}) == {"rows": 4, "isEstimate": False}


def test_the_size_of_partitions_is_asked_for(history: FakeHistoryService) -> None:
    history.add_many("a", 9, shard=0)

    reader = batch_reader(history, maxRowsPerPartition="4", maxBytesPerPartition="1MiB")
    parts = list(reader.partitions())

    assert (history.plans[-1].part_rows_max, history.plans[-1].part_bytes_max) == (4, 1 << 20)
    assert [len(rows_of(reader, [part])) for part in parts] == [3, 3, 3]
    assert read_positions(reader, parts) == [at(number) for number in range(1, 10)]


def test_unknown_options_are_reported_once_in_one_line(history: FakeHistoryService, caplog: pytest.LogCaptureFixture) -> None:
    history.add("a", shard=0)
    more = {"mergeSchema": "true", "header": "false"}

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        reader = stream_reader(history, startingOffsets="earliest", **more)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        rows_of(reader, reader.partitions(start, end))
        reader.commit(end)
        reader.latestOffset(end, ReadAllAvailable())
    assert caplog.messages == ["braidmq ignores unknown options: header, mergeschema"]
    caplog.clear()

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        batch = batch_reader(history, **more)
        rows_of(batch, batch.partitions())
    assert caplog.messages == ["braidmq ignores unknown options: header, mergeschema"]


def test_a_named_reader_tells_the_broker_what_it_reads(history: FakeHistoryService) -> None:
    reader = stream_reader(history, topicFilter="plant/#", readerName="nightly")

    reader.commit(reader.initialOffset())

    assert history.reader_filters == {"nightly": ["plant/#"]}
