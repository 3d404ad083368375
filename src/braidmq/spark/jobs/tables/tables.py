"""The tables that jobs write to: a directory of Parquet files, or a Delta table. Both take each batch of a query exactly once.

The name of a batch is the query's id and a number. A driver that restarts after a crash passes the same batch again, with the
same rows; `append` then does nothing, or finishes what was begun.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from braidmq.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["parquet", "delta"]


class QueryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the last commit of a query records about it. Commits of older versions have only the first two fields.

    `offset` is the end of the batch, as the source writes it into a checkpoint. `adopts` are the queries that this one replaces:
    it began where they ended. A table with rows but without records gets one with an empty `query`.
    """

    query: str
    batch: int = -1
    job: str = ""
    checkpoint: str = ""
    filters: tuple[str, ...] = ()
    offset: dict[str, Any] | None = None
    adopts: tuple[str, ...] = ()

    def words(self) -> str:
        """The query for an error message."""
        if not self.query:
            return "a program that recorded nothing about itself"
        if not self.checkpoint:
            return f"the query {self.query}, written by a version that did not record checkpoint and positions"
        about = f"checkpoint {self.checkpoint}, topic filters {' '.join(self.filters)}, last batch {self.batch}"
        return f"the query {self.query} of the job {self.job} ({about})"


class BatchName(msgspec.Struct, frozen=True):
    """A batch of a streaming query.

    `record` goes into the commit. `known` are the other queries that a new query accepts in the table; None: any, at any time.
    """

    query: str
    number: int
    record: QueryRecord | None = None
    known: frozenset[str] | None = None


class Written(msgspec.Struct, frozen=True):
    """The rows, files and bytes added to a table."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.rows + other.rows, self.files + other.files, self.size_bytes + other.size_bytes)


class Compacted(msgspec.Struct, frozen=True):
    """The number of files before and after compaction."""

    files_before: int = 0
    files_after: int = 0
    size_bytes: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.files_before + other.files_before, self.files_after + other.files_after, self.size_bytes + other.size_bytes
        )


class OutputTable(Protocol):
    """A table that takes each batch exactly once."""

    path: str

    def check_place(self) -> None:
        """Raise UsageError if the table cannot be written: another kind of table, a file, no permission. Needs no Spark."""

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that is in the table."""

    def records(self, until: str = "") -> list[QueryRecord]:
        """The last record of each query that has written to the table; the search may stop at the record of the query `until`."""

    def finish_commits(self) -> None:
        """Make all commits visible to readers. A driver may have died before that, and its query may never run again."""

    def append(self, frame: DataFrame, batch: BatchName) -> Written:
        """Add the rows of a batch unless the table has them. Runs on the driver."""

    def tidy(self, query: str, target_bytes: int, files_max: int) -> Compacted:
        """Compact the parts of the table that a query's last batch went to and that have more than `files_max` small files."""

    def read(self, spark: SparkSession) -> DataFrame:
        """The whole table."""


def check_others(batch: BatchName, path: str, has_commits: bool, records: Iterable[QueryRecord]) -> None:
    """Raise UsageError if a batch must not be added to the table at `path`: another query writes there, or took over."""
    if batch.known is None:
        return
    for each in records:
        if batch.query in each.adopts:
            raise taken_over(path, each)
        is_stranger = each.query != batch.query and each.query not in batch.known
        if is_stranger and not has_commits:
            hint = "use another table for one of the two, or use --append-anyway"
            raise UsageError(f"{each.words()} has started to write to the table {path} in the meantime", hint)


def taken_over(path: str, by: QueryRecord) -> UsageError:
    """The error for a query that another query has replaced."""
    hint = f"continue with --checkpoint {by.checkpoint}, or use --append-anyway if duplicate rows are acceptable"
    return UsageError(f"the table {path} was adopted by {by.words()}", hint)


def check_folder(root: Path, what: str) -> None:
    """Raise UsageError unless files can be written to a directory, which need not exist yet."""
    there = next(each for each in (root, *root.parents) if each.exists())
    if not there.is_dir():
        raise UsageError(f"{what} cannot be at {root}: {there} is a file", "choose another path")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as problem:
        hint = "choose another path, or run the job as another user"
        raise UsageError(f"{what} cannot be at {root}: {there} cannot be written: {problem.strerror}", hint) from None


def for_spark(place: str | Path) -> str:
    """A path or address for Spark. Not percent-encoded as a URI: Spark would take the percent signs literally."""
    root = local_path(str(place))
    return str(place) if root is None else f"file://{root}"


def local_path(path: str) -> Path | None:
    """A local path in any notation; None for any other address."""
    if path.startswith("file:"):
        path = path.removeprefix("file:").replace("//", "", 1) if path.startswith("file://") else path.removeprefix("file:")
    return None if "://" in path else Path(path).absolute()


def open_table(kind: Kind, path: str, partitioned_by: Sequence[str]) -> OutputTable:
    """The table at a path, which need not exist yet; raises UsageError for an invalid path."""
    if kind == "delta":
        from braidmq.spark.jobs.tables.delta_table import DeltaFiles

        return DeltaFiles(path, partitioned_by)
    from braidmq.spark.jobs.tables.parquet_table import ParquetTable

    return ParquetTable(path, partitioned_by)
