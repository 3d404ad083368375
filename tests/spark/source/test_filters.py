"""A query that comes back to its checkpoint with other topic filters: refused in words, or gone on with when that is meant."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from braidmq.base.errors import UsageError
from tests.spark.driving import at, read_positions, stream_reader
from tests.support.fakes.history_service import FakeHistoryService

OTHER = r"the checkpoint belongs to the topic filters a/#, but the query has b/#: .*onFilterChange=continue"


def checkpoint_of(history: FakeHistoryService, topic_filter: str, **options: str) -> dict[str, Any]:
    """The end of a first batch, as it is found in a checkpoint."""
    reader = stream_reader(history, topicFilter=topic_filter, startingOffsets="earliest", **options)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    found: dict[str, Any] = json.loads(json.dumps(end))
    return found


@pytest.mark.row("K12")
def test_a_checkpoint_of_other_filters_is_refused_before_anything_is_read(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    kept = checkpoint_of(history, "a/#")
    history.add("b/1", shard=0)

    with pytest.raises(UsageError, match=OTHER):
        stream_reader(history, topicFilter="b/#").latestOffset(kept, ReadAllAvailable())

    assert history.plans == []


@pytest.mark.row("K12")
def test_a_batch_that_was_begun_with_other_filters_is_refused_too(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    end = checkpoint_of(history, "a/#")

    # What Spark does first after a driver died in the middle of a batch.
    again = stream_reader(history, topicFilter="b/#", startingOffsets="earliest")
    with pytest.raises(UsageError, match=OTHER):
        again.partitions(again.initialOffset(), end)


@pytest.mark.row("K12")
def test_on_older_sparks_changed_filters_fail_when_the_first_batch_is_planned(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    kept = checkpoint_of(history, "a/#")
    history.add("b/1", shard=0)
    reader = stream_reader(history, topicFilter="b/#")

    end = reader.latestOffset()  # without the start, as Spark 4.0 and 4.1 call it

    with pytest.raises(UsageError, match=OTHER):
        reader.partitions(kept, end)


def test_changed_filters_apply_from_the_checkpoint_on_if_the_option_says_so(
    history: FakeHistoryService, caplog: pytest.LogCaptureFixture
) -> None:
    history.add("b/old", shard=0)
    history.add("a/1", shard=0)
    kept = checkpoint_of(history, "a/#")
    history.add("a/2", shard=0)
    history.add("b/new", shard=0)
    reader = stream_reader(history, topicFilter="b/#", onFilterChange="continue")

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        end = reader.latestOffset(kept, ReadAllAvailable())
        parts = reader.partitions(kept, end)
        reader.latestOffset(kept, ReadAllAvailable())

    assert read_positions(reader, parts) == [at(4)]
    assert end["filters"] == ["b/#"]
    [warning] = caplog.messages
    assert "to the topic filters a/#, but the query has b/#, which it reads from the checkpoint on" in warning
    # From now on it is a checkpoint of these filters.
    history.add("b/newer", shard=0)
    plain = stream_reader(history, topicFilter="b/#")
    assert read_positions(plain, plain.partitions(end, plain.latestOffset(end, ReadAllAvailable()))) == [at(5)]
    # Also for the batch in which they changed, should it run again.
    again = stream_reader(history, topicFilter="b/#")
    assert read_positions(again, again.partitions(kept, end)) == [at(4)]


def test_a_batch_that_was_begun_before_the_change_has_the_rows_that_it_had(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    history.add("b/1", shard=0)
    end = checkpoint_of(history, "a/#")

    again = stream_reader(history, topicFilter="b/#", startingOffsets="earliest", onFilterChange="continue")

    assert read_positions(again, again.partitions(again.initialOffset(), end)) == [at(1)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_before_takes_over_the_filters_that_it_is_read_with(history: FakeHistoryService, version: int) -> None:
    kept = {"version": version, "log": "00ff", "shards": {"0": 1, "1": 1}}
    reader = stream_reader(history, topicFilter="b/#")

    # Without news it is the same text: Spark would take another one for a batch.
    assert json.dumps(reader.latestOffset({**kept, "version": 1}, ReadAllAvailable())) == json.dumps({**kept, "version": 1})
    history.add("b/1", shard=0)
    end = reader.latestOffset(kept, ReadAllAvailable())

    assert (end["version"], end["filters"]) == (3, ["b/#"])
    assert read_positions(reader, reader.partitions(kept, end)) == [at(1)]
    with pytest.raises(UsageError, match="to the topic filters b/#, but the query has a/#"):
        stream_reader(history, topicFilter="a/#").latestOffset(end, ReadAllAvailable())


def test_reordered_or_redundant_filters_count_as_unchanged(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    kept = checkpoint_of(history, '["a/#", "b/+"]')
    history.add("a/2", shard=0)

    for filters in ('["b/+", "a/#"]', '["a/#", "b/+", "b/x"]'):
        reader = stream_reader(history, topicFilter=filters)
        assert reader.latestOffset(kept, ReadAllAvailable())["shards"]["0"] == at(2)


def test_an_offset_of_a_progress_report_is_a_start_for_a_query_of_other_filters(history: FakeHistoryService) -> None:
    history.add("a/1", shard=0)
    history.add("b/1", shard=0)
    reader = stream_reader(history, topicFilter="a/#", startingOffsets="earliest")
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    shown = reader.reportLatestOffset()
    history.add("b/2", shard=0)

    other = stream_reader(history, topicFilter="b/#", startingOffsets=json.dumps(shown))
    start = other.initialOffset()

    assert read_positions(other, other.partitions(start, other.latestOffset(start, ReadAllAvailable()))) == [at(3)]
