"""The stream reader under Spark 4.0 and 4.1, which call `latestOffset()` and say neither the start nor the limit."""

from __future__ import annotations

import logging

import pytest

from tests.spark.driving import at, read_positions, stream_reader
from tests.support.fakes.history_service import FakeHistoryService


def test_limits_are_kept_from_batch_to_batch_with_one_warning(
    history: FakeHistoryService, caplog: pytest.LogCaptureFixture
) -> None:
    history.add_many("a", 5, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    start, batches = reader.initialOffset(), []

    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        while (end := reader.latestOffset()) != start:
            batches.append(read_positions(reader, reader.partitions(start, end)))
            reader.commit(end)
            start = end

    assert batches == [[at(1), at(2)], [at(3), at(4)], [at(5)]]
    assert caplog.text.count("does not pass the start and the trigger of a batch") == 1


def test_an_offset_that_was_offered_is_not_taken_back(history: FakeHistoryService) -> None:
    history.add("a", shard=0, at=at(2))
    history.add("a", shard=0, at=at(3))
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    reader.initialOffset()

    first = reader.latestOffset()
    # Older than both, so that the two rows of a batch would be this one and the first of the two.
    history.add("a", shard=1, at=at(1))
    second = reader.latestOffset()

    assert (first["shards"], second["shards"]) == ({"0": at(3), "1": 1}, {"0": at(3), "1": at(1)})


def test_after_a_restart_planning_continues_at_the_end_of_the_first_batch(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    reader = stream_reader(history, startingOffsets="earliest", maxRowsPerTrigger="2")
    start = {"version": 1, "log": "00ff", "shards": {"0": 1, "1": 1}}
    end = {"version": 1, "log": "00ff", "shards": {"0": at(2), "1": 1}}

    reader.partitions(start, end)

    assert reader.latestOffset()["shards"]["0"] == at(4)


def test_after_a_restart_without_one_everything_is_offered(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)

    assert stream_reader(history, maxRowsPerTrigger="2").latestOffset()["shards"]["0"] == at(5)
