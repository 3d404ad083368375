"""The `hashed` layout: a fixed number of bits for each of the first levels of a topic.

Levels beyond the last field are joined with `/` and hashed as one. In each field 0 means an absent level, a value that no hash
has, so `a` and `a/b` differ and a search for one does not find the other. A filter becomes one query: the fields of its wildcards
are not in the mask.

The fields are combined in one of two ways. *Concatenated*, a filter is faster the later its first wildcard is. *Interleaved*, as
a Z-order curve, the highest bits of all fields come first, then the next ones: a wildcard costs about the same at any level.
Either is an order of bits, so the same mask and ratchet work for both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.topic_index import BitField, IndexCache, MaskQuery
from braidmq.storage.layouts.contract import CACHED_TOPICS_MAX, Query, Row, check_version

BITS_PER_LEVEL: Final = (16, 16, 16, 16)

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBB")  # version, whether interleaved, number of fields; a byte with the bits of each follows
_FIELD_BITS_MAX: Final = 32
_INDEX_BITS_MAX: Final = 128


class HashedLayout:
    """Indexes topics by hashes of their levels. Learns nothing and has no rows."""

    name = "hashed"

    def __init__(
        self,
        bits_per_level: Sequence[int] = BITS_PER_LEVEL,
        *,
        is_interleaved: bool = False,
        next_id: int = 0,
        cached_topics_max: int = CACHED_TOPICS_MAX,
    ) -> None:
        if not _are_possible(bits_per_level):
            raise UsageError(
                f"the hashed layout cannot have levels of {list(bits_per_level)} bits",
                f"use 1 to {_FIELD_BITS_MAX} bits per level, a whole number of bytes and at most {_INDEX_BITS_MAX} bits in total",
            )
        self.next_id = next_id
        self._bits = tuple(bits_per_level)
        self._is_interleaved = is_interleaved
        self._width = sum(self._bits) // 8
        places = _interleaved(self._bits) if is_interleaved else _concatenated(self._bits)
        self._fields = [BitField(each) for each in places]
        self.index = IndexCache(self._compute, cached_topics_max).index

    @classmethod
    def from_parameters(cls, parameters: bytes, rows: Iterable[Row] = (), next_id: int = 0) -> HashedLayout:
        """The layout with these parameters; the default one if they are empty."""
        if any(rows):
            raise Corruption("a generation of the hashed layout has trie rows")
        if not parameters:
            return cls(next_id=next_id)
        check_version(cls.name, parameters, _VERSION)
        _, is_interleaved, levels = _HEAD.unpack_from(parameters) if len(parameters) >= _HEAD.size else (0, 0, 0)
        bits = parameters[_HEAD.size :]
        if len(bits) != levels or is_interleaved > 1 or not _are_possible(bits):
            raise Corruption("the parameters of a hashed layout cannot be read")
        return cls(tuple(bits), is_interleaved=bool(is_interleaved), next_id=next_id)

    def parameters(self) -> bytes:
        """The bits of each level and their order."""
        return _HEAD.pack(_VERSION, self._is_interleaved, len(self._bits)) + bytes(self._bits)

    def describe(self) -> str:
        """The bits of each level and their order, as text."""
        order = "interleaved" if self._is_interleaved else "one after the other"
        return f"{', '.join(map(str, self._bits))} bits per level, {order}"

    def take_rows(self) -> list[Row]:
        """Always empty: everything is in the parameters."""
        return []

    def return_rows(self, rows: Iterable[Row]) -> None:
        """Does nothing: there are no rows."""

    def plan(self, topic_filter: str) -> list[Query]:
        """One query, whatever the filter."""
        levels = topic_filter.encode().split(b"/")
        is_open = levels[-1] == b"#"
        if is_open:
            levels.pop()
        pattern = mask = 0
        for number, field in enumerate(self._fields):
            is_last = number == len(self._fields) - 1
            if number >= len(levels):
                # Without # the topic has no such level either, which is 0 in the field.
                mask |= 0 if is_open else field.ones
            elif is_last:
                if not is_open and b"+" not in levels[number:]:
                    pattern |= field.place(b"/".join(levels[number:]))
                    mask |= field.ones
            elif levels[number] != b"+":
                pattern |= field.place(levels[number])
                mask |= field.ones
        return [MaskQuery(pattern.to_bytes(self._width, "big"), mask.to_bytes(self._width, "big"))]

    def inherit(self, parameters: bytes = b"") -> HashedLayout:
        """The same layout, or one with the other parameters: there is nothing to inherit."""
        return HashedLayout.from_parameters(parameters or self.parameters(), next_id=self.next_id)

    def _compute(self, topic: bytes) -> bytes:
        index = 0
        for field, level in zip(self._fields, topic.split(b"/", len(self._fields) - 1), strict=False):
            index |= field.place(level)
        return index.to_bytes(self._width, "big")


def _are_possible(bits_per_level: Sequence[int]) -> bool:
    total = sum(bits_per_level)
    return all(1 <= bits <= _FIELD_BITS_MAX for bits in bits_per_level) and total % 8 == 0 and 8 <= total <= _INDEX_BITS_MAX


def _concatenated(bits_per_level: Sequence[int]) -> list[list[int]]:
    places = []
    free = sum(bits_per_level)
    for bits in bits_per_level:
        free -= bits
        places.append(list(range(free, free + bits)))
    return places


def _interleaved(bits_per_level: Sequence[int]) -> list[list[int]]:
    places: list[list[int]] = [[] for _ in bits_per_level]
    free = sum(bits_per_level)
    for taken in range(max(bits_per_level)):
        for field, bits in zip(places, bits_per_level, strict=True):
            if taken < bits:
                free -= 1
                field.insert(0, free)
    return places
