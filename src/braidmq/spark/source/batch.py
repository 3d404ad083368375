"""`spark.read.format("braidmq")`: a range of history as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import pyspark.sql.datasource
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from braidmq.base.errors import ConfigError
from braidmq.flight import wire
from braidmq.flight.client import HistoryClient
from braidmq.spark.option_table import warn_of_unknown
from braidmq.spark.source import offsets
from braidmq.spark.source.options import EARLIEST, LATEST, parse_read_options
from braidmq.spark.source.reading import Reading, range_bound, to_partitions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from braidmq.spark.source.pushdown import Pushed


class BatchReader(Reading, DataSourceReader):
    """A range that is fixed when Spark plans; each action on a DataFrame plans anew."""

    def partitions(self) -> Sequence[InputPartition]:
        warn_of_unknown(self._options.unknown)
        with self._connect() as client:
            start, end = self._bounds(client)
            return self._cut(client, self._options.filters, start, end)

    def _bounds(self, client: HistoryClient) -> tuple[wire.RangeBound, wire.RangeBound]:
        return range_bound(self._options.start or EARLIEST, client), range_bound(self._options.end or LATEST, client)

    def _cut(
        self,
        client: HistoryClient,
        filters: Sequence[str],
        start: wire.RangeBound,
        end: wire.RangeBound,
        forgiven: Set[int] = frozenset(),
    ) -> list[InputPartition]:
        planning = self._plan(client, filters, start, end, forgiven)
        for bound in (self._options.start, self._options.end):
            if bound is not None and bound.offset is not None:
                offsets.check_log(bound.offset, planning.planned.log)
        return to_partitions([ticket for ticket, _ in planning.parts])


class PushingReader(BatchReader):
    """The same with filter pushdown. Spark rejects a reader with this method unless its own setting enables pushdown."""

    _pushed: Pushed | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from braidmq.spark.source.pushdown import push

        self._pushed, left = push(self._options.filters, filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        pushed = self._pushed
        if pushed is None:
            return super().partitions()
        warn_of_unknown(self._options.unknown)
        if not pushed.filters:
            return []
        with self._connect() as client:
            start, end = self._bounds(client)
            if not pushed.has_bounds:
                return self._cut(client, pushed.filters, start, end)
            shards = client.shards()
            first = offsets.start_at(start, shards)
            # A read from the beginning has no gaps, even if the query's own bound is before the earliest record.
            forgiven = {shard for shard, position in first.items() if not position}
            first_bound, last_bound = _narrowed(first, offsets.end_at(end, shards), pushed, start.gone)
            return self._cut(client, pushed.filters, first_bound, last_bound, forgiven)


def make_reader(options: dict[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options; raises ConfigError if this version of Spark does not support them."""
    if not parse_read_options(options).pushdown:
        return BatchReader(options, schema)
    if not hasattr(pyspark.sql.datasource, "Filter"):
        raise ConfigError("pushdown", "needs Spark 4.1 or later", "use topicFilter, startingTimestamp and endingTimestamp")
    return PushingReader(options, schema)


def _narrowed(
    first: Mapping[int, int], last: Mapping[int, int], pushed: Pushed, gone: wire.Gone
) -> tuple[wire.RangeBound, wire.RangeBound]:
    """The range within the bounds of the query."""
    starts = {shard: max(position, pushed.after) for shard, position in first.items()}
    ends = {shard: position if pushed.until is None else min(position, pushed.until) for shard, position in last.items()}
    start = wire.RangeBound(positions=wire.to_wire(starts), gone=gone)
    return start, wire.RangeBound(positions=offsets.ends_to_ask_for(starts, ends))
