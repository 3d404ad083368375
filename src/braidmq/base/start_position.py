"""The start or end of a read, as users write it: `stream-offset`, `$replay/<start>/<filter>`, `--from`, `since=`.

latest                       messages committed from now on
earliest                     everything that retention has not deleted
1700000000000                milliseconds since 1970
2024-03-01T12:00:00.5Z       RFC 3339, in UTC
-24h, -1h30m, -500ms         that long ago
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.base.units import parse_seconds

# The latest time that a position can express: positions have 56 bits.
TIME_MAX_US: Final = 2**56 - 1

_HINT: Final = "write latest, earliest, milliseconds since 1970, a time such as 2024-03-01T12:00:00Z, or a duration such as -24h"
# Longer than any valid start, and short enough to be repeated in an error.
_TEXT_LENGTH_MAX: Final = 40
_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)
_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Latest(Struct, frozen=True, tag=True):
    """Messages committed from now on."""


class Earliest(Struct, frozen=True, tag=True):
    """All records in the log."""


class At(Struct, frozen=True, tag=True):
    """Records at or after this time, in microseconds since 1970."""

    timestamp_us: int


class Ago(Struct, frozen=True, tag=True):
    """Records since this many microseconds ago."""

    span_us: int


Start = Latest | Earliest | At | Ago


def parse_start(text: str) -> Start:
    """Parse a start; raises UsageError with the reason."""
    if text == "latest":
        return Latest()
    if text == "earliest":
        return Earliest()
    if len(text) > _TEXT_LENGTH_MAX:
        raise UsageError(f"the start is too long ({len(text)} characters)", _HINT)
    if _DIGITS.fullmatch(text):
        return _at(int(text) * 1000, text)
    if text.startswith("-"):
        return _parse_span(text)
    if found := _TIME.fullmatch(text):
        return _parse_time(text, found[1], found[2] or "")
    raise UsageError(f"{text!r} is not a valid start", _HINT)


def _parse_span(text: str) -> Ago:
    span = text[1:]
    # Some users would read a bare number as seconds, others as milliseconds.
    if _DIGITS.fullmatch(span):
        raise UsageError(f"the duration {text!r} has no unit", "write -500ms, -30s, -5m, -24h, -7d or -2w")
    try:
        return Ago(round(parse_seconds(span) * 1_000_000))
    except ValueError:
        raise UsageError(f"{text!r} is not a duration", _HINT) from None


def _parse_time(text: str, seconds: str, fraction: str) -> At:
    try:
        moment = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"there is no such time as {text!r}", _HINT) from None
    return _at((moment - _EPOCH) // _MICROSECOND + int(fraction.ljust(6, "0")[:6]), text)


def _at(timestamp_us: int, text: str) -> At:
    if not 0 <= timestamp_us <= TIME_MAX_US:
        raise UsageError(
            f"the start {text!r} is not between 1970 and the year 4200", "milliseconds since 1970 have 13 digits today"
        )
    return At(timestamp_us)
