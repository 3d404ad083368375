"""Opening the store of a log: the number of shards is written down before the first family is made, and never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from braidmq.base.errors import BraidError, ConfigError, Corruption
from braidmq.storage.engine import DEFAULT_FAMILY, Disk, Tuning
from braidmq.storage.store import Durability, Store

_SHARDS_KEY: Final = b"shards"
_FAMILY_PREFIX: Final = "shard-"


def family_of(shard: int) -> str:
    """The column family of a shard."""
    return f"{_FAMILY_PREFIX}{shard:02}"


def open_log_store(path: Path, shards: int, durability: Durability, tuning: Tuning | None, disk: Disk | None) -> Store:
    """Open the store with one family for each shard, or make it; ConfigError if it was made with another number of shards."""
    store = Store.open(path, (), durability=durability, tuning=tuning, disk=disk)
    families = [family_of(shard) for shard in range(shards)]
    try:
        _check_shards(store, shards)
        if set(families) <= set(store.families):
            return store
    except BraidError:
        store.close()
        raise
    # A new log, or one whose making was cut off: the number is on disk, so making the families again is safe.
    store.close()
    return Store.open(path, families, durability=durability, tuning=tuning, disk=disk)


def _check_shards(store: Store, shards: int) -> None:
    row = store.get(DEFAULT_FAMILY, _SHARDS_KEY)
    if row is None:
        if any(name.startswith(_FAMILY_PREFIX) for name in store.families):
            raise Corruption(f"the log in {store.path} has shards, but does not say how many")
        batch = store.batch()
        batch.put(DEFAULT_FAMILY, _SHARDS_KEY, shards.to_bytes(4, "big"))
        store.write(batch)
        store.sync()
        return
    made_with = int.from_bytes(row, "big")
    if made_with != shards:
        raise ConfigError(
            "history.shards",
            f"is {shards}, but the log in {store.path} was made with {made_with}",
            f"set it to {made_with}, or give the node a new data_dir",
        )
