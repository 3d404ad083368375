"""The readers as Spark's engine calls them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.cloudpickle import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition

from braidmq.spark import BraidDataSource
from braidmq.spark.source.stream import StreamReader
from tests.support.fakes.history_service import BEGINNING, FakeHistoryService

SECOND = 1_000_000


def at(seconds: int) -> int:
    return BEGINNING + seconds * SECOND


def options(history: FakeHistoryService, **more: str) -> dict[str, str]:
    return {"servers": history.address, "topicfilter": "#", "retrytimeout": "5s"} | {key.lower(): v for key, v in more.items()}


def source(history: FakeHistoryService, **more: str) -> BraidDataSource:
    return BraidDataSource(options(history, **more))


def batch_reader(history: FakeHistoryService, **more: str) -> DataSourceReader:
    made = source(history, **more)
    return made.reader(made.schema())


def stream_reader(history: FakeHistoryService, **more: str) -> StreamReader:
    made = source(history, **more)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def rows_of(reader: DataSourceReader | StreamReader, partitions: Iterable[InputPartition]) -> list[dict[str, Any]]:
    """What executors give: each part goes through a pickle, and is read there."""
    shipped = cloudpickle.loads(cloudpickle.dumps((reader, list(partitions))))
    return [row for part in shipped[1] for batch in shipped[0].read(part) for row in batch.to_pylist()]


def read_positions(reader: DataSourceReader | StreamReader, partitions: Iterable[InputPartition]) -> list[int]:
    return sorted(row["position"] for row in rows_of(reader, partitions))
