"""The columns of history: the lane, Arrow Flight, Spark and the Parquet export all derive theirs from this table.

Its order is that of a schema in which no columns were selected. A new column is a line here, and its value in
`lane.records.columns` and in the record's line (`control.history`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple


class Kind(Enum):
    """The type of a column's values."""

    TEXT = auto()
    BINARY = auto()
    INT32 = auto()
    INT64 = auto()
    FLAG = auto()
    TIME = auto()  # microseconds since 1970, UTC
    PAIRS = auto()  # a list of names and values, both text; null instead of an empty list


class HistoryColumn(NamedTuple):
    """One column, and where its values are in the two forms of a record.

    `source` is the lane's column with its values, None if they are the same for all records of a shard. `line` is the field of a
    record's line in the control API, or `properties.NAME` for an MQTT 5 property of the message.
    """

    name: str
    kind: Kind
    source: str | None
    line: str


COLUMNS: Final = (
    HistoryColumn("topic", Kind.TEXT, "topic", "topic"),
    HistoryColumn("payload", Kind.BINARY, "payload", "payload"),
    HistoryColumn("qos", Kind.INT32, "qos", "qos"),
    HistoryColumn("retain", Kind.FLAG, "retain", "retain"),
    # The publisher's; empty: the broker itself published the message.
    HistoryColumn("client_id", Kind.TEXT, "client_id", "client_id"),
    # Same as store_timestamp unless it is known to differ.
    HistoryColumn("publish_timestamp", Kind.TIME, "publish_timestamp", "published_at"),
    HistoryColumn("store_timestamp", Kind.TIME, "position", "timestamp"),
    HistoryColumn("payload_format", Kind.INT32, "payload_format", "properties.payload_format_indicator"),
    HistoryColumn("content_type", Kind.TEXT, "content_type", "properties.content_type"),
    HistoryColumn("response_topic", Kind.TEXT, "response_topic", "properties.response_topic"),
    HistoryColumn("correlation_data", Kind.BINARY, "correlation_data", "properties.correlation_data"),
    HistoryColumn("user_properties", Kind.PAIRS, "user_properties", "properties.user_properties"),
    HistoryColumn("expires_at", Kind.TIME, "expires_at", "expires_at"),
    HistoryColumn("shard", Kind.INT32, None, "shard"),
    HistoryColumn("position", Kind.INT64, "position", "timestamp"),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}


def sources(*kinds: Kind) -> tuple[str, ...]:
    """The columns of these kinds that the lane fills from a record."""
    return tuple(column.name for column in COLUMNS if column.kind in kinds and column.source == column.name)
