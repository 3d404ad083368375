"""Small files of two slots with checksums, written alternately, so that one of them is always valid."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

SLOT_BYTES: Final = 512  # a sector: it is written as a whole
_CHECK: Final = struct.Struct(">I")


def read_slots(data: bytes, slot: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """The fields of each valid slot of a file."""
    for first in (0, SLOT_BYTES):
        fields = data[first : first + slot.size]
        check = data[first + slot.size : first + slot.size + _CHECK.size]
        if len(check) == _CHECK.size and _CHECK.unpack(check)[0] == zlib.crc32(fields):
            yield slot.unpack(fields)


def write_slot(file: int, turn: int, fields: bytes) -> None:
    """Write the packed fields of this turn, a number that rises by one, over the slot before the last."""
    os.pwrite(file, fields + _CHECK.pack(zlib.crc32(fields)), turn % 2 * SLOT_BYTES)
