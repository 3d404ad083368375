"""The columns of a DataFrame that make up a message, and their types."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from braidmq.base.errors import ConfigError, UsageError
from braidmq.base.history_columns import COLUMNS

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: Final = (StringType,)
_BYTES: Final = (StringType, BinaryType)

_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": _TEXTS,
    "payload": _BYTES,
    "qos": _INTEGERS,
    "retain": (BooleanType,),
    "payload_format": _INTEGERS,
    "content_type": _TEXTS,
    "response_topic": _TEXTS,
    "correlation_data": _BYTES,
    "user_properties": (ArrayType, MapType),
    "message_expiry_interval": _INTEGERS,
    "expires_at": (TimestampType,),
}
REQUIRED: Final = ("topic", "payload")
# Columns of history that a publisher cannot set.
READ_ONLY: Final = tuple(column.name for column in COLUMNS if column.name not in _COLUMNS)
_KEYS: Final = (*_INTEGERS, *_BYTES)


def check_columns(schema: StructType, key_column: str) -> dict[str, int]:
    """The indexes of the message columns, and of `keyColumn` as `key`; raises ConfigError or UsageError if they do not fit."""
    places: dict[str, int] = {}
    unknown = []
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if key_column and name == key_column.lower():
            if not isinstance(field.dataType, _KEYS):
                raise ConfigError("keyColumn", f"{field.name} is {field.dataType.simpleString()}", "cast it to a string")
            places["key"] = place
            if name not in _COLUMNS:
                continue
        if name in _COLUMNS:
            _check_type(name, field.dataType)
            places[name] = place
        elif name not in READ_ONLY:
            unknown.append(field.name)
    missing = [name for name in REQUIRED if name not in places]
    if missing:
        raise UsageError(
            f"the DataFrame has no column {' and no column '.join(missing)}",
            "a message has topic and payload, and optionally " + ", ".join(list(_COLUMNS)[2:]),
        )
    if unknown:
        raise UsageError(
            f"the DataFrame has unknown columns: {', '.join(unknown)}",
            f"drop them, or put them into the payload; a message has {', '.join(_COLUMNS)}",
        )
    if key_column and "key" not in places:
        raise ConfigError("keyColumn", f"there is no column {key_column}", f"the columns are {', '.join(schema.names)}")
    return places


def _check_type(name: str, found: DataType) -> None:
    is_right = isinstance(found, _COLUMNS[name])
    if isinstance(found, ArrayType):
        pair = found.elementType
        is_right = isinstance(pair, StructType) and [type(each.dataType) for each in pair.fields] == [StringType, StringType]
    elif isinstance(found, MapType):
        is_right = isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not is_right:
        wanted = " or ".join(kind.typeName() for kind in _COLUMNS[name])
        if name == "user_properties":
            wanted = "array<struct<name:string,value:string>> or map<string,string>"
        raise UsageError(f"the column {name} is {found.simpleString()}", f"it must be {wanted}; cast it")
