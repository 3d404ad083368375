"""One Spark session for all measurements of a run, configured like those of pipeline jobs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.brokers import ROOT
from benchmarks.spark.memory_source import MemorySource
from braidmq.spark.jobs.framework.session import SparkOptions, open_session


@contextlib.contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A session with two threads; its files go below ``folder``, and its workers can import the benchmarks."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    places = {"spark.local.dir": str(folder / "spark"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = open_session("bench", SparkOptions("local[2]", places))
    spark.dataSource.register(MemorySource)
    try:
        yield spark
    finally:
        spark.stop()
