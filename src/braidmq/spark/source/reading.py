"""Shared by batch and stream: planning a range on the driver, reading a part of it on an executor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from braidmq.flight import wire
from braidmq.flight.client import HistoryClient, Planning
from braidmq.flight.errors import DataLoss, describe_gaps, from_wire_gaps
from braidmq.flight.times import to_bound
from braidmq.spark.source.format import restore
from braidmq.spark.source.offsets import ends_to_ask_for
from braidmq.spark.source.options import Bound, ReadOptions, parse_read_options
from braidmq.spark.source.schema import arrow_schema, columns_of

log = logging.getLogger("braidmq.spark")

# Spark cannot pass LIMIT to a source. A small first batch lets `limit(10)` and `show()` end early.
_HEAD_ROWS: Final = 256


# Derived from the options again after unpickling.
_LOCAL: Final = ("_options", "_client", "_backlog")


@contextmanager
def losses_in_words() -> Iterator[None]:
    """Add to DataLoss how the query can continue."""
    try:
        yield
    except DataLoss as loss:
        hint = "with the option failOnDataLoss=false the query logs a warning and continues with the remaining records"
        raise DataLoss(loss.gaps, hint) from None


class Reading:
    """The options and schema of one read. Unpickling checks the requirements first; it holds no connection."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        """Raises ConfigError or UsageError for invalid options."""
        self._raw_options = options
        self._schema = schema
        columns_of(schema, self._options.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        state = {name: value for name, value in self.__dict__.items() if name not in _LOCAL}
        return restore, (kind.__module__, kind.__name__), state

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a part, each exactly once even if the server is lost meanwhile. Runs on an executor."""
        # For a plan without parts, Spark passes None before 4.2, and a part without a value since then.
        if partition is None or partition.value is None:
            return
        expected = arrow_schema(self._schema)
        is_first = True
        with self._connect() as client, losses_in_words():
            for batch in client.stream(wire.decode(partition.value, wire.Ticket)):
                fitting = pa.RecordBatch.from_arrays(batch.columns, schema=expected)
                if is_first and fitting.num_rows > _HEAD_ROWS:
                    yield fitting.slice(0, _HEAD_ROWS)
                    fitting = fitting.slice(_HEAD_ROWS)
                is_first = False
                yield fitting

    @cached_property
    def _options(self) -> ReadOptions:
        return parse_read_options(self._raw_options)

    def _connect(self) -> HistoryClient:
        options = self._options
        return HistoryClient(options.servers, options.access, call_s=options.call_s, retry_s=options.retry_s)

    @losses_in_words()
    def _plan(
        self,
        client: HistoryClient,
        filters: Sequence[str],
        start: wire.RangeBound,
        end: wire.RangeBound,
        forgiven: Set[int] = frozenset(),
    ) -> Planning:
        """Plan a range into parts, at least `minPartitions` if the range allows it; tolerated gaps are logged.

        Gaps of `forgiven` shards are ignored; what these shards lose from now on is a loss.
        """
        wanted = self._options.partitions_min
        plan = wire.Plan(
            list(filters),
            start=start,
            end=end,
            columns=columns_of(self._schema, self._options.columns),
            part_rows_max=self._options.partition_rows_max,
            part_bytes_max=self._options.partition_bytes_max,
            on_loss="skip" if forgiven else self._options.on_loss,
        )
        planning = client.plan(plan)
        if 0 < len(planning.parts) < wanted:
            # Up to the end planned before, so that the range does not grow.
            settled = ends_to_ask_for(wire.from_wire(planning.planned.start), wire.from_wire(planning.planned.end))
            again = msgspec.structs.replace(plan, end=wire.RangeBound(positions=settled), partitions=wanted)
            planning = Planning(planning.planned, client.plan(again).parts)
        gaps = {shard: gap for shard, gap in from_wire_gaps(planning.planned.gaps).items() if shard not in forgiven}
        if gaps and self._options.fail_on_data_loss:
            raise DataLoss(gaps)
        if gaps:
            found = describe_gaps(gaps)
            log.warning("retention removed part of the requested records, and failOnDataLoss is false: %s", found)
        parts = [(msgspec.structs.replace(ticket, on_loss=self._options.on_loss), part) for ticket, part in planning.parts]
        return Planning(planning.planned, parts)


def range_bound(bound: Bound, client: HistoryClient) -> wire.RangeBound:
    """Convert a bound to its wire format; relative times refer to the clock of the service."""
    if bound.offset is not None:
        return bound.offset.to_bound()
    if bound.moment is not None:
        return to_bound(bound.moment, lambda: client.shards().now)
    return wire.RangeBound(at=bound.at)


def to_partitions(tickets: Sequence[wire.Ticket]) -> list[InputPartition]:
    """Parts in a form that Spark can send: bytes, which any Python can unpickle."""
    return [InputPartition(wire.encode(ticket)) for ticket in tickets]
