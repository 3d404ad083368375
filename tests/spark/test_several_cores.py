"""Spark on three cores: each row is written and read exactly once, although a core is killed during both."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.flight import connect
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.several_cores import CoresOfProcesses
from tests.spark.sink.frames import rows

pytestmark = [pytest.mark.timeout(240), pytest.mark.needs("java"), pytest.mark.needs("etcd")]

CLUSTER: dict[str, object] = {"lease": "5s", "home_wait": "20s"}
ROWS = 40_000


class Kill(threading.Thread):
    """kill -9 of one core once another one has this many records, and its restart."""

    def __init__(self, core: NodeProcess, watched: str, records: int) -> None:
        super().__init__()
        self.is_done = False
        self.is_over = threading.Event()
        self._core = core
        self._watched = watched
        self._records = records

    def run(self) -> None:
        with connect(self._watched, retry_s=60.0) as client:
            while client.read("t/#", columns=["position"]).read_all().num_rows < self._records:
                if self.is_over.wait(0.05):
                    return
        self._core.kill()
        self._core.start()
        self.is_done = True


def test_rows_are_written_and_read_once_although_cores_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    with CoresOfProcesses(tmp_path, 0, serves_history=True, cluster=CLUSTER) as cluster:
        cores = dict(zip(cluster.history_ports, cluster.cores, strict=True))
        services = {name: f"127.0.0.1:{port}" for name, port in cluster.history_ports.items()}
        brokers = ",".join(f"mqtt://127.0.0.1:{core.port}" for core in cluster.cores)

        kill = Kill(cores["core1"], services["core2"], ROWS // 20)
        kill.start()
        try:
            sink = rows(spark, ROWS, partitions=4).write.format("braidmq").option("servers", brokers)
            sink.option("retryTimeout", "60s").mode("append").save()
        finally:
            kill.is_over.set()
            kill.join()
        assert kill.is_done, "all rows were written before a core was killed"

        read: list[DataFrame] = []
        killed: list[int] = []

        def keep(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").json(str(tmp_path / "out" / f"batch={number}"))
            read.append(batch)
            if not killed:
                killed.append(number)
                cores["core3"].kill()
                cores["core3"].start()

        options = {"servers": ",".join(services.values()), "startingOffsets": "earliest", "maxRowsPerTrigger": str(ROWS // 4)}
        source = spark.readStream.format("braidmq").options(**options, retryTimeout="60s").load("t/#")
        query = (
            source.selectExpr("shard", "position", "CAST(payload AS STRING) AS payload")
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    assert killed
    assert len(read) > 2, "the killed core was needed by no batch after it"
    found = spark.read.schema("shard int, position long, payload string").json(str(tmp_path / "out")).collect()
    assert sorted(int(row["payload"]) for row in found) == list(range(ROWS))
    assert len({(row["shard"], row["position"]) for row in found}) == ROWS
