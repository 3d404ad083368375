"""Stores the births that are alive between the batches of a query, in the directory `births` of the checkpoint.

    births/0000000012/      after batch 12: one row for each node or device that is alive, with all of its metrics
    births/0000000015/      after batch 15, the next one with births or deaths

Why in the checkpoint: the table has all births too, but finding the last one of every node there means reading all of it, and
births are lost when old days are removed. The known births belong to a query and its progress, as a checkpoint does, so the two
are copied, kept and removed together.

Why numbered: a batch is repeated if the driver died before Spark recorded it as done, whatever had been written by then. It must
then start with the births known before it, not with its own, or messages before a birth would lose their names. So batch N reads
the last directory below N, and writes N; both stay until the next one is written. Spark starts N + 1 only after all of N is done,
and gives a repeated batch the same rows. So it does not matter whether births are written before or after the table.

Each directory is complete, and older ones are removed, so the size stays small.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from braidmq.spark.jobs.sparkplug.frames import BIRTHS
from braidmq.spark.jobs.tables.tables import for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = "births"


class KeptBirths:
    """The stored births of a checkpoint, which may be anywhere Spark can write. Used on the driver."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._root = f"{for_spark(checkpoint)}/{_NAME}"

    def before(self, batch: int) -> DataFrame:
        """The births alive when a batch begins; removes what an earlier attempt at this batch wrote."""
        found = self._numbers()
        self._remove(each for each in found if each >= batch)
        known = [each for each in found if each < batch]
        if not known:
            return self._spark.createDataFrame([], BIRTHS)
        return self._spark.read.schema(BIRTHS).parquet(self._path(known[-1]))

    def write(self, batch: int, births: DataFrame) -> None:
        """Store the births alive after a batch; keeps those from before it for another attempt, and removes older ones."""
        births.where("until IS NULL").coalesce(1).write.parquet(self._path(batch))
        self._remove(self._numbers()[:-2])

    def _path(self, batch: int) -> str:
        return f"{self._root}/{batch:010d}"

    def _numbers(self) -> list[int]:
        root = self._hadoop_path(self._root)
        files = self._file_system(root)
        names = [each.getPath().getName() for each in files.listStatus(root)] if files.exists(root) else []
        return sorted(int(each) for each in names if each.isdecimal())

    def _remove(self, batches: Iterable[int]) -> None:
        for each in batches:
            path = self._hadoop_path(self._path(each))
            self._file_system(path).delete(path, True)

    def _hadoop_path(self, path: str) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: Any) -> Any:
        context: Any = self._spark.sparkContext
        return path.getFileSystem(context._jsc.hadoopConfiguration())
