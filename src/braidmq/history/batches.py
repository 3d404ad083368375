"""Record batches of Arrow, put together from the buffers that the lane has filled, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from braidmq.lane.columns import Columns

if TYPE_CHECKING:
    from braidmq.lane.arrow_buffers import Taken

# Columns that are not of the lane's making: one is the same for all rows, the other another name of the position.
_SHARD: Final = "shard"
_STORED_AT: Final = "store_timestamp"
_POSITION: Final = "position"


class Batches:
    """Collects records of a shard in `columns`, and makes batches of this schema of them."""

    def __init__(self, schema: pa.Schema, shard: int) -> None:
        self.schema = schema
        self.columns = Columns(_names(schema))
        self._shard = shard

    def take(self) -> pa.RecordBatch:
        """What was collected since the last time, which may be nothing; raises Corruption for a text that is not UTF-8."""
        rows = len(self.columns)
        taken = self.columns.take()
        return pa.RecordBatch.from_arrays([self._array(field, rows, taken) for field in self.schema], schema=self.schema)

    def _array(self, field: pa.Field, rows: int, taken: dict[str, Taken]) -> pa.Array:
        if field.name == _SHARD:
            return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(self._shard.to_bytes(4, "little") * rows)])
        nulls, buffers = taken[_POSITION if field.name == _STORED_AT else field.name]
        found = [None if each is None else pa.py_buffer(each) for each in buffers]
        if pa.types.is_list(field.type):
            return _pairs(field.type, rows, nulls, found, memoryview(buffers[1]))  # type: ignore[arg-type] # offsets are always there
        return pa.Array.from_buffers(field.type, rows, found, nulls)


def cut(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of about so many bytes, without a copy."""
    rows = max(batch.num_rows * bytes_max // max(batch.nbytes, 1), 1)
    return (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def _names(schema: pa.Schema) -> list[str]:
    names = dict.fromkeys(_POSITION if name == _STORED_AT else name for name in schema.names if name != _SHARD)
    return [*names]


def _pairs(kind: pa.ListType, rows: int, nulls: int, buffers: list[Any], offsets: memoryview) -> pa.Array:
    validity, ends, *texts = buffers
    count = offsets.cast("B").cast("i")[rows]
    names = pa.Array.from_buffers(kind.value_type.field(0).type, count, [None, *texts[:2]], 0)
    values = pa.Array.from_buffers(kind.value_type.field(1).type, count, [None, *texts[2:]], 0)
    pairs = pa.Array.from_buffers(kind.value_type, count, [None], 0, children=[names, values])
    return pa.Array.from_buffers(kind, rows, [validity, ends], nulls, children=[pairs])
