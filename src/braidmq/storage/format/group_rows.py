"""Keys and rows of shared groups, version 1. Integers are big-endian; a position is a timestamp in microseconds since 1970.

    0xEC | group | 0x00 | filter    the cursor of a group over the log; the filter is the one after `$share/GROUP/`

    version (1) = 1
    count of positions (2), count of outstanding records (4)
    positions (8 each)
    outstanding records             shard (2), timestamp (8) each
    since (8 each)                  nothing, or as many as positions: the log's positions when a group with an earlier start
                                    was created

MQTT strings cannot contain U+0000, so the first 0x00 ends the group's name.
"""

from __future__ import annotations

from itertools import starmap
from struct import Struct as Packed
from struct import error as PackError
from struct import pack, unpack, unpack_from
from typing import Final

from braidmq.base.errors import Corruption, UsageError
from braidmq.broker.ports import GroupRow

VERSION: Final = 1
GROUP_PREFIX: Final = b"\xec"
GROUPS_END: Final = b"\xed"

_HEAD: Final = Packed(">BHI")
_OUTSTANDING: Final = Packed(">HQ")
_POSITION_BYTES: Final = 8


def group_key(name: str, topic_filter: str) -> bytes:
    """The key of a group's row; raises UsageError if the name or the filter contains U+0000."""
    if "\0" in name or "\0" in topic_filter:
        raise UsageError("the name and the filter of a group must not contain U+0000")
    return b"%b%b\0%b" % (GROUP_PREFIX, name.encode(), topic_filter.encode())


def encode_group(row: GroupRow) -> bytes:
    """The value of a group's row; raises UsageError if it could not be read back."""
    if row.since and len(row.since) != len(row.positions):
        raise UsageError("a group cannot be stored: its since and its positions have different numbers of shards")
    try:
        head = _HEAD.pack(VERSION, len(row.positions), len(row.outstanding))
        positions = pack(f">{len(row.positions)}Q", *row.positions)
        since = pack(f">{len(row.since)}Q", *row.since)
        return b"".join((head, positions, *starmap(_OUTSTANDING.pack, row.outstanding), since))
    except PackError as problem:
        raise UsageError(f"a group cannot be stored because a field is out of range: {problem}") from None


def decode_group(key: bytes, value: bytes) -> GroupRow:
    """The group of a key and value; raises UsageError for a newer format, Corruption for an invalid row."""
    name, end, topic_filter = key[len(GROUP_PREFIX) :].partition(b"\0")
    if value and value[0] > VERSION:
        raise UsageError(
            f"the row of the group {name.decode(errors='replace')!r} has the format {value[0]}, newer than {VERSION}",
            "use the newer version of braidmq",
        )
    try:
        version, count, outstanding_count = _HEAD.unpack_from(value)
        positions = unpack_from(f">{count}Q", value, _HEAD.size)
        outstanding_at = _HEAD.size + count * _POSITION_BYTES
        since_at = outstanding_at + outstanding_count * _OUTSTANDING.size
        outstanding = tuple(_OUTSTANDING.iter_unpack(value[outstanding_at:since_at]))
        since = unpack(f">{count}Q", value[since_at:]) if len(value) != since_at else ()
        row = GroupRow(name.decode(), topic_filter.decode(), positions, outstanding, since)
    except (PackError, UnicodeDecodeError):
        raise _broken(name) from None
    if version != VERSION or not end or len(outstanding) != outstanding_count:
        raise _broken(name)
    return row


def _broken(name: bytes) -> Corruption:
    return Corruption(f"the row of the group {name.decode(errors='replace')!r} is not valid for version {VERSION}")
