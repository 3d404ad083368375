"""The store compared with bare rocksdict, and the latency of its commits: ``python -m benchmarks.storage.store [DIRECTORY]``.

Rates are per CPU time of the thread, which other work on the machine affects least; each is the best of several alternating runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from rocksdict import Options, Rdict, WriteBatch

from braidmq.storage.engine.store import Store

FAMILY = "shard-00"
END = b"\xff"
BATCH = 500
BATCHES = 200
ROUNDS = 3
PACED_BATCHES = 1000
FLUSHES = 200
PACED_BATCH = 100
PACE_S = 0.002

Rows = list[list[tuple[bytes, bytes]]]


def make_rows() -> Rows:
    """Batches of records in the form of the log: epoch, an index that scatters them over it, offset; 100 random bytes."""
    noise = random.Random(1)
    numbers = iter(range(BATCH * BATCHES))
    return [
        [(bytes(8) + noise.randbytes(8) + next(numbers).to_bytes(4, "big"), noise.randbytes(100)) for _ in range(BATCH)]
        for _ in range(BATCHES)
    ]


def append_bare(path: Path, rows: Rows) -> float:
    """Seconds that bare rocksdict takes to build and write the batches."""
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    db = Rdict(str(path), options, {FAMILY: Options(raw_mode=True)})
    handle = db.get_column_family_handle(FAMILY)
    began = time.thread_time()
    for batch in rows:
        changes = WriteBatch(raw_mode=True)
        for key, value in batch:
            changes.put(key, value, handle)
        db.write(changes)
    taken = time.thread_time() - began
    del handle
    db.close()
    return taken


def append_store(path: Path, rows: Rows, one_by_one: bool) -> float:
    """Seconds that the store takes for the same, with its committer running."""
    with Store.open(path, [FAMILY]) as store:
        store.start(lambda call: call(), lambda number: None)
        began = time.thread_time()
        for batch in rows:
            changes = store.batch()
            if one_by_one:
                for key, value in batch:
                    changes.put(FAMILY, key, value)
            else:
                changes.put_all(FAMILY, batch)
            store.write(changes)
        return time.thread_time() - began


def read_rates(path: Path, rows: Rows) -> dict[str, float]:
    """Rows per second of each way to read them all, tables compacted."""
    with Store.open(path, [FAMILY]) as store:
        for batch in rows:
            changes = store.batch()
            changes.put_all(FAMILY, batch)
            store.write(changes)
        store.compact(FAMILY, b"", END)

    def bare() -> None:
        for _key, _value in db.get_column_family(FAMILY).items():
            pass

    def items() -> None:
        for _key, _value in store.items(FAMILY, b"", END):
            pass

    def cursor() -> None:
        place = store.cursor(FAMILY, b"", END)
        place.seek(b"")
        while place.valid:
            place.key()
            place.value()
            place.next()

    db = Rdict(str(path), Options(raw_mode=True), {FAMILY: Options(raw_mode=True)})
    rates = {"bare items": rate(bare)}
    db.close()
    with Store.open(path, [FAMILY]) as store:
        rates["Store.items"] = rate(items)
        rates["Cursor"] = rate(cursor)
    return rates


def rate(read: Callable[[], None]) -> float:
    """Rows per second of the best of several runs."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        read()
        best = min(best, time.thread_time() - began)
    return BATCH * BATCHES / best


def flush_latencies(path: Path) -> list[float]:
    """Milliseconds of a bare fdatasync of as many bytes as a paced batch has, for comparison."""
    taken: list[float] = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(bytes(PACED_BATCH * 112))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return sorted(taken)


async def commit_latencies(path: Path, busy_s: float) -> list[float]:
    """Milliseconds from write to ``on_commit`` of paced batches; the loop computes for ``busy_s`` after each of them."""
    written: dict[int, float] = {}
    taken: list[float] = []
    is_done = asyncio.Event()

    def on_commit(number: int) -> None:
        now = time.perf_counter()
        for done in [waiting for waiting in written if waiting <= number]:
            taken.append((now - written.pop(done)) * 1000)
        if number == PACED_BATCHES:
            is_done.set()

    with Store.open(path, [FAMILY]) as store:
        store.start(asyncio.get_running_loop().call_soon_threadsafe, on_commit)
        rows = [(b"%012d" % row, b"v" * 100) for row in range(PACED_BATCH)]
        for _ in range(PACED_BATCHES):
            changes = store.batch()
            changes.put_all(FAMILY, rows)
            began = time.perf_counter()
            written[store.write(changes)] = began
            while time.perf_counter() - began < busy_s:
                pass
            await asyncio.sleep(PACE_S - busy_s)
        await asyncio.wait_for(is_done.wait(), 30)
    return sorted(taken)


def quantiles(taken_ms: list[float]) -> str:
    """The median and the 99th percentile as text."""
    return f"p50 {taken_ms[len(taken_ms) // 2]:.2f} ms, p99 {taken_ms[len(taken_ms) * 99 // 100]:.2f} ms"


def main() -> None:
    """Print the figures; takes about 10 seconds."""
    rows = make_rows()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        place = Path(directory)
        ways: dict[str, Callable[[Path], float]] = {
            "bare db.write": lambda path: append_bare(path, rows),
            "Store, put_all": lambda path: append_store(path, rows, one_by_one=False),
            "Store, put": lambda path: append_store(path, rows, one_by_one=True),
        }
        best = dict.fromkeys(ways, float("inf"))
        for turn in range(ROUNDS):
            for name, append in ways.items():
                best[name] = min(best[name], append(place / f"{name}-{turn}"))
        for name, taken in best.items():
            ratio = best["bare db.write"] / taken
            print(f"append, batches of {BATCH}: {name:16} {BATCH * BATCHES / taken / 1000:8.0f} k records/s {ratio:6.0%}")

        rates = read_rates(place / "read", rows)
        for name, per_s in rates.items():
            print(f"read, cached tables:    {name:16} {per_s / 1000:8.0f} k records/s {per_s / rates['bare items']:6.0%}")

        print(f"bare fdatasync: {quantiles(flush_latencies(place / 'file'))}")
        for busy_s in (0.0, 0.0015):
            taken_ms = uvloop.run(commit_latencies(place / f"commit-{busy_s}", busy_s))
            load = f"{PACED_BATCH / PACE_S / 1000:.0f} k records/s, loop {busy_s / PACE_S:.0%} busy"
            print(f"commit at {load}: {quantiles(taken_ms)}")


if __name__ == "__main__":
    main()
