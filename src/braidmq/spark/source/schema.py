"""The columns of history in the types of Spark."""

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
from braidmq.base.history_columns import COLUMNS, Kind
from braidmq.flight import columns

_KINDS: Final[dict[Kind, DataType]] = {
    Kind.TEXT: StringType(),
    Kind.BINARY: BinaryType(),
    Kind.INT32: IntegerType(),
    Kind.INT64: LongType(),
    Kind.FLAG: BooleanType(),
    Kind.TIME: TimestampType(),
    Kind.PAIRS: ArrayType(StructType([StructField("name", StringType()), StructField("value", StringType())])),
}
_TYPES: Final = {column.name: _KINDS[column.kind] for column in COLUMNS}


def struct_of(names: Sequence[str] | None) -> StructType:
    """The schema of these columns, or of all."""
    return StructType([StructField(name, _TYPES[name]) for name in columns.choose(names).names])


def columns_of(schema: StructType, chosen: Sequence[str] | None) -> list[str]:
    """The columns of a schema, in its order; raises UsageError if they are not columns of history.

    `chosen` is the option `columns`, which a user's schema replaces and must not contradict.
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
    """The schema that Spark expects of the first batch, including NOT NULL declarations of the user."""
    return pa.schema([columns.SCHEMA.field(field.name).with_nullable(field.nullable) for field in schema.fields])
