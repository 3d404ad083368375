"""Generations of a shard: readers cross them, each has its limits, and a failed batch adds none."""

from __future__ import annotations

import pytest

from braidmq.base.errors import Unavailable
from braidmq.storage.format.rows import EPOCH_PREFIX, GENERATION_PREFIX, LAYOUT_PREFIX, EpochLimits
from tests.storage.log import FAMILY, LAYOUTS, NOON, Log, entries, stamps_of

pytestmark = pytest.mark.smoke


def test_readers_cross_generations_with_other_layouts_in_order() -> None:
    log = Log("learned")
    stamps = log.append("a/1", "a/2", "b")
    for layout in ("hashed", "learned", "learned", "hashed"):
        batch = log.store.batch()
        log.shard.add_generation(batch, layout, LAYOUTS[layout])
        log.write(batch)
        stamps += log.append("a/1", "b", "a/3")

    assert stamps_of(log.read("#")) == stamps
    assert [record.topic for record in log.read("a/+")] == [b"a/1", b"a/2"] + [b"a/1", b"a/3"] * 4
    again = log.reopened()
    assert stamps_of(again.read("a/#", "b")) == stamps
    assert [each.row.layout for each in again.shard.generations] == ["learned", "hashed", "learned", "learned", "hashed"]


def test_a_generation_and_records_in_one_batch() -> None:
    log = Log("learned")
    batch = log.store.batch()
    stamps = log.shard.append(batch, entries(["a/x", "b"]))
    log.shard.add_generation(batch, "hashed", LAYOUTS["hashed"])
    stamps += log.shard.append(batch, entries(["a/x", "b"]))
    log.write(batch)

    for each in (log, log.reopened()):
        assert stamps_of(each.read("a/x")) == stamps[::2]
        assert stamps_of(each.read("+")) == stamps[1::2]


def test_a_generation_has_limits_of_its_own() -> None:
    log = Log()
    log.append("a", "b", "c")
    batch = log.store.batch()
    log.shard.add_generation(batch, "learned", limits=EpochLimits(count_max=1))
    log.write(batch)

    stamps = log.append("a", "b", "c")

    assert [epoch.start for epoch in log.shard.epochs] == [NOON, *stamps]
    assert log.reopened().shard.generations.current.row.limits.count_max == 1


def test_a_failed_batch_adds_no_generation() -> None:
    log = Log()
    log.append("a")
    batch = log.store.batch()
    log.shard.add_generation(batch, "hashed", LAYOUTS["hashed"])
    log.store.fails = True
    with pytest.raises(Unavailable):
        log.write(batch)
    log.shard.discard()
    log.store.fails = False

    log.append("b")

    assert [each.row.number for each in log.shard.generations] == [1]
    assert len(list(log.store.items(FAMILY, GENERATION_PREFIX, LAYOUT_PREFIX))) == 1
    assert len(list(log.store.items(FAMILY, EPOCH_PREFIX, GENERATION_PREFIX))) == 0
