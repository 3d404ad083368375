"""Keys and rows of a shard's column family, version 1. Integers are big-endian, times are microseconds since 1970.

    epoch start (8) | topic index | offset (4)    a record; its first byte is 0, since 2**56 us are 2283 years
    0xE0                                          the shard row, written with every batch: all that recovery needs (S7)
    0xE1 | epoch start (8)                        the row of a closed epoch
    0xE2 | generation (4)                         the row of a generation
    0xE3 | generation (4) | suffix                a row of that generation's layout, in the layout's own format
    0xE4 | producer                               the last sequence that a producer appended; version 2 also has a check value

Only records are below 0xE0, so retention's `delete_range [0, floor)` cannot remove anything else.
"""

from __future__ import annotations

from struct import Struct as Packed
from typing import Final

from msgspec import Struct

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.records import STATIC_ID_BYTES

VERSION: Final = 1
PRODUCER_VERSION: Final = 2

SHARD_KEY: Final = b"\xe0"
EPOCH_PREFIX: Final = b"\xe1"
GENERATION_PREFIX: Final = b"\xe2"
LAYOUT_PREFIX: Final = b"\xe3"
PRODUCER_PREFIX: Final = b"\xe4"
PRODUCERS_END: Final = b"\xe5"

TIMESTAMP_MAX: Final = 2**56 - 1
# The offset of a key is four bytes, so an epoch ends before 71 minutes.
OFFSET_MAX: Final = 2**32 - 1
# More static ids than this are not stored, and any id may be in the epoch.
STATIC_IDS_MAX: Final = 256

_SHARD: Final = Packed(">BQQIQIQQ")
_EPOCH: Final = Packed(">BQIQH")
_GENERATION: Final = Packed(">BQIQQB")
_PRODUCER: Final = Packed(">BQQ")
_CHECKED_PRODUCER: Final = Packed(">BQQI")
_ANY_ID: Final = 0xFFFF


class ShardRow(Struct, frozen=True, gc=False):
    """The state of a shard: `epoch_start` 0 means that no epoch is open; records below `floor` were removed."""

    last: int = 0
    epoch_start: int = 0
    epoch_count: int = 0
    epoch_bytes: int = 0
    next_trie_id: int = 0
    term: int = 0
    floor: int = 0


class EpochRow(Struct, frozen=True, gc=False):
    """The contents of an epoch: the timestamp of its last record, and its topics' static ids (None: any)."""

    start: int
    end: int
    count: int
    size_bytes: int
    static_ids: frozenset[bytes] | None = None


class EpochLimits(Struct, frozen=True, gc=False):
    """An epoch ends before a record that would make it larger, longer or older than this."""

    count_max: int = 65_536
    bytes_max: int = 32 * 1024 * 1024
    age_max_us: int = 3_600_000_000


class GenerationRow(Struct, frozen=True, gc=False):
    """The layout of the epochs from `first_epoch` on, until the next generation's first."""

    number: int
    first_epoch: int
    layout: str
    parameters: bytes
    limits: EpochLimits = EpochLimits()


class ProducerRow(Struct, frozen=True, gc=False):
    """The last sequence that a producer appended, when, and the check value of that message (crc32 of topic and payload)."""

    sequence: int
    used_at: int
    check: int | None = None


def epoch_key(start: int) -> bytes:
    """The key of a closed epoch's row."""
    return EPOCH_PREFIX + start.to_bytes(8, "big")


def generation_key(number: int) -> bytes:
    """The key of a generation's row."""
    return GENERATION_PREFIX + number.to_bytes(4, "big")


def layout_prefix(number: int) -> bytes:
    """The key prefix of a generation's layout rows."""
    return LAYOUT_PREFIX + number.to_bytes(4, "big")


def producer_key(producer: bytes) -> bytes:
    """The key of a producer's row."""
    return PRODUCER_PREFIX + producer


def encode_shard(row: ShardRow) -> bytes:
    """The shard row's value."""
    return _SHARD.pack(
        VERSION, row.last, row.epoch_start, row.epoch_count, row.epoch_bytes, row.next_trie_id, row.term, row.floor
    )


def decode_shard(value: bytes) -> ShardRow:
    """The shard row of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    _check(value, _SHARD.size, "shard", is_exact=True)
    return ShardRow(*_SHARD.unpack(value)[1:])


def encode_epoch(row: EpochRow) -> bytes:
    """The value of a closed epoch's row."""
    ids = row.static_ids
    if ids is None or len(ids) > STATIC_IDS_MAX:
        return _EPOCH.pack(VERSION, row.end, row.count, row.size_bytes, _ANY_ID)
    return _EPOCH.pack(VERSION, row.end, row.count, row.size_bytes, len(ids)) + b"".join(sorted(ids))


def decode_epoch(key: bytes, value: bytes) -> EpochRow:
    """The epoch row of a key and value; raises UsageError for a newer format, Corruption for an invalid row."""
    _check(value, _EPOCH.size, "epoch")
    _, end, count, size_bytes, id_count = _EPOCH.unpack_from(value)
    start = int.from_bytes(key[1:], "big")
    if id_count == _ANY_ID:
        return EpochRow(start, end, count, size_bytes)
    if len(value) != _EPOCH.size + id_count * STATIC_ID_BYTES or len(key) != 9:
        raise Corruption("the row of an epoch does not have the length it states")
    places = range(_EPOCH.size, len(value), STATIC_ID_BYTES)
    return EpochRow(start, end, count, size_bytes, frozenset(value[place : place + STATIC_ID_BYTES] for place in places))


def encode_generation(row: GenerationRow) -> bytes:
    """The value of a generation's row."""
    name = row.layout.encode()
    limits = row.limits
    head = _GENERATION.pack(VERSION, row.first_epoch, limits.count_max, limits.bytes_max, limits.age_max_us, len(name))
    return head + name + row.parameters


def decode_generation(key: bytes, value: bytes) -> GenerationRow:
    """The generation row of a key and value; raises UsageError for a newer format, Corruption for an invalid row."""
    _check(value, _GENERATION.size, "generation")
    _, first_epoch, count_max, bytes_max, age_max_us, name_bytes = _GENERATION.unpack_from(value)
    name_end = _GENERATION.size + name_bytes
    if len(value) < name_end or len(key) != 5:
        raise Corruption("the row of a generation is truncated")
    limits = EpochLimits(count_max, bytes_max, age_max_us)
    name = value[_GENERATION.size : name_end].decode()
    return GenerationRow(int.from_bytes(key[1:], "big"), first_epoch, name, value[name_end:], limits)


def encode_producer(row: ProducerRow) -> bytes:
    """The value of a producer's row: version 1 without a check value, version 2 with one."""
    if row.check is None:
        return _PRODUCER.pack(VERSION, row.sequence, row.used_at)
    return _CHECKED_PRODUCER.pack(PRODUCER_VERSION, row.sequence, row.used_at, row.check)


def decode_producer(value: bytes) -> ProducerRow:
    """The producer row of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    if value and value[0] == PRODUCER_VERSION:
        _check(value, _CHECKED_PRODUCER.size, "producer", is_exact=True, version=PRODUCER_VERSION)
        return ProducerRow(*_CHECKED_PRODUCER.unpack(value)[1:])
    _check(value, _PRODUCER.size, "producer", is_exact=True)
    return ProducerRow(*_PRODUCER.unpack(value)[1:])


def _check(value: bytes, size: int, kind: str, is_exact: bool = False, version: int = VERSION) -> None:
    if value and value[0] > version:
        raise UsageError(f"a {kind} row has the format {value[0]}, newer than {version}", "use the newer version of braidmq")
    if len(value) < size or value[0] != version or (is_exact and len(value) != size):
        raise Corruption(f"a {kind} row is not valid for version {version}")
