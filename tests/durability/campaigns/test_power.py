"""Losing power, as the campaigns play it, takes what was not synced and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from braidmq.storage.engine.rocksdb import Disk
from braidmq.storage.engine.store import Store
from tests.durability.campaigns import power

FAMILY = "shard-00"


class NotingDisk(Disk):
    """A disk that takes notes."""

    flush = power.note_syncs(Disk.flush)


class Unlucky(random.Random):
    """Chance that always takes the least."""

    def randint(self, a: int, b: int) -> int:
        return a


def write(store: Store, first: int, end: int) -> None:
    for number in range(first, end):
        batch = store.batch()
        batch.put_all(FAMILY, [(b"%04d" % number, b"v" * 50)])
        store.write(batch)


def killed(tmp_path: Path) -> Path:
    """The files of a store as a kill leaves them: ten writes synced, then ten more."""
    with Store.open(tmp_path / "running" / "log", [FAMILY], disk=NotingDisk()) as store:
        write(store, 0, 10)
        store.sync()
        write(store, 10, 20)
        return Path(shutil.copytree(tmp_path / "running", tmp_path / "killed")) / "log"


def numbers_in(place: Path) -> list[int]:
    with Store.open(place, [FAMILY]) as store:
        return [int(key) for key, _ in store.items(FAMILY, b"", b"\xff")]


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_in_the_worst_case_all_unsynced_data_is_lost(tmp_path: Path, damage: power.Damage) -> None:
    place = killed(tmp_path)

    assert power.cut(place, damage, Unlucky()) > 10 * 50

    assert numbers_in(place) == list(range(10))


@pytest.mark.parametrize("seed", range(5))
def test_some_unsynced_data_may_be_lost(tmp_path: Path, seed: int) -> None:
    place = killed(tmp_path)

    power.cut(place, "cut", random.Random(seed))

    found = numbers_in(place)
    assert found == list(range(len(found)))
    assert 10 <= len(found) <= 20


def test_kill_9_loses_nothing_that_was_written(tmp_path: Path) -> None:
    place = killed(tmp_path)

    assert power.cut(place, "none", random.Random(1)) == 0

    assert numbers_in(place) == list(range(20))
