"""Building blocks of every layout of the log: hashes of topic levels, queries by bit mask, a cache.

A topic index is a string of bytes. A `MaskQuery` compares its first bytes, as many as the mask has: bits that are set in the
mask must equal those of the pattern, the others are free. A scan walks such a set by stepping to the next key while keys match,
and by ratcheting otherwise: from a key that does not match to the smallest one above it that could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from zlib import crc32

# Longer topics are rare, and a cache full of them would use up the memory.
CACHED_TOPIC_BYTES_MAX = 512

# C constants in the compiled form, where literals of this size would be objects.
_FACTOR = 0x9E3779B1
_BITS = 0xFFFFFFFF

_pack = Struct(">I").pack


def hash_level(level: bytes) -> int:
    """A 32-bit hash of a topic level or of several joined by slashes; part of the disk format, so it must never change."""
    # A checksum reliably distinguishes short names that differ a little. Its bits are linear in those of the name, so a few
    # of them alone might not; the high bits of the product depend on all of them.
    checksum = crc32(level)
    return (checksum * _FACTOR) & _BITS


def level_key(level: bytes) -> bytes:
    """The hash of a topic level in the form of an index."""
    return _pack(hash_level(level))


class BitField:
    """The bits of one level in an index taken as a number; `ones` has them all set."""

    __slots__ = ("_limit", "_tables", "ones")

    def __init__(self, places: Sequence[int]) -> None:
        """`places` has, for each bit of the field, the lowest first, its bit in the index; there are 32 at most."""
        self._limit = 0xFFFFFFFF >> (32 - len(places))
        # A table for each byte of the field: its values spread over the index.
        self._tables: list[list[int]] = []
        for start in range(0, len(places), 8):
            table = [0]
            for place in places[start : start + 8]:
                table += [spread | 1 << place for spread in table]
            self._tables.append(table)
        self.ones = sum([1 << place for place in places])

    def place(self, level: bytes) -> int:
        """An index with the hash of the level in this field, which is then never 0, and no other bits."""
        value = 1 + (hash_level(level) * self._limit >> 32)
        index = 0
        for table in self._tables:
            index |= table[value & 0xFF]
            value >>= 8
        return index


class MaskQuery:
    """All indexes whose first bytes, under a mask, equal the pattern; with an empty mask, all indexes.

    The pattern is as long as the mask and has no bits outside it.
    """

    __slots__ = ("is_prefix", "mask", "pattern", "static")

    def __init__(self, pattern: bytes, mask: bytes) -> None:
        width = len(mask.rstrip(b"\0"))
        self.mask = mask[:width]
        self.pattern = pattern[:width]
        self.is_prefix = self.mask.count(b"\xff") == width
        self.static = self.pattern[:4] if self.mask.startswith(b"\xff\xff\xff\xff") else None

    def __repr__(self) -> str:
        return f"MaskQuery({self.pattern.hex()!r}, {self.mask.hex()!r})"

    def matches(self, index: bytes) -> bool:
        """Whether the index is in the set."""
        if self.is_prefix:
            return index.startswith(self.pattern)
        width = len(self.mask)
        return len(index) >= width and self._agreeing(index) == width

    def first(self) -> bytes:
        """The smallest index that matches."""
        return self.pattern

    def ratchet(self, index: bytes) -> bytes | None:
        """The smallest string of bytes that matches and is not below `index`; None if there is none."""
        if self.matches(index):
            return index
        pattern, mask = self.pattern, self.mask
        if self.is_prefix:
            # All matches are contiguous.
            return pattern if index < pattern else None
        width = len(mask)
        # A shorter index is equivalent to one padded with zeros.
        start = index[:width].ljust(width, b"\0")
        i = self._agreeing(start)
        if i == width:
            return start
        at = bytearray(start)
        # The highest differing bit, with all bits below it.
        low = (at[i] ^ pattern[i]) & mask[i]
        low |= low >> 1
        low |= low >> 2
        low |= low >> 4
        if (pattern[i] & low) > (at[i] & mask[i] & low):
            # It must become 1: the bits above stay, those below become as small as the pattern allows.
            at[i] = (at[i] & ~low) | pattern[i]
        else:
            # It must become 0, so a free bit above it has to rise. Masked bits, set to 1, let the carry through.
            byte = (at[i] | mask[i] | low) + 1
            while byte > 0xFF:
                i -= 1
                if i < 0:
                    return None
                byte = (at[i] | mask[i]) + 1
            at[i] = (byte & ~mask[i]) | pattern[i]
        return bytes(at[: i + 1]) + pattern[i + 1 :]

    def _agreeing(self, index: bytes) -> int:
        """The number of leading bytes that match, in an index that is at least as long as the mask."""
        pattern, mask = self.pattern, self.mask
        width = len(mask)
        i = 0
        while i < width and (index[i] & mask[i]) == pattern[i]:
            i += 1
        return i


EVERY_INDEX = MaskQuery(b"", b"")


class IndexCache:
    """Caches the results of `compute` by topic; has two halves, the older of which is discarded when the newer one is full."""

    __slots__ = ("_aged", "_compute", "_fresh", "_half")

    def __init__(self, compute: Callable[[bytes], bytes], topics_max: int) -> None:
        self._compute = compute
        self._half = max(1, topics_max // 2)
        self._fresh: dict[bytes, bytes] = {}
        self._aged: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._fresh) + len(self._aged)

    def index(self, topic: bytes) -> bytes:
        """The index of the topic."""
        found = self._fresh.get(topic)
        if found is None:
            found = self._aged.get(topic)
            if found is None:
                found = self._compute(topic)
            if len(topic) <= CACHED_TOPIC_BYTES_MAX:
                if len(self._fresh) >= self._half:
                    self._aged = self._fresh
                    self._fresh = {}
                self._fresh[topic] = found
        return found
