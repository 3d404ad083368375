"""The columns of history, for Arrow: names, types and what they say. Their order is that of a schema without a choice of columns.

The types are those that Spark maps its own to, exactly: `utf8` and not `large_utf8`, timestamps in microseconds and UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from braidmq.base.errors import UsageError

_TIME: Final = pa.timestamp("us", tz="UTC")
_USER_PROPERTY: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int32()),
        pa.field("retain", pa.bool_()),
        pa.field("client_id", pa.string()),  # of the publisher; empty: the broker itself
        pa.field("publish_timestamp", _TIME),  # when it was published; as stored, unless it is known to differ
        pa.field("store_timestamp", _TIME),
        pa.field("payload_format", pa.int32()),
        pa.field("content_type", pa.string()),
        pa.field("response_topic", pa.string()),
        pa.field("correlation_data", pa.binary()),
        pa.field("user_properties", pa.list_(_USER_PROPERTY)),  # null if there are none
        pa.field("expires_at", _TIME),
        pa.field("shard", pa.int32()),
        pa.field("position", pa.int64()),
    ]
)


def choose(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns in this order; all of them for None. Raises UsageError for a name that is not one."""
    if columns is None:
        return SCHEMA
    unknown = [each for each in columns if each not in SCHEMA.names]
    if unknown or not columns or len(set(columns)) != len(columns):
        what = f"no column {', '.join(unknown)}" if unknown else "no column twice, and not none at all"
        raise UsageError(f"history has {what}", f"choose from {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(each) for each in columns])
