"""The log compared with bare rocksdict on the same bytes: ``python -m benchmarks.storage.log [RECORDS]``.

Rates are per CPU time of the thread, which other work on the machine affects least; each is the best of several runs. Times to
the first record are wall-clock times, for topics not requested before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from rocksdict import Rdict, ReadOptions, WriteBatch

from benchmarks.figures import Figure, show_share
from benchmarks.storage.dataset import PAYLOAD_BYTES, SETTINGS, TENTH, DataSet, prepare, topic_of, topics_of
from braidmq.lane.records.records import encode_record
from braidmq.storage.engine.open import family_of
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import SHARD_KEY
from braidmq.storage.layouts import make_layout
from braidmq.storage.log import DurableLog
from braidmq.storage.shard.clock import ShardClock
from braidmq.storage.shard.shard import Entry, Shard, ShardOptions

FAMILY = "shard-00"
BATCH = 500
ROUNDS = 3
CHUNK = 1000
READ_MAX = 1_000_000
APPENDED = 300_000
TOPICS_ASKED = 7

APPEND_TARGET = 0.6  # of raw db.write of the same bytes
FIRST_TARGET_MS = 20.0
TENTH_TARGET = 0.6  # of bare iteration
ALL_TARGET = 0.5
DISK_TARGET = 1.3  # bytes on disk for each byte of topic and payload

Say = Callable[[str], None]


def make_batches(count: int) -> list[list[Entry]]:
    """Batches of records like those of the data set."""
    entries = []
    for number in range(count):
        topic = topic_of(number, topics_of(count)).encode()
        entries.append((topic, encode_record(topic, os.urandom(PAYLOAD_BYTES), 1, False, "publisher-1")))
    return [entries[at : at + BATCH] for at in range(0, count, BATCH)]


def append_log(path: Path, batches: list[list[Entry]]) -> tuple[float, list[tuple[bytes, bytes]]]:
    """Seconds to stamp, place and write all batches, and the written rows, in order."""
    with Store.open(path, [FAMILY], durability="os") as store:
        shard = Shard(store, FAMILY, ShardClock(), make_layout, ShardOptions("learned", tail_bytes_max=0))
        began = time.thread_time()
        for entries in batches:
            batch = store.batch()
            shard.append(batch, entries)
            shard.seal(batch)
            shard.adopt(store.write(batch))
        taken = time.thread_time() - began
        rows = list(store.items(FAMILY, b"\0", SHARD_KEY))
        del shard
    rows.sort(key=lambda row: (row[0][:8], row[0][-4:]))  # by epoch and offset
    return taken, rows


def append_bare(path: Path, rows: list[tuple[bytes, bytes]]) -> float:
    """Seconds to write the same rows in batches of the same size, with only the store's options."""
    with Store.open(path, [FAMILY], durability="os") as store:
        db: Rdict = store._database.db
        handle = store._database.handles[FAMILY]
        began = time.thread_time()
        for at in range(0, len(rows), BATCH):
            changes = WriteBatch(raw_mode=True)
            for key, value in rows[at : at + BATCH]:
                changes.put(key, value, handle)
            db.write(changes)
        return time.thread_time() - began


def measure_append(folder: Path, count: int = APPENDED) -> Figure:
    """Appending inside the store, compared with ``db.write`` of the same rows."""
    batches = make_batches(count)
    log_s = bare_s = float("inf")
    for turn in range(ROUNDS):
        taken, rows = append_log(folder / f"log-{turn}", batches)
        log_s, bare_s = min(log_s, taken), min(bare_s, append_bare(folder / f"bare-{turn}", rows))
        del rows
    return Figure(
        f"append inside the store, 100-byte payloads, batches of {BATCH}",
        show_share(count / log_s, count / bare_s),
        f"{APPEND_TARGET:.0%} of raw db.write",
        bare_s / log_s >= APPEND_TARGET,
    )


def measure_reads(data: DataSet) -> list[Figure]:
    """Reading the data set, and its size on disk."""
    log = DurableLog.open(data.folder, SETTINGS)
    try:
        firsts = [_first_ms(log, topic_of(number * 99_991 % data.records, data.topics)) for number in range(1, TOPICS_ASKED + 1)]
        bare = max(_iterate_bare(log) for _ in range(ROUNDS))
        tenth = max(_replay(log, TENTH) for _ in range(ROUNDS))
        whole = max(_replay(log, "#") for _ in range(ROUNDS))
    finally:
        log.close()
    ratio = data.table_bytes / data.user_bytes
    held = f"{data.topics:,} topics in {data.records:,} records"
    return [
        Figure(
            f"one exact topic among {held}, slowest of {TOPICS_ASKED}",
            f"{max(firsts):.2f} ms to the first record",
            f"under {FIRST_TARGET_MS:g} ms",
            max(firsts) < FIRST_TARGET_MS,
        ),
        Figure(
            f"`{TENTH}`, a tenth of the records, in order of time over all shards",
            show_share(tenth, bare),
            f"{TENTH_TARGET:.0%} of bare iteration",
            tenth / bare >= TENTH_TARGET,
        ),
        Figure(
            "`#` in order of time over all shards",
            show_share(whole, bare),
            f"{ALL_TARGET:.0%} of bare iteration",
            whole / bare >= ALL_TARGET,
        ),
        Figure(
            "bytes on disk per byte of topic and payload, compacted, without the write-ahead log",
            f"{ratio:.2f}",
            f"at most {DISK_TARGET:g}",
            ratio <= DISK_TARGET,
        ),
    ]


def _iterate_bare(log: DurableLog) -> float:
    """Records per second of bare iteration, over the records that a replay of everything reads."""
    store = log._store
    options = ReadOptions()
    options.set_iterate_upper_bound(SHARD_KEY)
    began, count = time.thread_time(), 0
    for shard in range(log.shards):
        rows = store._families[family_of(shard)].items(read_opt=options, from_key=b"\0")
        count += sum(1 for _ in islice(rows, READ_MAX // log.shards))
    return count / (time.thread_time() - began)


def _replay(log: DurableLog, topic_filter: str) -> float:
    """Records per second of a replay from the beginning."""
    reading = log.replay([topic_filter], 0)
    began, count = time.thread_time(), 0
    while count < READ_MAX and not reading.is_caught_up:
        count += len(reading.next(CHUNK))
    return count / (time.thread_time() - began)


def _first_ms(log: DurableLog, topic: str) -> float:
    began = time.perf_counter()
    reading = log.replay([topic], 0)
    while not reading.next(1):
        assert not reading.is_caught_up
    return (time.perf_counter() - began) * 1000


def main(records: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        folder = Path(name)
        figures = [measure_append(folder), *measure_reads(prepare(folder, records, 0, print))]
    for figure in figures:
        print(f"{figure.title}: {figure.found} ({figure.target}: {'yes' if figure.is_met else 'no'})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
