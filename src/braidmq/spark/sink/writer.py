"""`df.write` and `df.writeStream` with `format("braidmq")`: rows become messages, each published once, in order per partition.

Each task publishes as its own producer, `<query>-<partition>` for a stream, and numbers its rows from the base of the batch. On
the next connection the broker reports what it has recorded of them, so a restarted task, driver or broker continues where the
last one stopped. `docs/spark.md` lists the requirements.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark.sql.datasource
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from braidmq.base.errors import UsageError
from braidmq.client.errors import reason_in_words
from braidmq.spark.option_table import warn_of_unknown
from braidmq.spark.sink.columns import check_columns
from braidmq.spark.sink.dead_letters import DeadLetters, make_letter
from braidmq.spark.sink.options import WriteOptions, parse_write_options
from braidmq.spark.sink.producer_part import ProducerPart
from braidmq.spark.sink.publisher import RowPublisher
from braidmq.spark.sink.rows import RowBatch, RowMaker
from braidmq.spark.source.format import restore

if TYPE_CHECKING:
    from pyspark.sql import Row

log = logging.getLogger("braidmq.spark")

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
_ROWS_AT_ONCE: Final = 10_000
_LETTERS_AT_ONCE: Final = 1000
_warned_of: set[tuple[str, ...]] = set()


@dataclass
class TaskReport(WriterCommitMessage):
    """The result of a task: rows published by an earlier attempt, rows it published, and rejected rows."""

    producer: str
    batch: int
    partition: int
    resumed: int
    published: int
    refused: int
    is_skipped: bool = False


class Sink:
    """Shared by all writers; pickled to the executors, so it holds only values."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Runs on the driver; opens no connection."""
        if overwrite:
            raise UsageError(
                'mode("overwrite") is not supported: published messages cannot be taken back',
                'write .mode("append"), or outputMode("append") or ("update") for a stream',
            )
        self._options = parse_write_options(options)
        self._places = check_columns(schema, self._options.key_column)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (type(self).__module__, type(self).__name__), self.__dict__

    def _part(self) -> ProducerPart:
        raise NotImplementedError

    def _publish(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Publish the rows of a task; runs on an executor."""
        part = self._part()
        options = self._options
        maker = RowMaker(self._places, options.qos)
        letters = _letters(part, options)
        publisher = RowPublisher(part, options, maker, lambda *refused: _refuse(part, options, letters, *refused))
        try:
            publisher.open()
            if publisher.is_done:
                return TaskReport(part.producer, part.batch, part.partition, 0, 0, 0, is_skipped=True)
            rows = 0
            for batch in batches:
                taken = maker.take(batch)
                rows += len(taken)
                publisher.add(taken)
            publisher.finish()
            letters.flush()
        finally:
            publisher.close()
        resumed = publisher.resumed_at
        return TaskReport(part.producer, part.batch, part.partition, resumed, rows - resumed - letters.count, letters.count)

    def _check_partitions(self, reports: list[TaskReport]) -> None:
        """Check whether an earlier attempt had more partitions; runs on the driver when all tasks are done.

        A task cannot check, since Spark does not tell it how many there are. What the extra ones published is in the log, and has
        now been published again by others.
        """
        if self._options.key_column or not reports or any(each.is_skipped for each in reports):
            return
        producer, batch, count = reports[0].producer, reports[0].batch, max(each.partition for each in reports) + 1
        rows = self._further_rows(producer, batch, count)
        if not rows:
            return
        detail = (
            f"an earlier attempt at batch {batch} of {producer} had more than {count} partitions, and had published "
            f"{sum(rows.values())} rows of partition {', '.join(map(str, rows))}; they were published again"
        )
        if self._options.fails_on_partition_change:
            hint = "set keyColumn to prevent this; to continue with these duplicates, set onPartitionChange to warn"
            raise UsageError(detail, hint)
        log.warning("%s", detail)

    def _further_rows(self, producer: str, batch: int, first: int) -> dict[int, int]:
        """The rows published by partition, from `first` to the last that the broker knows; omits partitions without rows."""
        found: dict[int, int] = {}
        partition, end = first, first + 1
        while partition < end:
            publisher = RowPublisher(ProducerPart(producer, batch, partition), self._options, RowMaker(self._places, 0), _never)
            try:
                publisher.open()
            finally:
                publisher.close()
            if publisher.resumed_at:
                found[partition] = publisher.resumed_at
            partition, end = partition + 1, publisher.parts
        return found


def _letters(part: ProducerPart, options: WriteOptions) -> DeadLetters:
    attempt = uuid.uuid4().hex[:12]
    return DeadLetters(options.dead_letter_path, part.producer, part.batch, part.partition, attempt)


def _refuse(
    part: ProducerPart,
    options: WriteOptions,
    letters: DeadLetters,
    row: int,
    batch: RowBatch,
    place: int,
    reason: int,
    detail: str,
) -> None:
    """Write a rejected row to the dead letters, or fail."""
    topic, payload = batch.topics[place], batch.payloads[place]
    words = f"{reason_in_words(reason)}{f', {detail}' if detail else ''}"
    if not options.dead_letter_path:
        shown = topic.decode(errors="replace")
        raise UsageError(
            f"row {row} of partition {part.partition}, to the topic {shown!r}, was rejected: {words}",
            "fix that and retry, or send such rows to deadLetterPath",
        )
    fields = {
        "producer": part.producer,
        "batch": part.batch,
        "partition": part.partition,
        "row": row,
        "qos": batch.qos(place),
        "reason": reason,
        "detail": words,
    }
    letters.add(make_letter(fields, topic, payload))
    # With keys, a rejected row is rejected again later, so there is no hurry; otherwise its number is given up after this.
    if not part.keys or letters.count % _LETTERS_AT_ONCE == 0:
        letters.flush()


class BatchSink(Sink):
    """Writes a batch. The tasks of one write share a name that the driver generates, unless `producerName` is given."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        warn_of_unknown(self._options.unknown)
        self._name = self._options.producer_name or f"write-{uuid.uuid4()}"

    def _part(self) -> ProducerPart:
        return ProducerPart(self._name, 0, _context().partitionId(), bool(self._options.key_column))

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        reports = _tell(messages)
        if self._options.producer_name:  # otherwise the name is unique to this write
            self._check_partitions(reports)


class StreamSink(Sink):
    """Writes a stream: tasks learn the batch and the query from properties that Spark sets."""

    def _part(self) -> ProducerPart:
        context = _context()
        batch, query = context.getLocalProperty(BATCH_ID), context.getLocalProperty(QUERY_ID)
        if batch is None or query is None:
            raise UsageError("Spark did not pass batch and query to the task", "this version of Spark is not supported")
        return ProducerPart(
            self._options.producer_name or query, int(batch), context.partitionId(), bool(self._options.key_column)
        )

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Spark creates two writers per batch, but keeps the process that receives the commits.
        if self._options.unknown not in _warned_of:
            _warned_of.add(self._options.unknown)
            warn_of_unknown(self._options.unknown)
        self._check_partitions(_tell(messages))


def _never(*_: object) -> None:
    raise AssertionError("nothing is published here")


def _tell(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """Summarise the reports of the tasks in the driver's log."""
    reports = [each for each in messages if isinstance(each, TaskReport)]
    refused = sum(each.refused for each in reports)
    if refused:
        log.warning("%d rows were rejected and written to the dead letters", refused)
    if any(each.is_skipped for each in reports):
        log.warning("batch %d of %s was skipped: the broker has a later one", reports[0].batch, reports[0].producer)
    return reports


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise UsageError("only Spark tasks publish rows")
    return context


class ArrowWriter(BatchSink, DataSourceArrowWriter):
    """Writes a batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._publish(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Published rows stay published; with `producerName` another run resumes from there."""


class RowStreamWriter(StreamSink, DataSourceStreamWriter):
    """Writes a stream on Spark 4.0, which supports only rows."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._publish(to_batches(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Published rows stay published; the next attempt resumes from there."""


def to_batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Convert Spark's rows to Arrow batches with the same columns."""
    while taken := list(islice(rows, _ROWS_AT_ONCE)):
        columns = [pa.array([_plain(value) for value in column]) for column in zip(*taken, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # Spark returns local time of the worker
    if isinstance(value, dict):
        return [{"name": name, "value": text} for name, text in value.items()]
    if isinstance(value, list):
        return [None if each is None else each.asDict() for each in value]
    return value


if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):

    class ArrowStreamWriter(StreamSink, pyspark.sql.datasource.DataSourceStreamArrowWriter):
        """Writes a stream."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self._publish(iterator)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            self._commit(messages)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Published rows stay published; the next attempt resumes from there."""


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of `df.write`; raises ConfigError or UsageError."""
    return ArrowWriter(options, schema, overwrite)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of `df.writeStream`; raises ConfigError or UsageError."""
    if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
        return ArrowStreamWriter(options, schema, overwrite)
    return RowStreamWriter(options, schema, overwrite)
