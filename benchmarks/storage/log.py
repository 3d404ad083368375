"""A shard and its readers against bare rocksdict on the same bytes: ``python -m benchmarks.storage.log [RECORDS] [LAYOUT]``.

Rates are of the thread's CPU time, which other work on the machine disturbs least; each is the best of several runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rocksdict import Rdict, ReadOptions, WriteBatch

from braidmq.lane import is_compiled
from braidmq.lane.records import encode_record
from braidmq.storage.clock import ShardClock
from braidmq.storage.format.rows import SHARD_KEY
from braidmq.storage.layouts import make_layout
from braidmq.storage.reader import LogReader
from braidmq.storage.scans import ScanCache
from braidmq.storage.shard import Entry, Shard, ShardOptions
from braidmq.storage.store import Store

FAMILY = "shard-00"
PAYLOAD_BYTES = 100
BATCH = 500
ROUNDS = 3
CHUNK = 1000
KINDS = [b"temp", *(b"kind%d" % number for number in range(9))]


def make_entries(count: int) -> list[list[Entry]]:
    """Batches of records of ten kinds from a tenth as many devices as there are records, a million at most."""
    devices = max(min(count // 10, 1_000_000), 1)
    entries = []
    for number in range(count):
        # The devices come in no order, as they do in life.
        topic = b"devices/%d/%s" % (number * 7919 % devices, KINDS[number % 10])
        entries.append((topic, encode_record(topic, os.urandom(PAYLOAD_BYTES), 1, False, "publisher-1")))
    return [entries[at : at + BATCH] for at in range(0, count, BATCH)]


def append_log(store: Store, shard: Shard, batches: list[list[Entry]]) -> float:
    """Seconds to stamp, place and write all batches."""
    began = time.thread_time()
    for entries in batches:
        batch = store.batch()
        shard.append(batch, entries)
        shard.seal(batch)
        shard.adopt(store.write(batch))
    taken = time.thread_time() - began
    shard.commit(store.sync())
    return taken


def append_bare(path: Path, rows: list[tuple[bytes, bytes]]) -> float:
    """Seconds to write the same rows in batches of the same size, with the store's options and nothing else."""
    with Store.open(path, [FAMILY], durability="os") as store:
        db: Rdict = store._db
        handle = store._handles[FAMILY]
        began = time.thread_time()
        for at in range(0, len(rows), BATCH):
            changes = WriteBatch(raw_mode=True)
            for key, value in rows[at : at + BATCH]:
                changes.put(key, value, handle)
            db.write(changes)
        return time.thread_time() - began


def iterate_bare(store: Store) -> tuple[float, int]:
    """Seconds to walk over all records, and their number."""
    options = ReadOptions()
    options.set_iterate_upper_bound(SHARD_KEY)
    began = time.thread_time()
    count = sum(1 for _ in store._families[FAMILY].items(read_opt=options, from_key=b"\0"))
    return time.thread_time() - began, count


def replay(store: Store, shard: Shard, topic_filter: str) -> tuple[float, int, float]:
    """Seconds to read all that matches in order of time, the number of records, and the longest turn of the loop."""
    reading = LogReader(store, shard, ScanCache()).start_replay([topic_filter], 0)
    count, longest = 0, 0.0
    began = time.thread_time()
    while not reading.is_caught_up:
        turn = time.thread_time()
        count += len(reading.next(CHUNK))
        longest = max(longest, time.thread_time() - turn)
    return time.thread_time() - began, count, longest


def first(store: Store, shard: Shard, topic_filter: str) -> float:
    """Seconds to the first record."""
    reading = LogReader(store, shard, ScanCache()).start_replay([topic_filter], 0)
    began = time.thread_time()
    while not reading.next(1):
        assert not reading.is_caught_up
    return time.thread_time() - began


def best(measure: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """The run with the shortest time, which comes first in the answer."""
    return min(measure() for _ in range(ROUNDS))


def main(count: int, layout: str) -> None:
    """Print what each kind of work reaches, and its share of what bare rocksdict does."""
    batches = make_entries(count)
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        folder = Path(name)
        with Store.open(folder / "log", [FAMILY]) as store:
            shard = Shard(store, FAMILY, ShardClock(), make_layout, ShardOptions(layout, tail_bytes_max=0))
            taken = append_log(store, shard, batches)
            rows = list(store.items(FAMILY, b"\0", SHARD_KEY))
            # In the order of their timestamps, as they were appended.
            rows.sort(key=lambda row: (row[0][:8], row[0][-4:]))
            bare = append_bare(folder / "bare", rows)
            del rows
            store.compact(FAMILY, b"\0", SHARD_KEY)
            print(f"{count} records, layout {layout}, {'compiled' if is_compiled() else 'plain'}, {len(shard.epochs)} epochs")
            print(f"append       {count / taken:12,.0f} /s  {bare / taken:5.0%} of {count / bare:,.0f} /s bare")
            seconds, found = best(lambda: iterate_bare(store))
            rate = found / seconds
            for topic_filter in ("#", "devices/+/temp"):
                seconds, found, longest = best(lambda wanted=topic_filter: replay(store, shard, wanted))  # type: ignore[misc]
                share = found / seconds / rate
                print(
                    f"{topic_filter:<15}{found / seconds:9,.0f} /s  {share:5.0%} of {rate:,.0f} /s bare; "
                    f"{found:,} records, longest slice {longest * 1e3:.1f} ms"
                )
            topic = batches[len(batches) // 2][0][0].decode()
            seconds = min(first(store, shard, topic) for _ in range(ROUNDS))
            print(f"exact topic  {seconds * 1e3:12.2f} ms to the first record")
            used = sum(len(topic) + PAYLOAD_BYTES for entries in batches for topic, _ in entries)
            share = store.stats()["table_bytes"] / used
            print(f"disk         {share:12.2f} bytes for each byte of topic and payload, compacted, without the write-ahead log")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000, sys.argv[2] if len(sys.argv) > 2 else "learned")
