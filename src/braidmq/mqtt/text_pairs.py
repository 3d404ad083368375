"""Thousands of user properties in wire form.

As pairs of `str` they take thirty times the memory, and each step that reads or writes them again takes milliseconds of the event
loop. In wire form they are checked once, where the packet is decoded, and then stored and sent as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias, overload

from braidmq.mqtt.wire import malformed, read_text, read_text_pair, write_text_pair

Pairs: TypeAlias = Sequence[tuple[str, str]]

IDENTIFIER: Final = 0x26  # of a user property
PAIRS_MAX: Final = 100  # of `str`; the properties of a packet that has more are `TextPairs`


class TextPairs(Sequence[tuple[str, str]]):
    """Pairs of valid text, each read when it is needed; compares like a tuple of pairs."""

    __slots__ = ("_count", "wire")

    def __init__(self, wire: bytes, count: int) -> None:
        """``wire``: this many valid user properties, each with its identifier."""
        self.wire = wire
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(self.wire):
            pair, at = read_text_pair(self.wire, at + 1)
            yield pair

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[str, str], ...]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | tuple[tuple[str, str], ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextPairs):
            return self.wire == other.wire
        return isinstance(other, tuple) and len(other) == self._count and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def first_pairs(pairs: Pairs) -> Pairs:
    """The first hundred: a bounded search for properties that mean something to the broker."""
    return tuple(islice(pairs, PAIRS_MAX)) if len(pairs) > PAIRS_MAX else pairs


def read_more_pairs(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Check the user properties from ``at`` on, up to another property or ``end``; returns where they end, and their number."""
    count = 0
    while at < end and body[at] == IDENTIFIER:
        at += 1
        for _ in range(2):
            size = body[at] << 8 | body[at + 1]
            if size:
                read_text(body, at)
            at += 2 + size
        if at > end:
            raise malformed("user_properties runs past the end of the properties")
        count += 1
    return at, count


def write_pairs(pairs: Pairs) -> bytes:
    """The wire form, identifiers included."""
    if isinstance(pairs, TextPairs):
        return pairs.wire
    identifier = bytes((IDENTIFIER,))
    return b"".join([identifier + write_text_pair(pair) for pair in pairs])
