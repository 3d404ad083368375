"""Runs a streaming query until it ends or is stopped, and shows its progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.flight import wire
from braidmq.spark.jobs.framework.at_work import BatchAtWork
from braidmq.spark.jobs.framework.checkpoint import Checkpoint, open_checkpoint
from braidmq.spark.jobs.framework.failures import AGAIN_FROM_CHECKPOINT, explain
from braidmq.spark.jobs.framework.job import HistoryOptions, Job
from braidmq.spark.jobs.framework.progress import Display, JobBacklog, Meter
from braidmq.spark.jobs.framework.stop import StopRequest
from braidmq.spark.jobs.tables.ownership import Ownership
from braidmq.spark.jobs.tables.tables import BatchName, for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from braidmq.flight.client import HistoryClient

EachBatch = Callable[["DataFrame", BatchName], None]
Begin = Callable[[], Mapping[str, int]]

_LOOK_EVERY_S: Final = 0.5
_ASK_EVERY_S: Final = 2.0
# How long the current batch may take after the job is asked to stop. Service managers wait about as long.
FINISH_S: Final = 30.0


def checkpoint_for(job: Job, output: str) -> str:
    """The checkpoint directory of the job. A path without a scheme is local, relative to the working directory."""
    chosen = job.pace.checkpoint or f"{output.rstrip('/')}.checkpoint"
    # Java may resolve relative paths differently.
    return chosen if "://" in chosen else str(Path(chosen).absolute())


def run_stream(job: Job, stream: DataFrame, each_batch: EachBatch, checkpoint: str, ownership: Ownership | None = None) -> Meter:
    """Run the query until it ends or the job is asked to stop; the current batch then has some time to finish.

    With an ownership, batches carry a record for their tables. Raises what `each_batch` raised, except `Stopped`.
    """
    failures: list[Exception] = []
    place = open_checkpoint(job.spark, checkpoint)

    def call(frame: DataFrame, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None, "Spark sets the id of the query for its batches"
        try:
            plain = BatchName(query, number)
            each_batch(frame, plain if ownership is None else ownership.batch(query, number, place.end_of(number)))
        except Exception as error:
            # Spark wraps the exception and loses its type.
            failures.append(error)
            raise

    writer = stream.writeStream.foreachBatch(call).outputMode("append").queryName(f"braidmq {job.name}")
    writer = writer.option("checkpointLocation", for_spark(checkpoint))
    writer = writer.trigger(availableNow=True) if job.pace.available_now else writer.trigger(processingTime=job.pace.trigger)
    meter = Meter()
    watch = Watch(job.history)
    try:
        query = writer.start()
        with Display(job.name) as display:
            at_work = BatchAtWork(job.spark, str(query.runId))
            follow(query, meter, watch, display, job.stop, at_work=at_work, begin=lambda: _begin_of(place))
    except Exception as error:
        if failures and isinstance(failures[0], BraidError):
            raise failures[0] from None
        if not job.stop.is_asked:
            raise explain(error, AGAIN_FROM_CHECKPOINT) from None
        # Interrupted, by us or because Spark received the same signal: the next run repeats the batch.
        job.stop.is_granted = True
    finally:
        watch.close()
    watch.note(meter.end)
    return meter


def follow(
    query: StreamingQuery,
    meter: Meter,
    watch: Watch,
    display: Display,
    stop: StopRequest,
    *,
    at_work: BatchAtWork | None = None,
    begin: Begin = dict,
) -> None:
    """Show the progress until the query ends or is stopped. `begin` gives its start while no batch is finished."""
    finish_by, batch_at_work = 0.0, 0
    with stop.listening():
        while not query.awaitTermination(_LOOK_EVERY_S):  # type: ignore[arg-type]
            meter.see(_reports(query))
            if not stop.is_asked:
                inside = None if at_work is None else at_work.look(meter.last_batch + 1)
                display.show(meter.words(watch.backlog(meter.end, begin), inside))
                continue
            if not finish_by:
                finish_by, batch_at_work = time.monotonic() + FINISH_S, meter.last_batch + 1
            # The next run repeats an interrupted batch; letting it finish is only cheaper.
            is_finished = meter.last_batch >= batch_at_work or not query.status["isTriggerActive"]
            if is_finished or time.monotonic() >= finish_by:
                stop.is_granted = True
                break
            display.show(f"{meter.words(None)}; finishing the current batch, press Ctrl-C again to stop at once")
        query.stop()
    meter.see(_reports(query))


def _begin_of(checkpoint: Checkpoint) -> Mapping[str, int]:
    begin = checkpoint.begin()
    return {} if begin is None else wire.to_wire(begin.shards)


def _reports(query: StreamingQuery) -> list[Mapping[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


class Watch:
    """Asks the history service for the backlog and reports the job's position. Failures here do not stop the job."""

    def __init__(self, history: HistoryOptions) -> None:
        self._history = history
        self._client: HistoryClient | None = None
        self._asked_at = 0.0
        self._backlog: JobBacklog | None = None

    def backlog(self, end: Mapping[str, int], begin: Begin = dict) -> JobBacklog | None:
        """The backlog after these positions, or after the start of the query; asked at most every two seconds."""
        if time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return self._backlog
        self._asked_at = time.monotonic()
        end = end or begin()
        if not end:
            return self._backlog
        try:
            answer = self._open().advance(wire.Advance(filters=self._history.asking.filters, start=dict(end), on_loss="skip"))
        except BraidError:
            self._backlog = None
            return None
        # A shard at 1 (0 in old checkpoints) had no records yet, so the age of its first record is unknown.
        behind_us = [answer.latest.get(shard, 0) - position for shard, position in end.items() if position > 1]
        known_s = max(behind_us) / 1e6 if behind_us else None
        self._backlog = JobBacklog(answer.rows_max, known_s if answer.rows_max else 0.0)
        return self._backlog

    def note(self, end: Mapping[str, int]) -> None:
        """Report the position of the named reader: Spark does not commit the last batch of a run to its source."""
        asking = self._history.asking
        if not end or not asking.reader_name:
            return
        try:
            with self._history.client() as client:
                client.note_reader(asking.reader_name, wire.from_wire(dict(end)), asking.filters)
        except BraidError:
            return

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _open(self) -> HistoryClient:
        if self._client is None:
            self._client = self._history.client()
        return self._client
