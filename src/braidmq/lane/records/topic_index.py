"""Parts that every layout of the log is made of: hashes of topic levels, queries by bit mask, a cache.

A topic index is a string of bytes. A `MaskQuery` looks at the first bytes of one, so many as its mask has: bits that
are set in the mask must be as in the pattern, the others are free. A scan walks such a set by stepping to the next
key while keys match, and by ratcheting otherwise: from a key that does not match to the smallest one above it that
could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from zlib import crc32

# Longer topics are rare, and a cache full of them would be all of the memory.
CACHED_TOPIC_BYTES_MAX = 512

# Numbers of the compiled form, where literals of this size would be objects.
_FACTOR = 0x9E3779B1
_BITS = 0xFFFFFFFF

_pack = Struct(">I").pack


def hash_level(level: bytes) -> int:
    """32 bits for a topic level or for several joined by slashes; part of the format on disk, never to change."""
    # A checksum tells short names that differ a little apart for certain. Its bits are linear in those of the name, so
    # that a few of them alone might not; the high bits of the product depend on all of them.
    checksum = crc32(level)
    return (checksum * _FACTOR) & _BITS


def level_key(level: bytes) -> bytes:
    """The hash of a topic level as it stands in an index."""
    return _pack(hash_level(level))


class BitField:
    """Where the bits of one level are in an index that is a number; `ones` has them all set."""

    __slots__ = ("_limit", "_tables", "ones")

    def __init__(self, places: Sequence[int]) -> None:
        """`places` says for each bit of the field, the lowest first, which bit of the index it is; there are 32 at most."""
        self._limit = 0xFFFFFFFF >> (32 - len(places))
        # A table for each byte of the field: what its values look like spread over the index.
        self._tables: list[list[int]] = []
        for start in range(0, len(places), 8):
            table = [0]
            for place in places[start : start + 8]:
                table += [spread | 1 << place for spread in table]
            self._tables.append(table)
        self.ones = sum([1 << place for place in places])

    def place(self, level: bytes) -> int:
        """An index that has the hash of the level in this field, which is never 0 then, and nothing else."""
        value = 1 + (hash_level(level) * self._limit >> 32)
        index = 0
        for table in self._tables:
            index |= table[value & 0xFF]
            value >>= 8
        return index


class MaskQuery:
    """All indexes whose first bytes, under a mask, are as in the pattern; with an empty mask, all indexes.

    The pattern is as long as the mask and has no bit that is not in the mask.
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
            # All that matches lies together.
            return pattern if index < pattern else None
        width = len(mask)
        # A shorter index is as good as one that goes on with zeros.
        start = index[:width].ljust(width, b"\0")
        i = self._agreeing(start)
        if i == width:
            return start
        at = bytearray(start)
        # The highest bit that is wrong, with all bits below it.
        low = (at[i] ^ pattern[i]) & mask[i]
        low |= low >> 1
        low |= low >> 2
        low |= low >> 4
        if (pattern[i] & low) > (at[i] & mask[i] & low):
            # It must become 1: what is above stays, what is below becomes as small as the pattern allows.
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
        """How many bytes from the start on are as they must be, in an index that is not shorter than the mask."""
        pattern, mask = self.pattern, self.mask
        width = len(mask)
        i = 0
        while i < width and (index[i] & mask[i]) == pattern[i]:
            i += 1
        return i


EVERY_INDEX = MaskQuery(b"", b"")


class IndexCache:
    """Remembers what `compute` gave for a topic; has two halves, of which the older one is let go when the newer one is full."""

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
