"""The source from a zip of the package without compiled modules, as `spark-submit --py-files` ships it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from braidmq.testing import Broker
from tests.support.clients.wire import Wire
from tests.support.fakes.history_service import FakeHistoryService

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
archive, address = sys.argv[1:]
sys.path.insert(0, archive)
import braidmq, pyspark_braidmq
assert braidmq.__file__.startswith(archive), braidmq.__file__
source = pyspark_braidmq.DefaultSource({"servers": address, "path": "plant/#", "pushdown": "true"})
reader = source.reader(source.schema())
print(sorted(row["position"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()))
stream = source.streamReader(source.schema())
print(stream.initialOffset())
compiled = [name for name, module in sys.modules.items()
            if name.startswith("braidmq") and not str(module.__file__).startswith(archive)]
assert not compiled, compiled
forbidden = [name for name in sys.modules if name.split(".")[:2] in
             (["braidmq", each] for each in ("api", "broker", "storage", "access", "node", "lane", "history"))]
assert not forbidden, forbidden
"""


APPLICATION = """
import json, sys
from pyspark.sql import SparkSession
from braidmq.spark import BraidDataSource
from braidmq.spark.jobs.archive import command
history, target, directory = sys.argv[1:]

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(BraidDataSource)
rows = spark.read.format("braidmq").option("servers", history).load("plant/#").collect()
print(json.dumps([[row.topic, row.payload.decode()] for row in rows]))
stream = spark.readStream.format("braidmq").option("servers", history).option("startingOffsets", "earliest").load("plant/#")
copy = stream.selectExpr("'copy/' || topic AS topic", "payload").writeStream.format("braidmq").option("servers", target)
copy.option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
command(["--servers", history, "-t", "copy/#", directory + "/lake"])
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The package without what is compiled."""
    archive = tmp_path / "braidmq.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted([*(ROOT / "src").rglob("*.py")]):
            packed.write(file, file.relative_to(ROOT / "src"))
    return archive


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        yield broker


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has everything installed but braidmq: folders on PYTHONPATH give packages, but no editable ones."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{sysconfig.get_path("purelib")}" exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


def test_the_source_runs_from_a_zip_without_compiled_modules(tmp_path: Path, archive: Path, history: FakeHistoryService) -> None:
    row = history.add("plant/1")

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(archive), history.address], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str([row["position"]])


@pytest.mark.timeout(180)
@pytest.mark.needs("java")
def test_a_job_submitted_with_the_zip_reads_streams_writes_and_runs_jobs(
    tmp_path: Path, archive: Path, bare_python: Path, broker: Broker
) -> None:
    with Wire(broker.host, broker.port).connect("p") as client:
        client.publish("plant/1", b"a", 1)
        client.publish("plant/2", b"b", 1)
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    settings: list[str | Path] = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--py-files", archive]
    words: list[str | Path] = [f"127.0.0.1:{broker.history_port}", f"mqtt://127.0.0.1:{broker.port}", tmp_path]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")}
    variables |= {"PYSPARK_PYTHON": str(bare_python), "SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=150, env=variables)

    assert "No module named 'braidmq'" in run(bare_python, "-c", "import pyspark, braidmq").stderr
    done = run(Path(sys.executable).with_name("spark-submit"), *settings, application, *words)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(json.loads(done.stdout.splitlines()[0])) == [["plant/1", "a"], ["plant/2", "b"]]
    archived = pq.read_table(tmp_path / "lake", columns=["topic", "payload"]).to_pylist()
    assert sorted((row["topic"], row["payload"]) for row in archived) == [("copy/plant/1", b"a"), ("copy/plant/2", b"b")]
