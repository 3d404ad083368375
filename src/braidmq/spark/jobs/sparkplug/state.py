"""The births that are alive, from one batch of a query to the next: a directory `births` in the checkpoint.

    births/0000000012/      after batch 12: one row for each node or device that is alive, with all of its metrics
    births/0000000015/      after batch 15, the next one with births or deaths

Why here, and written with each batch: the table has all births too, but the last one of every node is to be found in it only by
reading all of it, and is lost when old days are removed. What is known belongs to a query and to how far it has come, and that is
what a checkpoint is: the two are copied, kept and removed together.

Why a number: a batch is done again if the driver died before Spark noted that it was done, whatever of it was written by then.
It must then begin with what was known before it, and not with its own births, or messages before a birth would lose their names.
So batch N reads the last one below N, and writes N; both stay until the next is written. Spark begins N + 1 only after N is done
wholly, and gives a repeated batch the same rows. So it makes no difference whether this is written before or after the table.

It stays small by itself: each one is whole, and older ones are removed.
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
    """See above. Used on the driver; the checkpoint may be wherever Spark can write."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._root = f"{for_spark(checkpoint)}/{_NAME}"

    def before(self, batch: int) -> DataFrame:
        """The births that are alive when a batch begins. What an earlier attempt at this batch wrote is removed."""
        found = self._numbers()
        self._remove(each for each in found if each >= batch)
        known = [each for each in found if each < batch]
        if not known:
            return self._spark.createDataFrame([], BIRTHS)
        return self._spark.read.schema(BIRTHS).parquet(self._path(known[-1]))

    def write(self, batch: int, births: DataFrame) -> None:
        """Keep those that are alive after a batch, and those from before it for another attempt; drop what is older."""
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
