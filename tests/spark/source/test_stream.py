"""The stream reader, as Spark's engine calls it since 4.2: offsets, limits, loss, notes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from braidmq.base.errors import ConfigError, Unavailable, UsageError
from braidmq.flight.errors import DataLoss
from tests.spark.driving import at, read_positions, rows_of, stream_reader
from tests.support.fakes.history_service import FakeHistoryService


def test_a_stream_starts_at_the_end_unless_told_otherwise(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)

    expected = {"version": 3, "log": "00ff", "filters": ["#"], "shards": {"0": at(3), "1": 1}}
    assert stream_reader(history).initialOffset() == expected
    earliest = stream_reader(history, startingOffsets="earliest").initialOffset()
    # Positions that retention can pass: what it takes from now on is told.
    assert earliest["shards"] == {"0": 1, "1": 1}
    by_time = stream_reader(history, startingTimestamp="1700000002000").initialOffset()
    assert by_time["shards"] == {"0": at(2) - 1, "1": 1}


def test_offsets_that_are_given_must_be_of_this_log_and_its_shards(history: FakeHistoryService) -> None:
    with pytest.raises(UsageError, match="no shard 9"):
        stream_reader(history, startingOffsets='{"9": 5}').initialOffset()
    with pytest.raises(UsageError, match="belongs to log beef"):
        stream_reader(history, startingOffsets='{"version": 1, "log": "beef", "shards": {}}').initialOffset()


def test_an_end_is_rejected_with_a_clear_message(history: FakeHistoryService) -> None:
    with pytest.raises(ConfigError, match=r"endingTimestamp: is for spark.read; .*availableNow"):
        stream_reader(history, endingTimestamp="-1h")
    with pytest.raises(ConfigError, match="endingOffsets"):
        stream_reader(history, endingOffsets="latest")


def test_spark_is_given_the_limit_of_the_options(history: FakeHistoryService) -> None:
    assert stream_reader(history).getDefaultReadLimit() == ReadAllAvailable()
    assert stream_reader(history, maxRowsPerTrigger="5", maxBytesPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(5)
    assert stream_reader(history, maxBytesPerTrigger="1KiB").getDefaultReadLimit() == ReadMaxBytes(1024)


def test_batches_keep_both_limits_and_read_everything_once(history: FakeHistoryService) -> None:
    for number in range(10):
        history.add("a", b"x" * (100 if number == 4 else 10), shard=number % 2)
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="3", maxBytesPerTrigger="100")
    limit = reader.getDefaultReadLimit()
    start, batches = reader.initialOffset(), []

    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(read_positions(reader, reader.partitions(start, end)))
        start = end

    assert batches == [[at(1), at(2), at(3)], [at(4)], [at(5)], [at(6), at(7), at(8)], [at(9), at(10)]]


def test_with_trigger_once_limits_do_not_count(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadAllAvailable())

    assert end["shards"]["0"] == at(5)
    assert history.advances == []


def test_available_now_ends_at_what_was_there_when_it_began(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    history.add_many("a", 3, shard=0)
    new_shard = history.add_shard()
    history.add("a", shard=new_shard)
    read = []

    while (end := reader.latestOffset(start, ReadMaxRows(2))) != start:
        read += read_positions(reader, reader.partitions(start, end))
        start = end

    assert read == [at(1), at(2), at(3)]


def test_a_new_shard_is_read_from_its_beginning(history: FakeHistoryService) -> None:
    history.add("a", shard=0)
    reader = stream_reader(history)
    start = reader.initialOffset()
    history.add("a", shard=history.add_shard())

    end = reader.latestOffset(start, ReadAllAvailable())

    assert read_positions(reader, reader.partitions(start, end)) == [at(2)]


def test_a_shard_that_came_after_the_end_of_a_batch_is_not_in_it(history: FakeHistoryService) -> None:
    history.add("a", shard=0)
    reader = stream_reader(history, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    history.add("a", shard=history.add_shard())

    assert read_positions(reader, reader.partitions(start, end)) == [at(1)]


def test_a_batch_that_is_planned_again_has_the_same_rows(history: FakeHistoryService) -> None:
    history.add_many("a", 4, shard=0)
    reader = stream_reader(history, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    first = rows_of(reader, reader.partitions(start, end))
    history.add_many("a", 4, shard=0)

    again = stream_reader(history)

    assert rows_of(again, again.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))) == first


@pytest.mark.parametrize("start_at", ["earliest", "latest"])
def test_the_first_batch_has_the_same_rows_when_a_new_driver_plans_it_again(history: FakeHistoryService, start_at: str) -> None:
    history.add("a", shard=0)
    reader = stream_reader(history, startingOffsets=start_at)
    start = reader.initialOffset()
    history.add("a", shard=0)
    end = reader.latestOffset(start, ReadAllAvailable())
    first = read_positions(reader, reader.partitions(start, end))
    history.add("a", shard=0)

    # The end is all that Spark has kept; the beginning it asks for again, and `latest` is elsewhere now.
    again = stream_reader(history, startingOffsets=start_at)
    begun_again = again.initialOffset()

    assert first[-1] == at(2)
    assert read_positions(again, again.partitions(begun_again, json.loads(json.dumps(end)))) == first
    later = again.latestOffset(end, ReadAllAvailable())
    assert read_positions(again, again.partitions(end, later)) == [at(3)]
    assert "began" not in later


def test_records_of_the_first_batch_that_retention_deleted_before_a_retry_are_reported(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    reader = stream_reader(history, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    history.floors[0] = at(3)

    again = stream_reader(history, startingOffsets="earliest")

    with pytest.raises(DataLoss):
        again.partitions(again.initialOffset(), end)


def test_without_news_after_the_first_batch_the_offset_is_the_same_text(history: FakeHistoryService) -> None:
    history.add("a", shard=0)
    reader = stream_reader(history, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert "began" in end

    assert json.dumps(reader.latestOffset(end, ReadAllAvailable())) == json.dumps(end)


def test_without_news_the_offset_is_the_same_text_and_nothing_is_planned(history: FakeHistoryService) -> None:
    history.add("a")
    reader = stream_reader(history)
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadAllAvailable())

    assert json.dumps(end) == json.dumps(start)
    assert list(reader.partitions(start, end)) == []
    assert history.plans == []


def test_another_log_at_the_same_address_is_refused(history: FakeHistoryService) -> None:
    reader = stream_reader(history)
    start = reader.initialOffset()
    history.log = "beef"

    with pytest.raises(UsageError, match="log 00ff, but the servers have log beef"):
        reader.latestOffset(start, ReadAllAvailable())
    history.add("a", shard=0)
    later = {"version": 1, "log": "00ff", "shards": {"0": at(1), "1": 1}}
    with pytest.raises(UsageError, match="log 00ff, but the servers have log beef"):
        reader.partitions(start, later)


def test_another_log_is_refused_also_where_spark_does_not_tell_the_beginning_of_a_batch(history: FakeHistoryService) -> None:
    kept = {"version": 1, "log": "00ff", "shards": {"0": 1, "1": 1}}
    history.log = "beef"
    history.add("a", shard=0)
    reader = stream_reader(history)

    end = reader.latestOffset()  # as Spark 4.0 and 4.1 call it after a restart

    with pytest.raises(UsageError, match="log 00ff, but the servers have log beef"):
        reader.partitions(kept, end)


@pytest.mark.row("K14")
def test_the_latest_offset_is_reported_for_the_lag(history: FakeHistoryService) -> None:
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="1")
    assert reader.reportLatestOffset() is None
    history.add_many("a", 3, shard=0)

    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))

    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["shards"]["0"] == at(3)


@pytest.mark.parametrize("more", [{}, {"maxRowsPerTrigger": "100"}])
def test_records_deleted_by_retention_fail_the_query_with_the_gap(history: FakeHistoryService, more: dict[str, str]) -> None:
    reader = stream_reader(history, **more)
    start = reader.initialOffset()
    history.add_many("a", 4, shard=0)
    history.expire(at(2))

    with pytest.raises(DataLoss, match=r"shard 0: wanted everything after 1 .*kept is 1700000002000001 .*failOnDataLoss=false"):
        reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))


def test_deleted_records_are_a_warning_if_configured_and_the_rest_is_read(
    history: FakeHistoryService, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(history, failOnDataLoss="false")
    start = reader.initialOffset()
    history.add_many("a", 4, shard=0)
    history.expire(at(2))

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))

    assert read_positions(reader, partitions) == [at(3), at(4)]
    assert "shard 0: wanted everything after 1 " in caplog.text


def test_the_beginning_has_no_gap_even_after_retention(history: FakeHistoryService) -> None:
    history.add_many("a", 4, shard=0)
    history.expire(at(2))
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="1")
    start, read = reader.initialOffset(), []

    while (end := reader.latestOffset(start, ReadMaxRows(1))) != start:
        read += read_positions(reader, reader.partitions(start, end))
        start = end

    assert read == [at(3), at(4)]


def test_a_service_that_has_just_begun_and_knows_less_is_waited_for(history: FakeHistoryService) -> None:
    reader = stream_reader(history, retryTimeout="300ms", maxRowsPerTrigger="5")
    start = {"version": 1, "log": "00ff", "shards": {"0": at(5), "1": at(5)}}

    assert reader.latestOffset(start, ReadMaxRows(5)) == start
    with pytest.raises(Unavailable, match="has not caught up"):
        reader.partitions(start, {"version": 1, "log": "00ff", "shards": {"0": at(6), "1": at(5)}})
    history.add("a", shard=0, at=at(6))

    assert read_positions(reader, reader.partitions(start, reader.latestOffset(start, ReadMaxRows(5)))) == [at(6)]


def test_a_named_reader_is_noted_where_it_has_come_to(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", readerName="nightly")

    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert history.readers == {"nightly": {"0": 1, "1": 1}}
    reader.commit(end)

    assert history.readers == {"nightly": {"0": at(3), "1": 1}}
    assert history.reader_names == {"nightly"}


def test_a_first_batch_that_is_read_again_is_still_waited_for_by_retention(history: FakeHistoryService) -> None:
    history.add("a", shard=0)
    reader = stream_reader(history, readerName="nightly")
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    history.add("a", shard=0)

    # A new driver is asked where `latest` is, and then plans the batch that was begun before.
    stream_reader(history, readerName="nightly").initialOffset()

    assert history.readers == {"nightly": {"0": at(1), "1": 1}}


def test_the_last_batch_of_a_run_is_noted_though_spark_does_not_commit_it(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", readerName="nightly")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    # With availableNow Spark asks once more, finds nothing new, and stops.
    assert reader.latestOffset(end, ReadAllAvailable()) == end

    assert history.readers["nightly"] == {"0": at(3), "1": 1}


def test_a_note_that_fails_is_warned_of_once_and_fails_nothing(
    history: FakeHistoryService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream_reader(history, readerName="nightly")
    start = reader.initialOffset()

    def refuse(name: str, positions: dict[int, int], filters: Sequence[str]) -> None:
        raise UsageError("no more readers")

    monkeypatch.setattr(reader._client, "note_reader", refuse)
    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        for _ in range(2):
            history.add("a", shard=0)
            reader.commit(reader.latestOffset(start, ReadAllAvailable()))

    assert caplog.text.count("no more readers") == 1
