"""Rows that are written together with records, and why a write was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.lane.path.ports import Change as Change
from braidmq.storage.ports import StoreBatch

# First bytes of keys for rows stored with the log: readers, sessions, retained and delayed messages, groups, keys of messages,
# and 0xEE for the tables of the cluster (cluster/corestore/embedded.py).
ROWS_LOWER: Final = b"\xe8"
ROWS_UPPER: Final = b"\xf0"

# The approximate overhead of a change in bytes.
_CHANGE_COST: Final = 100


class Put(Change, Struct, frozen=True, gc=False):
    """Set a row of a shard."""

    shard: int
    key: bytes
    value: bytes


class Delete(Change, Struct, frozen=True, gc=False):
    """Remove a row of a shard, if it exists."""

    shard: int
    key: bytes


class WriteRefusal(Struct, frozen=True, gc=False):
    """Why something was not stored, and when to retry.

    `is_in_doubt`: it was written, but it is unknown whether it reached the disk. It must be neither acknowledged nor rejected.
    """

    reason: str
    retry_after_s: float
    is_in_doubt: bool = False


def check_change(change: Change, shards: int) -> int:
    """Its approximate size in bytes; raises UsageError if callers of the log may not change this row."""
    match change:
        case Put(_, key, value):
            size = len(key) + len(value)
        case Delete(_, key):
            size = len(key)
        case _:
            raise UsageError(f"{type(change).__name__} is not a change that the log can make")
    if not 0 <= change.shard < shards or not ROWS_LOWER <= key < ROWS_UPPER:
        raise UsageError(f"the row {key[:16].hex()} of shard {change.shard} cannot be changed from outside the log")
    return size + _CHANGE_COST


def put_change(batch: StoreBatch, families: Sequence[str], change: Change) -> None:
    """Add a change to a batch; `families` are those of the rows, by shard."""
    match change:
        case Put(shard, key, value):
            batch.put(families[shard], key, value)
        case Delete(shard, key):
            batch.delete(families[shard], key)
        case _:
            raise UsageError(f"{type(change).__name__} is not a change that the log can make")
