"""Benchmarks of the history service: a stream of everything compared with bare iteration, and its effect on publishers."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.brokers import Broker
from benchmarks.durable import DATA, running
from benchmarks.figures import Figure, show_share
from benchmarks.measure import Bench, Run
from benchmarks.shapes import FLIGHT_TARGET, HISTORY, SCAN_LATENCY_TARGET
from benchmarks.storage import dataset
from benchmarks.storage.dataset import DataSet
from braidmq.flight import connect, wire
from braidmq.storage.engine.open import family_of
from braidmq.storage.engine.secondary import Secondary
from braidmq.storage.format.rows import SHARD_KEY

# The tail latency of a few seconds varies a lot between runs.
LATENCY_ROUNDS = 9
LATENCY_SECONDS = 3
PUBLISHED_PER_S = 20_000
PUBLISHING = ("-m", "alone", "-P", "20", "-q", "1", "-w", "1000", "-s", "100")


def prepare(bench: Bench) -> DataSet:
    """The records to read, created once and kept."""
    return dataset.prepare(DATA, bench.scale.history_records, 0, bench.say, bench.scale.history_topics)


def measure(bench: Bench) -> list[Figure]:
    """Measure a node on the data set with one reader of its history."""
    data = prepare(bench)
    figures = []
    with running(bench, "braidmq", is_recorded=True, data_dir=data.folder) as broker:
        figures.append(_stream(bench, broker, data))
        bench.say(f"{HISTORY:10} {figures[-1].title}: {figures[-1].found}")
    with _copied(data) as folder, running(bench, "braidmq", is_recorded=True, data_dir=folder) as broker:
        figures.append(_latency_under_scan(bench, broker))
        bench.say(f"{HISTORY:10} {figures[-1].title}: {figures[-1].found}")
    return figures


def rate_of(rows: int, work: Callable[[], int]) -> float:
    """Rows per second of `work`; raises RuntimeError if it did not see `rows` rows."""
    began = time.perf_counter()
    found = work()
    taken_s = time.perf_counter() - began
    if found != rows:
        raise RuntimeError(f"{found:,} rows read instead of {rows:,}")
    return rows / taken_s


def compare(rounds: int, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float, float]:
    """Medians of two measures taken in turn, and the median of the ratios of turns."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    mine, other = zip(*pairs, strict=True)
    return statistics.median(mine), statistics.median(other), statistics.median(one / two for one, two in pairs)


def scan(port: int) -> int:
    """Stream all columns of all records, one part after the other, and discard them; returns the number of rows."""
    with connect(f"127.0.0.1:{port}") as client:
        parts = client.plan(wire.Plan(["#"])).parts
        return sum(batch.num_rows for ticket, _ in parts for batch in client.stream(ticket))


def _stream(bench: Bench, broker: Broker, data: DataSet) -> Figure:
    port = broker.await_history()
    with tempfile.TemporaryDirectory() as scratch:
        store = Secondary.open(Path(data.folder) / "log", Path(scratch))
        families = [name for name in map(family_of, range(len(store.families))) if name in store.families]

        def iterate() -> int:
            return sum(sum(1 for _ in store.run(family, b"\0", SHARD_KEY)) for family in families)

        scan(port)  # the service opens the log on first use, and the files get into the cache
        ours, bare, ratio = compare(
            bench.scale.history_rounds,
            lambda: rate_of(data.records, lambda: scan(port)),
            lambda: rate_of(data.records, iterate),
        )
        store.close()
    return Figure(
        "Flight stream of all columns, one reader",
        show_share(ours, bare),
        f"{FLIGHT_TARGET:.0%} of bare iteration",
        ratio >= FLIGHT_TARGET,
    )


def _latency_under_scan(bench: Bench, broker: Broker) -> Figure:
    """Rounds in turn: publishers at a fixed rate alone, and with a reader that streams everything repeatedly."""
    port = broker.await_history()
    idle, scanned = [], []
    for _ in range(LATENCY_ROUNDS if bench.scale.history_rounds > 1 else 1):
        idle.append(publish(bench, broker, PUBLISHED_PER_S, LATENCY_SECONDS))
        with _scanning(port):
            scanned.append(publish(bench, broker, PUBLISHED_PER_S, LATENCY_SECONDS))
    title = f"p99 from publishing to PUBACK, QoS 1 recorded, {PUBLISHED_PER_S:,}/s, while everything is streamed"
    target = f"within {SCAN_LATENCY_TARGET:g} x of idle"
    if errors := {run.error for run in [*idle, *scanned] if run.error}:
        return Figure(title, "; ".join(sorted(errors)), target, False)
    p99_ms = [statistics.median(run.p99_ms for run in runs) for runs in (scanned, idle)]
    p50_ms = [statistics.median(run.p50_ms for run in runs) for runs in (scanned, idle)]
    ratio = p99_ms[0] / p99_ms[1]
    is_clean = not any(run.lost for run in [*idle, *scanned])
    return Figure(
        title,
        f"{p99_ms[0]:.2f} ms, {ratio:.2f} x of {p99_ms[1]:.2f} ms (median {p50_ms[0]:.2f} of {p50_ms[1]:.2f} ms)",
        target,
        is_clean and ratio <= SCAN_LATENCY_TARGET,
    )


def publish(bench: Bench, broker: Broker, per_s: int, seconds: int) -> Run:
    """Publish at a fixed rate, QoS 1, from a few clients; returns when everything is acknowledged."""
    return bench.generate(broker, "tcp", "flow", *PUBLISHING, "-r", str(per_s), "-d", str(seconds))


@contextlib.contextmanager
def _scanning(port: int) -> Iterator[None]:
    """Run a process that streams everything until the block ends; it has started when the block begins."""
    words = f"from benchmarks.history import scan_for_ever\nscan_for_ever({port})"
    process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout
            if not process.stdout.readline():
                raise RuntimeError("the reader of history did not start")
            yield
        finally:
            process.kill()


def scan_for_ever(port: int) -> None:
    """Stream everything repeatedly, in a separate process; prints a line when the first rows arrive."""
    # It simulates a reader on another machine, so its own processor use must not affect the service.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with connect(f"127.0.0.1:{port}") as client:
        is_first = True
        while True:
            for ticket, _ in client.plan(wire.Plan(["#"])).parts:
                for _ in client.stream(ticket):
                    if is_first:
                        print(flush=True)
                    is_first = False


@contextlib.contextmanager
def _copied(data: DataSet) -> Iterator[str]:
    """A copy of the data set for a node that is published to. Tables are immutable, so hard links are enough."""
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        log = Path(folder) / "log"
        shutil.copytree(Path(data.folder) / "log", log, copy_function=_link_or_copy)
        yield folder


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
