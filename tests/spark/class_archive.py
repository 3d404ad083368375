"""An archive of Spark's classes, parsed and verified, which makes a JVM start in half the processor time.

Loading classes is most of what a JVM under test does. The archive is made once for each version of Spark and Java, and kept
in `.tools`. A JVM that cannot use it ignores it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import IO

import pyspark
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
MAKING_S = 40.0  # below the time that a test may take: on a machine that is slower than this, tests do without the archive


@cache
def class_archive(jvm_options: str) -> Path | None:
    """The archive for this Spark and this Java, made if it is missing; None if it cannot be made."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        return None
    program = Path(java).resolve()
    archive = TOOLS / f"spark-{pyspark.__version__}-{program.stat().st_mtime_ns:x}.jsa"
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "spark-classes.lock").open("w") as lock:
        # Of two workers one makes it and the other waits.
        if _is_locked(lock) and not archive.exists():
            _make(archive, jvm_options)
    return archive if archive.exists() else None


def _is_locked(lock: IO[str]) -> bool:
    """Lock the file; False if another process has it for too long."""
    deadline = monotonic() + MAKING_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
            sleep(0.1)  # no event tells when a lock is free
        else:
            return True


def _make(archive: Path, jvm_options: str) -> None:
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    options = f"{jvm_options} -Xlog:disable -XX:ArchiveClassesAtExit={new}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = subprocess.run(
                [sys.executable, __file__, folder],
                env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MAKING_S,
            )
        except subprocess.TimeoutExpired:
            return
    if made.returncode == 0 and new.exists():
        new.rename(archive)


def use_spark(folder: str) -> None:
    """Do with Spark what tests do, so that it loads the classes that they need; then let Java end, which writes the archive."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.local.dir", f"{folder}/local")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    rows = session.createDataFrame(
        [(number, f"t/{number % 3}", b"x") for number in range(20)], "id long, topic string, body binary"
    )
    rows.write.partitionBy("topic").parquet(f"{folder}/rows")
    stored = session.read.parquet(f"{folder}/rows")
    stored.groupBy("topic").count().orderBy("topic").collect()
    stored.mapInArrow(lambda batches: batches, stored.schema).where("id > 3").collect()

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").json(f"{folder}/batch={number}")

    stream = session.readStream.schema(stored.schema).parquet(f"{folder}/rows")
    stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").trigger(
        availableNow=True
    ).start().awaitTermination()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()  # which ends Java
    gateway.proc.wait()


if __name__ == "__main__":
    use_spark(sys.argv[1])
