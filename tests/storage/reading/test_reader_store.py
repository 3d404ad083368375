"""The log on the real store: appended, closed, opened again and read, with both layouts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from braidmq.lane.records.records import Record, encode_record
from braidmq.mqtt.topics import matches
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts import make_layout
from braidmq.storage.reading.reader import LogReader
from braidmq.storage.shard.clock import ShardClock
from braidmq.storage.shard.shard import Shard, ShardOptions
from braidmq.storage.upkeep.floors import RetentionLimits, choose_floor
from tests.storage.log import drain, stamps_of

pytestmark = pytest.mark.smoke

FAMILY = "shard-00"
FILTERS = ("#", "plant/+/temp", "plant/3/#", "plant/17/speed", "office/+", "$x/#", "nothing")


def open_shard(store: Store, layout: str) -> Shard:
    options = ShardOptions(layout, limits=EpochLimits(count_max=500), tail_bytes_max=0)
    shard = Shard(store, FAMILY, ShardClock(), make_layout, options)
    shard.recover()
    return shard


def fill(store: Store, shard: Shard, batches: int, seed: int) -> list[Record]:
    chance = random.Random(seed)
    written = []
    for _ in range(batches):
        batch = store.batch()
        topics = [
            chance.choice(("office/a", "$x/y", f"plant/{chance.randrange(40)}/{chance.choice(('temp', 'speed'))}"))
            for _ in range(60)
        ]
        entries = [(topic.encode(), encode_record(topic.encode(), chance.randbytes(20), 1, False, "p")) for topic in topics]
        stamps = shard.append(batch, entries)
        shard.seal(batch)
        shard.adopt(store.write(batch))
        written += [Record(stamp, value) for stamp, (_, value) in zip(stamps, entries, strict=True)]
    shard.commit(store.sync())
    return written


def check(store: Store, shard: Shard, oracle: list[Record]) -> None:
    reader = LogReader(store, shard)
    for topic_filter in FILTERS:
        expected = [record for record in oracle if matches(topic_filter, record.topic.decode())]
        found = drain(reader.start_replay([topic_filter], 0), 250)
        assert stamps_of(found) == stamps_of(expected)
        assert [record.value for record in found] == [record.value for record in expected]


@pytest.mark.parametrize("layout", ["learned", "hashed"])
def test_records_are_read_in_order_before_and_after_reopening(tmp_path: Path, layout: str) -> None:
    with Store.open(tmp_path / "log", [FAMILY], durability="os") as store:
        shard = open_shard(store, layout)
        oracle = fill(store, shard, 20, 1)
        check(store, shard, oracle)
        batch = store.batch()
        shard.add_generation(batch, "hashed" if layout == "learned" else "learned")
        shard.seal(batch)
        shard.adopt(store.write(batch))
        oracle += fill(store, shard, 10, 2)
        check(store, shard, oracle)
    with Store.open(tmp_path / "log", [FAMILY], durability="os") as store:
        shard = open_shard(store, layout)
        check(store, shard, oracle)
        oracle += fill(store, shard, 10, 3)

        limits = RetentionLimits(size_bytes=shard.epochs.size_bytes // 2)
        floor = choose_floor(shard.epochs, limits, shard.last, shard.watermark)
        batch = store.batch()
        shard.raise_floor(batch, floor)
        shard.seal(batch)
        shard.adopt(store.write(batch))
        kept = [record for record in oracle if record.timestamp >= floor]
        assert 0 < len(kept) < len(oracle)
        check(store, shard, kept)
    with Store.open(tmp_path / "log", [FAMILY], durability="os") as store:
        check(store, open_shard(store, layout), kept)
