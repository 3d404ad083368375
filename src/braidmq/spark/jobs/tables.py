"""The tables that jobs write to: a directory of Parquet files, or a Delta table. Both take each batch of a query exactly once.

A batch has a name, the query's id and a number. A driver that dies and starts again gives the same batch once more, with the same
rows; `append` then does nothing, or finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["parquet", "delta"]


class BatchName(msgspec.Struct, frozen=True):
    """A batch of a streaming query."""

    query: str
    number: int


class Written(msgspec.Struct, frozen=True):
    """What was added to a table."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.rows + other.rows, self.files + other.files, self.size_bytes + other.size_bytes)


class Compacted(msgspec.Struct, frozen=True):
    """What was made smaller in number: files before and after."""

    files_before: int = 0
    files_after: int = 0
    size_bytes: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.files_before + other.files_before, self.files_after + other.files_after, self.size_bytes + other.size_bytes
        )


class Table(Protocol):
    """A table whose rows come in batches, each of them once."""

    def append(self, frame: DataFrame, batch: BatchName) -> Written:
        """Add the rows of a batch, unless they are in the table already. Runs on the driver."""

    def tidy(self, query: str, target_bytes: int, files_max: int) -> Compacted:
        """Compact what the last batch of a query went to, where there are more small files than that."""

    def read(self, spark: SparkSession) -> DataFrame:
        """The whole table as of now."""


def for_spark(place: str | Path) -> str:
    """A path or address as Spark takes it. That is no URI: Spark would look for a folder with the percent signs of one."""
    root = local_path(str(place))
    return str(place) if root is None else f"file://{root}"


def local_path(path: str) -> Path | None:
    """A path of this machine, however it is written; None for an address of something else."""
    if path.startswith("file:"):
        path = path.removeprefix("file:").replace("//", "", 1) if path.startswith("file://") else path.removeprefix("file:")
    return None if "://" in path else Path(path).absolute()


def open_table(kind: Kind, path: str, partitioned_by: Sequence[str]) -> Table:
    """The table at a path, which need not be there yet; raises UsageError if it cannot be one."""
    if kind == "delta":
        from braidmq.spark.jobs.delta_table import DeltaFiles

        return DeltaFiles(path, partitioned_by)
    from braidmq.spark.jobs.parquet_table import ParquetTable

    return ParquetTable(path, partitioned_by)
