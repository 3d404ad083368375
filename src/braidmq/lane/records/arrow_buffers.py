"""Columns that grow row by row, in the memory layout of Arrow.

This is the plain form and the contract; a build compiles ``arrow_buffers.pyx`` to replace it. Nothing here depends on Arrow's
library: a column is a list of bytes-like objects, in the order and form of Arrow's specification. Rows are set in order, and a
row that is skipped is null.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from braidmq.base.errors import Corruption

# The number of nulls, and the buffers: first the validity, None without nulls, then those of the column's kind.
Taken = tuple[int, list[bytes | None]]


class Column:
    """The common part of all kinds of columns."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def append(self, row: int, value: Any) -> None:
        """Set the value of a row, which must come after all rows set before."""
        self._values += [None] * (row - len(self._values))
        self._values.append(value)

    def take(self, rows: int) -> Taken:
        """Return this many rows and start again empty. Raises Corruption for text that is not UTF-8."""
        values = self._values + [None] * (rows - len(self._values))
        self._values = []
        nulls = values.count(None)
        return nulls, [_bits([value is not None for value in values]) if nulls else None, *self._buffers(values)]

    def _buffers(self, values: list[Any]) -> list[bytes]:
        raise NotImplementedError


class Flags(Column):
    """Bits; no row may be skipped."""

    def _buffers(self, values: list[Any]) -> list[bytes]:
        return [_bits(values)]


class Numbers(Column):
    """Integers of 4 or 8 bytes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._code = "q" if width == 8 else "i"

    def _buffers(self, values: list[Any]) -> list[bytes]:
        return [array(self._code, [value or 0 for value in values]).tobytes()]


class Variable(Column):
    """Text or binary values, given as bytes: offsets, and the bytes."""

    def __init__(self, is_text: bool) -> None:
        super().__init__()
        self._is_text = is_text

    def _buffers(self, values: list[Any]) -> list[bytes]:
        return _variable(values, self._is_text)


class Pairs(Column):
    """Non-empty lists of pairs of text: offsets, offsets and bytes of the first elements, the same of the second."""

    def _buffers(self, values: list[Any]) -> list[bytes]:
        pairs = [pair for value in values for pair in value or ()]
        ends = accumulate((len(value or ()) for value in values), initial=0)
        firsts, seconds = _variable([each for each, _ in pairs], True), _variable([each for _, each in pairs], True)
        return [array("i", ends).tobytes(), *firsts, *seconds]


def _variable(values: Sequence[bytes | None], is_text: bool) -> list[bytes]:
    found = [value or b"" for value in values]
    if is_text:
        for value in found:
            try:
                value.decode()
            except UnicodeDecodeError:
                raise Corruption("a text in a record is not UTF-8") from None
    return [array("i", accumulate(map(len, found), initial=0)).tobytes(), b"".join(found)]


def _bits(flags: Sequence[bool]) -> bytes:
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes((len(flags) + 7) // 8, "little")
