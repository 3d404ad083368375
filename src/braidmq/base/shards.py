"""Which shard of the log a name belongs to. Producers with keys compute it as well, so it must never change."""

from __future__ import annotations

from zlib import crc32


def shard_of(name: str, shards: int) -> int:
    """The shard of a client id, or of another name, in a log with this many shards, which never changes (P3)."""
    return crc32(name.encode()) % shards
