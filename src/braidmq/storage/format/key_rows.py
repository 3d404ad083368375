"""Keys and rows of the batches of producers, version 1. Integers are big-endian, times are microseconds since 1970.

    0xED | length of the name (2) | name                     the batch that is open under a name: version (1) = 1, its base (8),
                                                             when a producer last used it (8), and the base (8) below which
                                                             the keys of earlier batches are removed; version 2 also has the
                                                             number of its parts (4), flags (1) bit 0: it has an owner, and
                                                             the owner's user name to the end
    0xED | length of the name (2) | name | base (8) | key    a recorded message of a batch, by its key: version (1) = 1

A base has 63 bits, so the byte 0x80 after a name sorts above all rows of that name.
"""

from __future__ import annotations

from struct import Struct as Packed
from typing import Final

from msgspec import Struct

from braidmq.base.errors import Corruption, UsageError

VERSION: Final = 1
OWNED_VERSION: Final = 2
KEYS_PREFIX: Final = b"\xed"
KEYS_END: Final = b"\xee"
KEY_VALUE: Final = bytes((VERSION,))

_LENGTH_BYTES: Final = 2
_BATCH: Final = Packed(">BQQQ")
_OWNED_BATCH: Final = Packed(">BQQQIB")
_HAS_OWNER: Final = 1


class BatchRow(Struct, frozen=True, gc=False):
    """The batch that is open under a name, when a producer last used it, and the base below which no keys are left.

    `parts` is one more than the highest number of a part that used it; 0: no numbered part did. The name belongs to the owner,
    if a user created it.
    """

    base: int
    used_at: int
    swept_below: int
    parts: int = 0
    owner: str | None = None


def batch_key(name: bytes) -> bytes:
    """The key of the row of a name's open batch."""
    return KEYS_PREFIX + len(name).to_bytes(_LENGTH_BYTES, "big") + name


def name_end(name: bytes) -> bytes:
    """A key above every row key of this name."""
    return batch_key(name) + b"\x80"


def message_key(name: bytes, base: int, key: bytes) -> bytes:
    """The key of the row of a recorded message."""
    return b"%b%b%b" % (batch_key(name), base.to_bytes(8, "big"), key)


def name_of(key: bytes) -> bytes:
    """The name that a row of either kind belongs to; raises Corruption."""
    at = len(KEYS_PREFIX) + _LENGTH_BYTES
    end = at + int.from_bytes(key[len(KEYS_PREFIX) : at], "big")
    if len(key) < max(end, at):
        raise Corruption(f"the row {key[:64]!r} of a producer with keys has an incomplete name")
    return key[at:end]


def encode_batch(row: BatchRow) -> bytes:
    """The value of the row of an open batch."""
    if not row.parts and row.owner is None:
        return _BATCH.pack(VERSION, row.base, row.used_at, row.swept_below)
    flags = 0 if row.owner is None else _HAS_OWNER
    head = _OWNED_BATCH.pack(OWNED_VERSION, row.base, row.used_at, row.swept_below, row.parts, flags)
    return head + (row.owner or "").encode()


def decode_batch(value: bytes) -> BatchRow:
    """The open batch of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    version = value[0] if value else 0
    if version > OWNED_VERSION:
        raise UsageError(
            f"the row of a batch has the format {version}, newer than {OWNED_VERSION}", "use the newer version of braidmq"
        )
    if version == VERSION and len(value) == _BATCH.size:
        return BatchRow(*_BATCH.unpack(value)[1:])
    head, rest = value[: _OWNED_BATCH.size], value[_OWNED_BATCH.size :]
    if version != OWNED_VERSION or len(head) != _OWNED_BATCH.size or (rest and not head[-1] & _HAS_OWNER):
        raise Corruption(f"the row of a batch is not valid for version {version}")
    _, base, used_at, swept_below, parts, flags = _OWNED_BATCH.unpack(head)
    try:
        owner = rest.decode() if flags & _HAS_OWNER else None
    except UnicodeDecodeError:
        raise Corruption("the row of a batch has an owner that is not valid UTF-8") from None
    return BatchRow(base, used_at, swept_below, parts, owner)
