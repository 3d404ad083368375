"""The columns of history in the types of Arrow.

The types are exactly those that Spark uses for its own: `utf8`, not `large_utf8`; timestamps in microseconds and UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from braidmq.base.errors import UsageError
from braidmq.base.history_columns import COLUMNS, Kind

_USER_PROPERTY: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])
_TYPES: Final = {
    Kind.TEXT: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.FLAG: pa.bool_(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.PAIRS: pa.list_(_USER_PROPERTY),
}

SCHEMA: Final = pa.schema([pa.field(column.name, _TYPES[column.kind]) for column in COLUMNS])


def choose(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns in this order; of all columns for None. Raises UsageError for an unknown name."""
    if columns is None:
        return SCHEMA
    unknown = [each for each in columns if each not in SCHEMA.names]
    if unknown or not columns or len(set(columns)) != len(columns):
        problem = (
            f"history has no column {', '.join(unknown)}" if unknown else "columns must be a non-empty list without duplicates"
        )
        raise UsageError(problem, f"choose from {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(each) for each in columns])
