"""The batch reader, as Spark's engine calls it: schema, ranges, parts, filters of the query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThan, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from braidmq.base.errors import UsageError
from braidmq.flight import columns, wire
from braidmq.flight.errors import DataLoss
from braidmq.spark.source.batch import BatchReader, PushingReader
from braidmq.spark.source.schema import arrow_schema, columns_of, struct_of
from tests.spark.driving import at, batch_reader, read_positions, source
from tests.support.fakes.history_service import FakeHistoryService


def test_the_schema_is_what_spark_makes_of_the_columns_of_history() -> None:
    assert to_arrow_schema(struct_of(None), timezone="UTC").equals(columns.SCHEMA)
    assert struct_of(["position", "topic"]).names == ["position", "topic"]


def test_a_user_schema_selects_columns() -> None:
    own = StructType([StructField("position", LongType()), StructField("topic", StringType(), nullable=False)])

    assert columns_of(own, None) == ["position", "topic"]
    assert arrow_schema(own).equals(to_arrow_schema(own, timezone="UTC"))


@pytest.mark.parametrize(
    ("own", "chosen", "message"),
    [
        (StructType([StructField("colour", StringType())]), None, "no column colour"),
        (StructType([StructField("position", StringType())]), None, "has position string: history has position bigint"),
        (StructType([StructField("topic", StringType())]), ["payload"], "name different columns"),
        (StructType([]), None, "non-empty list"),
    ],
)
def test_a_schema_that_is_not_of_history_is_refused(own: StructType, chosen: list[str] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        columns_of(own, chosen)


def test_the_first_batch_has_exactly_the_schema_that_spark_expects(history: FakeHistoryService) -> None:
    history.add("a", user_properties=[{"name": "n", "value": "v"}])
    made = source(history)
    reader = made.reader(made.schema())

    first: Any = next(reader.read(reader.partitions()[0]))

    assert first.schema.equals(to_arrow_schema(made.schema(), timezone="UTC"))


def test_an_empty_log_has_no_partitions_and_an_empty_partition_no_rows(history: FakeHistoryService) -> None:
    reader = batch_reader(history)

    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_range_by_offsets_or_times_is_read(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)

    by_offsets = batch_reader(history, startingOffsets=json.dumps({"0": at(1)}), endingOffsets=json.dumps({"0": at(3)}))
    by_times = batch_reader(history, startingTimestamp="1700000002000", endingTimestamp="1700000004000")
    ago = batch_reader(history, startingTimestamp="-1s")

    assert read_positions(by_offsets, by_offsets.partitions()) == [at(2), at(3)]
    assert read_positions(by_times, by_times.partitions()) == [at(2), at(3)]
    assert read_positions(ago, ago.partitions()) == [at(4), at(5)]


def test_at_least_as_many_partitions_as_asked_for_share_the_range(history: FakeHistoryService) -> None:
    history.add_many("a", 8, shard=0)
    reader = batch_reader(history, minPartitions="4")

    partitions = reader.partitions()

    assert len(partitions) == 4
    assert read_positions(reader, partitions) == [at(second) for second in range(1, 9)]


def test_records_written_between_two_plans_are_left_out(history: FakeHistoryService) -> None:
    history.add_many("a", 2, shard=0)
    reader = batch_reader(history, minPartitions="2")

    reader.partitions()

    assert history.plans[1].end.positions == {"0": at(2), "1": 0}


def test_offsets_of_another_log_are_refused(history: FakeHistoryService) -> None:
    foreign = json.dumps({"version": 1, "log": "beef", "shards": {"0": 5}})

    with pytest.raises(UsageError, match="log beef, but the servers have log 00ff"):
        batch_reader(history, startingOffsets=foreign).partitions()


def test_a_large_first_batch_has_a_small_head(history: FakeHistoryService) -> None:
    history.batch_rows = 1000
    history.add_many("a", 600, shard=0)
    reader = batch_reader(history)

    batches: Iterator[Any] = reader.read(reader.partitions()[0])
    sizes = [batch.num_rows for batch in batches]

    assert sizes == [256, 344]


def test_only_a_reader_with_pushdown_can_take_filters_over(history: FakeHistoryService) -> None:
    plain, pushing = batch_reader(history), batch_reader(history, pushdown="true")

    assert type(plain) is BatchReader
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    assert type(pushing) is PushingReader


def test_filters_that_are_pushed_reach_the_service(history: FakeHistoryService) -> None:
    for number in range(6):
        history.add(f"a/{number % 2}", shard=0)
    history.expire(at(1))
    reader = batch_reader(history, pushdown="true")

    left = list(reader.pushFilters([EqualTo(("topic",), "a/1"), GreaterThan(("position",), at(3)), EqualTo(("qos",), 1)]))

    assert left == [EqualTo(("qos",), 1)]
    assert read_positions(reader, reader.partitions()) == [at(4), at(6)]
    assert history.plans[0].filters == ["a/1"]
    assert history.plans[0].start.positions == {"0": at(3), "1": at(3)}


def test_a_filter_that_matches_nothing_sends_no_request(history: FakeHistoryService) -> None:
    reader = batch_reader(history, pushdown="true", topicFilter="a/#")

    left = list(reader.pushFilters([EqualTo(("topic",), "b")]))

    assert (left, reader.partitions(), history.plans) == ([], [], [])


def test_a_query_bound_before_the_retained_records_is_not_a_loss_when_reading_from_the_beginning(
    history: FakeHistoryService,
) -> None:
    history.add_many("a", 5, shard=0)
    history.expire(at(2))
    reader = batch_reader(history, pushdown="true")

    list(reader.pushFilters([GreaterThan(("position",), at(1))]))
    partitions = reader.partitions()

    assert read_positions(reader, partitions) == [at(3), at(4), at(5)]
    assert [wire.decode(part.value, wire.Ticket).on_loss for part in partitions] == ["fail"]


def test_a_deleted_start_offset_is_a_loss_even_with_a_bound(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    history.add("a", shard=1)
    history.expire(at(3))
    reader = batch_reader(history, pushdown="true", startingOffsets=json.dumps({"0": at(1)}))

    list(reader.pushFilters([GreaterThan(("position",), at(2))]))

    with pytest.raises(DataLoss) as caught:
        reader.partitions()
    assert caught.value.gaps == {0: wire.ShardGap(at(2), at(3) + 1)}


def test_a_bound_of_the_query_and_a_shard_without_records_can_be_cut_in_more_parts(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    reader = batch_reader(history, pushdown="true", minPartitions="3")

    list(reader.pushFilters([GreaterThan(("position",), at(1))]))
    partitions = reader.partitions()

    assert len(partitions) == 3
    assert read_positions(reader, partitions) == [at(2), at(3), at(4), at(5)]


def test_records_that_a_query_excludes_are_not_reported_as_lost(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    history.expire(at(2))
    reader = batch_reader(history, pushdown="true", startingTimestamp="1700000000000")

    list(reader.pushFilters([GreaterThan(("position",), at(3))]))

    assert read_positions(reader, reader.partitions()) == [at(4), at(5)]
