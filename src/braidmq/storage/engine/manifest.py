"""Which files of the write-ahead log RocksDB still needs, read from its MANIFEST; nothing else of that file is understood.

RocksDB writes the number of the oldest file that it needs with every flush, before it removes older ones. It notices a missing
table by itself, but not a missing file of the write-ahead log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 32768
_HEADER: Final = struct.Struct("<IHB")  # checksum, length and kind of a piece
_COMPARATOR: Final = 1
_OLDEST_JOURNAL: Final = 10
# Log number, next file, last sequence, previous log number, largest column family: a number each, before or behind the one above.
_NUMBERS: Final = frozenset((2, 3, 4, 9, 203))


def oldest_journal(path: Path) -> int | None:
    """The number of the oldest log file that the database in `path` needs; None if its MANIFEST does not say."""
    oldest: int | None = None
    try:
        manifest = path / (path / "CURRENT").read_text().strip()
        for edit in _edits(manifest.read_bytes()):
            found = _oldest_in(edit)
            oldest = oldest if found is None else found
    except (OSError, ValueError, IndexError, struct.error):
        return None  # the engine says what is wrong with it
    return oldest


def _edits(data: bytes) -> Iterator[bytes]:
    """The records of a file in the format of RocksDB's logs, whose pieces do not cross the end of a block."""
    at, part = 0, b""
    while at + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        piece = data[at + _HEADER.size : at + _HEADER.size + length]
        at += _HEADER.size + length
        match kind:
            case 1:  # whole
                yield piece
            case 2:  # first
                part = piece
            case 3:  # in the middle
                part += piece
            case 4:  # last
                yield part + piece
            case _:
                raise ValueError(kind)


def _oldest_in(edit: bytes) -> int | None:
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag == _COMPARATOR:
            size, at = _varint(edit, at)
            at += size
        elif tag in _NUMBERS:
            _, at = _varint(edit, at)
        elif tag == _OLDEST_JOURNAL:
            return _varint(edit, at)[0]
        else:
            return None  # what follows is about tables
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
