"""The Spark session of a job: created here for a command, or provided by spark-submit."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.framework.stop import holding_signals, quieten_py4j

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Defaults of all jobs.
_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",  # days of tables are days in UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what other readers expect
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # so that rows are not sorted by their directory first
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.streaming.stopTimeout": "10s",  # an interrupted batch may be in a call that cannot be cancelled
}
# Further defaults for a local session.
_LOCAL_DEFAULTS: Final = {
    "spark.log.level": "FATAL",  # the job reports failures itself, in one sentence
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


class SparkOptions(msgspec.Struct, frozen=True):
    """`--master` and `--conf`."""

    master: str = ""
    conf: Mapping[str, str] = {}


def open_session(name: str, options: SparkOptions) -> SparkSession:
    """The session of this process, with the format `braidmq`; raises UsageError if Spark is not available."""
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.errors import AnalysisException
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("pipeline jobs need Spark", "pip install 'braidmq[spark]'") from None
    from braidmq.spark.source.format import BraidDataSource

    builder = SparkSession.builder.appName(f"braidmq {name}")
    # spark-submit has already set the master, and its configuration takes precedence.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = options.master or ("" if is_submitted else "local[*]")
    if master:
        builder = builder.master(master)
    local = _LOCAL_DEFAULTS if master.startswith("local") else {}
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in {**_DEFAULTS, **local, **options.conf}.items():
        builder = builder.config(key, value)
    quieten_py4j()
    with holding_signals():
        spark = builder.getOrCreate()
    with suppress(AnalysisException):  # Spark may have registered it by name already
        spark.dataSource.register(BraidDataSource)
    return spark


def check_java() -> None:
    """Raise UsageError if Spark will not find Java."""
    home = os.environ.get("JAVA_HOME")
    if "PYSPARK_GATEWAY_PORT" in os.environ or shutil.which("java", path=f"{home}/bin" if home else None):
        return
    where = f"in JAVA_HOME, which is {home}" if home else "on the PATH"
    raise UsageError(f"Spark needs Java, but none was found {where}", "install Java 17 or 21, or set JAVA_HOME to its directory")
