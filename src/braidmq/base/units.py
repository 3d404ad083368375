"""Durations and sizes as users write them: ``"250ms"``, ``"5m"``, ``"1h30m"``, ``"64KiB"``, ``"2GiB"``."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

_SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "w": Fraction(604800),
}
_BYTES = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SPAN = re.compile(rf"(?:{_NUMBER}\s*(?:ms|[smhdw])\s*)+", re.ASCII)
_SPAN_PART = re.compile(rf"({_NUMBER})\s*(ms|[smhdw])", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)", re.ASCII)


class Seconds(float):
    """A duration; written as a number of seconds or as ``"250ms"``, ``"10s"``, ``"5m"``, ``"24h"``, ``"7d"``."""


class Bytes(int):
    """A size; written as a number of bytes or as ``"64KiB"``, ``"1MiB"``, ``"2GiB"``."""


def parse_seconds(value: object) -> Seconds:
    """Parse a duration; raises ValueError unless it is finite and not negative."""
    match value:
        case bool():
            pass
        case int() | float() if math.isfinite(value) and value >= 0:
            return Seconds(value)
        case str() if re.fullmatch(_NUMBER, text := value.strip(), re.ASCII):
            return Seconds(text)
        case str() if _SPAN.fullmatch(text := value.strip()):
            # Fractions, so that "0.1s" and "100ms" are the same number.
            return Seconds(sum(Fraction(number) * _SECONDS[unit] for number, unit in _SPAN_PART.findall(text)))
    raise ValueError(f"not a duration: {value!r}")


def parse_bytes(value: object) -> Bytes:
    """Parse a size; raises ValueError unless it is a whole, non-negative number of bytes."""
    match value:
        case bool():
            pass
        case int() if value >= 0:
            return Bytes(value)
        case str() if (text := value.strip()).isdecimal() and text.isascii():
            return Bytes(text)
        case str() if (found := _SIZE.fullmatch(value.strip())) and (unit := _BYTES.get(found[2].upper())):
            size = Fraction(found[1]) * unit
            if size.denominator == 1:
                return Bytes(size)
    raise ValueError(f"not a size: {value!r}")


def format_seconds(span: float) -> str:
    """Format a duration in the largest unit that gives a whole number; ``parse_seconds`` reads it back."""
    exact = Fraction(repr(float(span)))  # the decimal that the user wrote, not the nearest binary fraction
    for unit in ("d", "h", "m", "s", "ms"):
        count = exact / _SECONDS[unit]
        if count.denominator == 1 and (count or unit == "s"):
            return f"{count}{unit}"
    return f"{Decimal(repr(float(span))):f}s"


def format_bytes(size: int) -> str:
    """Format a size in the largest binary unit that gives a whole number; ``parse_bytes`` reads it back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(size, _BYTES[unit.upper()])
        if count and not rest:
            return f"{count}{unit}"
    return f"{size}B"


def size(count: float) -> str:
    """A number of bytes for people to read: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def span(seconds: float) -> str:
    """A duration in its two largest units: ``3 d 4 h``."""
    parts: list[str] = []
    rest = int(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, rest = divmod(rest, size)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])
