"""Removes the keys of producer names that have not been used for a long time."""

from __future__ import annotations

from itertools import islice
from typing import Final

from braidmq.storage.format.key_rows import KEYS_END, KEYS_PREFIX, batch_key, decode_batch, name_end, name_of
from braidmq.storage.ports import Reads, StoreBatch

_NAMES_MAX: Final = 100


def expire_keys(
    store: Reads, family: str, batch: StoreBatch, unused_since: int, after: bytes = b"", rows_max: int = 1000
) -> bytes:
    """Remove rows of names unused since then, examining some; returns the name to continue after, empty at the end.

    The row of the batch is removed last, so that a partly removed name is found again.
    """
    lower = name_end(after) if after else KEYS_PREFIX
    for _ in range(_NAMES_MAX):
        found = next(store.items(family, lower, KEYS_END), None)
        if found is None:
            return b""
        key, value = found
        name = name_of(key)
        if key == batch_key(name) and decode_batch(value).used_at < unused_since:
            rows = list(islice(store.items(family, key, name_end(name)), rows_max + 1))
            if len(rows) > rows_max:
                for old, _ in rows[1:]:
                    batch.delete(family, old)
                return after
            for old, _ in rows:
                batch.delete(family, old)
            rows_max -= len(rows)
        after = name
        lower = name_end(name)
    return after
