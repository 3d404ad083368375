"""Arrow record batches built without copying from buffers that the lane has filled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from braidmq.base.history_columns import BY_NAME
from braidmq.lane.records.columns import Columns

if TYPE_CHECKING:
    from braidmq.lane.records.arrow_buffers import Taken


class Batches:
    """Collects records of a shard in `columns`, and turns them into batches with this schema."""

    def __init__(self, schema: pa.Schema, shard: int) -> None:
        self.schema = schema
        self.columns = Columns(_names(schema))
        self._shard = shard

    def take(self) -> pa.RecordBatch:
        """The rows collected since the last call, possibly none; raises Corruption for invalid UTF-8."""
        rows = len(self.columns)
        taken = self.columns.take()
        return pa.RecordBatch.from_arrays([self._array(field, rows, taken) for field in self.schema], schema=self.schema)

    def _array(self, field: pa.Field, rows: int, taken: dict[str, Taken]) -> pa.Array:
        source = BY_NAME[field.name].source
        if source is None:  # the shard column has the same value in all rows
            return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(self._shard.to_bytes(4, "little") * rows)])
        nulls, buffers = taken[source]
        found = [None if each is None else pa.py_buffer(each) for each in buffers]
        if pa.types.is_list(field.type):
            return _pairs(field.type, rows, nulls, found, memoryview(buffers[1]))  # type: ignore[arg-type] # offsets are always there
        return pa.Array.from_buffers(field.type, rows, found, nulls)


def cut(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Divide the rows into pieces of about this many bytes, without copying."""
    rows = max(batch.num_rows * bytes_max // max(batch.nbytes, 1), 1)
    return (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def _names(schema: pa.Schema) -> list[str]:
    sources = dict.fromkeys(BY_NAME[name].source for name in schema.names)
    return [source for source in sources if source is not None]


def _pairs(kind: pa.ListType, rows: int, nulls: int, buffers: list[Any], offsets: memoryview) -> pa.Array:
    validity, ends, *texts = buffers
    count = offsets.cast("B").cast("i")[rows]
    names = pa.Array.from_buffers(kind.value_type.field(0).type, count, [None, *texts[:2]], 0)
    values = pa.Array.from_buffers(kind.value_type.field(1).type, count, [None, *texts[2:]], 0)
    pairs = pa.Array.from_buffers(kind.value_type, count, [None], 0, children=[names, values])
    return pa.Array.from_buffers(kind, rows, [validity, ends], nulls, children=[pairs])
