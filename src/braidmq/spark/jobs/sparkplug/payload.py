"""The payload of Sparkplug B: one message type in protobuf's wire format, read without generated code.

Field numbers and datatypes are those of the specification. Sets, templates and property sets are kept as bytes; unknown fields of
later versions are skipped. An invalid payload raises ValueError with the reason.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any, Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_METRICS_MAX: Final = 100_000

_PAYLOAD: Final = {1: "timestamp", 3: "seq", 4: "uuid"}
_METRICS: Final = 2
_METRIC: Final = {1: "name", 2: "alias", 3: "timestamp", 4: "datatype", 5: "is_historical", 7: "is_null"}
_INT, _LONG, _FLOAT, _DOUBLE, _BOOLEAN, _STRING = 10, 11, 12, 13, 14, 15
_RAW: Final = {16, 17, 18, 19}  # bytes, data sets, templates, extensions

DATATYPES: Final = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
# Signed numbers are sent in unsigned fields, as two's complement.
_SIGNED_BITS: Final = {"Int8": 32, "Int16": 32, "Int32": 32, "Int64": 64}
_LONG_MAX: Final = (1 << 63) - 1

COLUMNS: Final = (
    "timestamp bigint, seq bigint, uuid string, metrics array<struct<"
    "name: string, alias: bigint, timestamp: bigint, datatype: string, is_historical: boolean, is_null: boolean, "
    "long_value: bigint, double_value: double, boolean_value: boolean, string_value: string, bytes_value: string, bits: bigint>>"
)


def decode_payload(data: bytes) -> dict[str, Any]:
    """The payload as JSON values, in the shape of `COLUMNS`; bytes are base64. Raises ValueError if it is invalid.

    An integer without a datatype is read as unsigned and also stored in `bits`, for callers that learn its datatype later.
    """
    payload: dict[str, Any] = {"metrics": []}
    for number, value in _fields(data):
        if number == _METRICS:
            if len(payload["metrics"]) == _METRICS_MAX:
                raise ValueError(f"more than {_METRICS_MAX} metrics")
            payload["metrics"].append(_metric(_as_bytes(value)))
        elif number in _PAYLOAD:
            payload[_PAYLOAD[number]] = _text(value) if number == 4 else _long(value)
    if not payload["metrics"] and "timestamp" not in payload and "seq" not in payload:
        raise ValueError("neither metrics nor a timestamp nor a sequence number")
    return payload


def _metric(data: bytes) -> dict[str, Any]:
    metric: dict[str, Any] = {}
    values: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            metric["name"] = _text(value)
        elif number == 2:
            # Aliases are only compared: one too large for the column becomes negative, but stays unique.
            metric["alias"] = _signed(_whole(value), 64)
        elif number in (5, 7):
            metric[_METRIC[number]] = bool(value)
        elif number in _METRIC:
            metric[_METRIC[number]] = _long(value)
        elif number >= _INT:
            values[number] = value
    number = metric.get("datatype", 0)
    kind = DATATYPES[number] if number < len(DATATYPES) else "Unknown"
    metric["datatype"] = kind
    for number, value in values.items():
        metric.update(_value(number, value, kind))
    return metric


def _value(number: int, value: Any, kind: str) -> dict[str, Any]:
    if number in (_INT, _LONG):
        whole = _whole(value)
        as_it_came = {"bits": _signed(whole, 64)} if kind == "Unknown" else {}
        if kind in _SIGNED_BITS:
            whole = _signed(whole, _SIGNED_BITS[kind])
        # An integer too large for the bigint column is stored only as a double.
        return {"long_value": whole if whole <= _LONG_MAX else None, "double_value": float(whole), **as_it_came}
    if number == _FLOAT:
        return {"double_value": struct.unpack("<f", _sized(value, 4))[0]}
    if number == _DOUBLE:
        return {"double_value": struct.unpack("<d", _sized(value, 8))[0]}
    if number == _BOOLEAN:
        return {"boolean_value": bool(_whole(value))}
    if number == _STRING:
        return {"string_value": _text(value)}
    return {"bytes_value": base64.b64encode(_as_bytes(value)).decode()} if number in _RAW else {}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values: int for varints, bytes for all others."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field without a number")
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}, which does not exist")
        if place + size > len(data):
            raise ValueError(f"field {number} is cut off")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return value & (1 << 64) - 1, place
    raise ValueError("a number is cut off or too long")


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")
    return value


def _signed(whole: int, bits: int) -> int:
    whole &= (1 << bits) - 1
    return whole - ((whole >> (bits - 1)) << bits)


def _long(value: Any) -> int:
    return min(_whole(value), _LONG_MAX)


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes belong")
    return value


def _sized(value: Any, size: int) -> bytes:
    found = _as_bytes(value)
    if len(found) != size:
        raise ValueError(f"{len(found)} bytes where {size} belong")
    return found


def _text(value: Any) -> str:
    return _as_bytes(value).decode()
