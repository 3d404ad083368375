"""Publishing rows as messages, and archiving history to Parquet."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.brokers import Broker
from benchmarks.figures import Figure, show_rate, show_share
from benchmarks.history import compare
from benchmarks.shapes import ARCHIVE_TARGET, SINK_TARGET, SINK_TARGET_PER_S
from benchmarks.storage.dataset import PAYLOAD_BYTES, DataSet
from braidmq.spark.jobs import archive

SINK_TOPICS = 1000
BENCH_CLIENTS = 2
BENCH_WINDOW = 5000
RUN_TIMEOUT_S = 120


class _Bench(msgspec.Struct):
    """The part of the output of `braidmq bench pub --json` that is used here."""

    acknowledged: int
    measured_seconds: float


def publish_rows(rows: int, rounds: int, broker: Broker, spark: SparkSession) -> Figure:
    """Publish rows that Spark generates, in two partitions; compared with two clients of `braidmq bench`."""
    port = broker.ports["tcp"]
    number = F.col("id")
    frame = spark.range(0, rows, numPartitions=BENCH_CLIENTS).select(
        F.concat(F.lit("bench/"), number % SINK_TOPICS).alias("topic"),
        F.lpad(number.cast("string"), PAYLOAD_BYTES, "x").alias("payload"),
    )

    def write() -> float:
        began = time.perf_counter()
        frame.write.format("braidmq").option("servers", f"127.0.0.1:{port}").mode("append").save()
        return rows / (time.perf_counter() - began)

    write()
    ours, theirs, ratio = compare(rounds, write, lambda: _bench_rate(port, rows))
    return Figure(
        "sink, QoS 1 recorded",
        f"{show_rate(ours)}; `braidmq bench` {show_rate(theirs)}",
        f"{show_rate(SINK_TARGET_PER_S)}, or {SINK_TARGET:.0%} of `braidmq bench`",
        ours >= SINK_TARGET_PER_S or ratio >= SINK_TARGET,
    )


def _bench_rate(port: int, messages: int) -> float:
    """Acknowledged messages per second of the same number of `braidmq bench` clients."""
    command = [str(Path(sys.executable).parent / "braidmq"), "bench", "pub", "--json", "--quiet", "-p", str(port)]
    shape = ["-c", str(BENCH_CLIENTS), "-F", str(BENCH_WINDOW), "-I", "0", "-q", "1", "-s", str(PAYLOAD_BYTES), "-t", "bench/%i"]
    done = subprocess.run(
        [*command, *shape, "-L", str(messages)], stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_TIMEOUT_S, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    found = msgspec.json.decode(done.stdout, type=_Bench)
    return found.acknowledged / found.measured_seconds


def archive_all(data: DataSet, rounds: int, folder: Path, servers: str, memory: Callable[[], DataFrame]) -> Figure:
    """Run the job as users do, in the current session; compared with Spark writing the same rows to Parquet."""

    def run_job() -> float:
        output = folder / "lake"
        words = [str(output), "--servers", servers, "--checkpoint", str(folder / "checkpoint")]
        began = time.perf_counter()
        archive.command.main(words, standalone_mode=False)
        return _rate_and_remove(began, folder / "checkpoint", output)

    def write() -> float:
        output = folder / "plain"
        began = time.perf_counter()
        memory().write.parquet(str(output))
        return _rate_and_remove(began, output)

    def _rate_and_remove(began: float, *made: Path) -> float:
        taken_s = time.perf_counter() - began
        for each in made:
            shutil.rmtree(each)
        return data.records / taken_s

    for warm_up in (run_job, write):
        warm_up()
    ours, theirs, ratio = compare(rounds, run_job, write)
    return Figure(
        "`braidmq pipeline archive` of everything to Parquet",
        show_share(ours, theirs, "from memory"),
        f"{ARCHIVE_TARGET:.0%} of Spark writing the same rows from memory",
        ratio >= ARCHIVE_TARGET,
    )
