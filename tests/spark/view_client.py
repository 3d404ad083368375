"""A stream reader over the view of a real log, in one process: what the service does between the two is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThan

from braidmq.flight import wire
from braidmq.flight.client import Planning
from braidmq.flight.errors import DataLoss, from_wire_gaps
from braidmq.history.service.errors import HistoryError
from braidmq.history.view.log_view import LogView
from braidmq.spark import BraidDataSource
from braidmq.spark.source.reading import Reading
from braidmq.spark.source.stream import StreamReader


class ViewClient:
    """What readers use of a HistoryClient. Everything goes through JSON, as it would."""

    def __init__(self, view: LogView) -> None:
        self._view = view

    def shards(self) -> wire.Shards:
        return wire.decode(wire.encode(self._view.shards()), wire.Shards)

    def plan(self, plan: wire.Plan) -> Planning:
        with _losses():
            planned, parts = self._view.plan(wire.decode(wire.encode(plan), wire.Plan))
        return Planning(planned, parts)

    def advance(self, advance: wire.Advance) -> wire.Advanced:
        with _losses():
            return self._view.advance(wire.decode(wire.encode(advance), wire.Advance))

    def backlog(self, backlog: wire.AskBacklog) -> wire.Backlog:
        return self._view.backlog(wire.decode(wire.encode(backlog), wire.AskBacklog))

    def stream(self, ticket: wire.Ticket) -> Iterator[pa.RecordBatch]:
        with _losses():
            yield from self._view.scan(ticket)

    def close(self) -> None:
        pass

    def __enter__(self) -> ViewClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


@contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except HistoryError as error:
        if error.problem.code != "data-loss":
            raise
        raise DataLoss(from_wire_gaps(error.problem.gaps)) from None


def read_batch(start: str, *, later_than: int | None = None) -> list[int]:
    """The payloads of `spark.read` from this offset on, by pushdown those later than a position, while readers use a view."""
    pushdown = "false" if later_than is None else "true"
    made = BraidDataSource({"topicfilter": "#", "startingoffsets": start, "pushdown": pushdown})
    reader = made.reader(made.schema())
    assert isinstance(reader, Reading)
    if later_than is not None:
        assert not [*reader.pushFilters([GreaterThan(("position",), later_than)])]
    return sorted(int(row["payload"]) for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist())


class Query:
    """A query as Spark runs it: batch after batch from a checkpoint, which is the text of an offset."""

    def __init__(self, view: LogView, rows_max: int | None, patch: pytest.MonkeyPatch, filters: str = "#") -> None:
        limits = {} if rows_max is None else {"maxrowspertrigger": str(rows_max)}
        made = BraidDataSource({"topicfilter": filters, "startingoffsets": "earliest", **limits})
        reader = made.streamReader(made.schema())
        assert isinstance(reader, StreamReader)
        patch.setattr(Reading, "_connect", lambda _: ViewClient(view))
        self.reader = reader
        self.checkpoint = json.dumps(reader.initialOffset())

    def batch(self) -> list[int] | None:
        """The payloads of the next batch, which are numbers; None if there is none."""
        start: dict[str, Any] = json.loads(self.checkpoint)
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if json.dumps(end) == self.checkpoint:
            return None
        parts = self.reader.partitions(start, end)
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
        self.checkpoint = json.dumps(end)
        return sorted(int(row["payload"]) for row in rows)

    def drain(self) -> list[list[int]]:
        """All batches until there is nothing new."""
        batches: list[list[int]] = []
        while (batch := self.batch()) is not None:
            batches.append(batch)
        return batches
