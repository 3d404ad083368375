"""The columns of history as Spark has them: `flight.columns`, in Spark's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braidmq.base.errors import UsageError
from braidmq.flight import columns

_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "payload": BinaryType(),
    "qos": IntegerType(),
    "retain": BooleanType(),
    "client_id": StringType(),
    "publish_timestamp": TimestampType(),
    "store_timestamp": TimestampType(),
    "payload_format": IntegerType(),
    "content_type": StringType(),
    "response_topic": StringType(),
    "correlation_data": BinaryType(),
    "user_properties": ArrayType(StructType([StructField("name", StringType()), StructField("value", StringType())])),
    "expires_at": TimestampType(),
    "shard": IntegerType(),
    "position": LongType(),
}


def struct_of(names: Sequence[str] | None) -> StructType:
    """The schema of these columns, or of all."""
    return StructType([StructField(name, _TYPES[name]) for name in columns.choose(names).names])


def columns_of(schema: StructType, chosen: Sequence[str] | None) -> list[str]:
    """The columns that a schema asks for, in its order; raises UsageError if they are not those of history.

    `chosen` is the option `columns`, which a schema of one's own replaces and must not contradict.
    """
    names = columns.choose(schema.names).names
    wrong = [field for field in schema.fields if field.dataType != _TYPES[field.name]]
    if wrong:
        found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in wrong)
        right = ", ".join(f"{field.name} {_TYPES[field.name].simpleString()}" for field in wrong)
        raise UsageError(f"the schema has {found}", f"history has {right}; cast after the read")
    if chosen is not None and list(chosen) != names:
        raise UsageError("the option columns and the schema name different columns", "give one of the two")
    return list(names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Exactly what Spark expects of the first batch; fields that a user declared NOT NULL included."""
    return pa.schema([columns.SCHEMA.field(field.name).with_nullable(field.nullable) for field in schema.fields])
