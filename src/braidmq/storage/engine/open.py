"""Opens the store of a log. The number of shards, which never changes, and the classes are stored before their families are
created; that records are written by the current classes is stored afterwards (`settle_classes`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import ConfigError, Corruption
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY, Disk, Tuning
from braidmq.storage.engine.store import Store
from braidmq.storage.ports import StoreBatch
from braidmq.storage.shard.classes import (
    CLASS_PREFIX,
    CLASSES_END,
    LogClass,
    check_classes,
    decode_class,
    encode_class,
    merge_classes,
)

_SHARDS_KEY: Final = b"shards"
_FAMILY_PREFIX: Final = "shard-"
_CLASS_FAMILY_PREFIX: Final = "class-"


def family_of(shard: int, class_name: str = "") -> str:
    """The column family of a shard, or of one of its classes."""
    return f"{_CLASS_FAMILY_PREFIX}{class_name}-{shard:02}" if class_name else f"{_FAMILY_PREFIX}{shard:02}"


def open_log_store(
    path: Path, settings: HistorySettings, tuning: Tuning | None, disk: Disk | None, log_id: bytes = b""
) -> tuple[Store, list[LogClass]]:
    """Open or create the store with its families; also returns its current and configured classes.

    Raises ConfigError if it was created with another number of shards, or classes overlap, or it has another id than ``log_id``.
    """
    check_classes(settings)
    store = Store.open(path, (), durability=settings.durability, tuning=tuning, disk=disk, is_marked=True, log_id=log_id)
    shards = range(settings.shards)
    try:
        _check_shards(store, settings.shards)
        classes = _note_classes(store, settings)
        names = ["", *(each.name for each in classes)]
        families = [family_of(shard, name) for name in names for shard in shards]
        if set(families) <= set(store.families):
            return store, classes
    except BaseException:
        store.close()
        raise
    # A new log, a new class, or one whose creation was interrupted: its rows are on disk, so creating the families again is safe.
    store.close()
    store = Store.open(path, families, durability=settings.durability, tuning=tuning, disk=disk, is_marked=True)
    return store, classes


def _note_classes(store: Store, settings: HistorySettings) -> list[LogClass]:
    """The classes; updates their rows."""
    stored = {
        key[len(CLASS_PREFIX) :].decode(): decode_class(value)
        for key, value in store.items(DEFAULT_FAMILY, CLASS_PREFIX, CLASSES_END)
    }
    classes = merge_classes(settings, stored)
    changed = [each for each in classes if stored.get(each.name) != each.row]
    if changed:
        batch = store.batch()
        for each in changed:
            batch.put(DEFAULT_FAMILY, _class_key(each), encode_class(each.row))
        store.write(batch)
        store.sync()
    return classes


def are_settled(classes: Iterable[LogClass]) -> bool:
    """Whether records were already written by exactly these topics; if not, all epochs must be closed with `settle_classes`."""
    return all(each.row == each.settled for each in classes)


def settle_classes(batch: StoreBatch, classes: Iterable[LogClass]) -> None:
    """Store in the batch that records are written by these topics from now on."""
    for each in classes:
        batch.put(DEFAULT_FAMILY, _class_key(each), encode_class(each.settled))


def _class_key(each: LogClass) -> bytes:
    return CLASS_PREFIX + each.name.encode()


def _check_shards(store: Store, shards: int) -> None:
    row = store.get(DEFAULT_FAMILY, _SHARDS_KEY)
    if row is None:
        if any(name.startswith(_FAMILY_PREFIX) for name in store.families):
            raise Corruption(f"the log in {store.path} has shards, but their number is not recorded")
        batch = store.batch()
        batch.put(DEFAULT_FAMILY, _SHARDS_KEY, shards.to_bytes(4, "big"))
        store.write(batch)
        store.sync()
        return
    made_with = int.from_bytes(row, "big")
    if made_with != shards:
        raise ConfigError(
            "history.shards",
            f"is {shards}, but the log in {store.path} has {made_with}",
            f"set it to {made_with}, or use a new data_dir",
        )
