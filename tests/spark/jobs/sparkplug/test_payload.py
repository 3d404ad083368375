"""Sparkplug B payloads, built by hand after the specification's field numbers."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.spark.jobs.sparkplug.payload import decode_payload
from tests.spark.jobs.sparkplug.payloads import data, metric, number, varint


def value_of(datatype: int, value: bytes) -> dict[str, object]:
    [found] = decode_payload(metric(b"m", datatype, value))["metrics"]
    return {name: each for name, each in found.items() if name.endswith("_value")}


def test_a_payload_has_its_time_its_number_and_its_metrics() -> None:
    payload = (
        number(1, 1_700_000_000_123)
        + metric(b"temp", 9, varint(12 << 3 | 5) + struct.pack("<f", 21.5))
        + data(2, number(2, 77) + number(3, 5) + number(4, 11) + number(5, 1) + number(14, 1))
        + number(3, 255)
        + data(4, "ü".encode())
        + data(5, b"body")
    )

    found = decode_payload(payload)

    assert (found["timestamp"], found["seq"], found["uuid"]) == (1_700_000_000_123, 255, "ü")
    first, second = found["metrics"]
    assert first == {"name": "temp", "datatype": "Float", "double_value": 21.5}
    assert second == {"alias": 77, "timestamp": 5, "datatype": "Boolean", "is_historical": True, "boolean_value": True}


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        (3, number(10, (1 << 32) - 5), {"long_value": -5, "double_value": -5.0}),  # Int32 as two's complement
        (1, number(10, (1 << 32) - 1), {"long_value": -1, "double_value": -1.0}),
        (7, number(10, (1 << 32) - 5), {"long_value": (1 << 32) - 5, "double_value": float((1 << 32) - 5)}),
        (4, number(11, -9), {"long_value": -9, "double_value": -9.0}),
        (8, number(11, (1 << 64) - 1), {"long_value": None, "double_value": float((1 << 64) - 1)}),
        (13, number(11, 1_700_000_000_000), {"long_value": 1_700_000_000_000, "double_value": 1.7e12}),
        (10, varint(13 << 3 | 1) + struct.pack("<d", 0.1), {"double_value": 0.1}),
        (12, data(15, b"text"), {"string_value": "text"}),
        (17, data(16, b"\0\1"), {"bytes_value": base64.b64encode(b"\0\1").decode()}),
        (16, data(17, b"set"), {"bytes_value": base64.b64encode(b"set").decode()}),
        (99, data(15, b"x"), {"string_value": "x"}),
    ],
)
def test_values_are_read_by_their_datatype(datatype: int, value: bytes, expected: dict[str, object]) -> None:
    assert value_of(datatype, value) == expected


def test_a_whole_number_without_a_datatype_keeps_its_bits() -> None:
    short, long = decode_payload(data(2, number(2, 1) + number(10, (1 << 32) - 5)) + data(2, number(2, 2) + number(11, -9)))[
        "metrics"
    ]

    assert (short["datatype"], short["long_value"], short["bits"]) == ("Unknown", (1 << 32) - 5, (1 << 32) - 5)
    # As an unsigned number it is too large for the column, and as a double it has lost its end.
    assert (long["long_value"], long["double_value"], long["bits"]) == (None, float((1 << 64) - 9), -9)


def test_two_aliases_beyond_the_column_stay_two() -> None:
    one, other = decode_payload(data(2, number(2, (1 << 64) - 1)) + data(2, number(2, 1 << 63)))["metrics"]

    assert (one["alias"], other["alias"]) == (-1, -(1 << 63))


def test_fields_of_later_versions_are_skipped() -> None:
    later = number(50, 7) + data(51, b"new") + varint(52 << 3 | 5) + b"1234" + varint(53 << 3 | 1) + b"12345678"

    assert decode_payload(number(3, 1) + later)["seq"] == 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "neither metrics"),
        (b"21.5", "cut off"),
        (b'{"v": 1}', "wire type"),
        (number(3, 1)[:-1], "cut off"),
        (data(2, b"\xff" * 12), "too long"),
        (data(1, b"x"), "bytes where a number belongs"),
        (number(2, 1), "a number where bytes belong"),
        (data(2, data(13, b"123")), "3 bytes where 8 belong"),
        (b"\0\0", "without a number"),
    ],
)
def test_an_invalid_payload_is_rejected_with_a_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_payload(payload)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_a_value_error(payload: bytes) -> None:
    try:
        assert isinstance(decode_payload(payload)["metrics"], list)
    except ValueError as problem:
        assert str(problem)
