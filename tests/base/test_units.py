"""Spans of time and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("10s", 10),
        ("5m", 300),
        ("24h", 86_400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("0.1s", 0.1),
        ("1.5m", 90),
        ("42", 42),
        (" 3 s ", 3),
        (7, 7),
        (0, 0),
        (0.5, 0.5),
    ],
)
def test_spans_of_time_are_read_as_people_write_them(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "10x",
        "10 seconds",
        "-1s",
        "1e3s",
        "1,5s",
        "7 d h",
        "nan",
        "inf",
        "٣s",
        -1,
        float("nan"),
        float("inf"),
        True,
        None,
        [],
    ],
)
def test_an_invalid_span_of_time_is_rejected(text: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("1 MiB", 1_048_576),
        ("1.5KiB", 1536),
        ("2GiB", 2_147_483_648),
        ("3TiB", 3_298_534_883_328),
        ("1kB", 1000),
        ("5MB", 5_000_000),
        (99, 99),
    ],
)
def test_sizes_are_read_as_people_write_them(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1.3B", "0.0001KiB", "-1", "1 XiB", "٣", "1e6", -1, 1.5, True, None, {}])
def test_an_invalid_size_is_rejected(text: object) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (90, "90s"), (3600, "1h"), (604_800, "7d"), (0.0001, "0.0001s")]
)
def test_spans_of_time_are_written_in_the_largest_whole_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1000, "1000B"), (1024, "1KiB"), (1536, "1536B"), (1_048_576, "1MiB")])
def test_sizes_are_written_in_the_largest_whole_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.floats(min_value=0, max_value=1e15, allow_nan=False))
def test_a_span_of_time_survives_writing_and_reading(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds


@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_survives_writing_and_reading(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.text())
def test_any_text_is_either_a_span_of_time_or_refused(text: str) -> None:
    try:
        assert parse_seconds(text) >= 0
    except ValueError as problem:
        assert "not a duration" in str(problem)
