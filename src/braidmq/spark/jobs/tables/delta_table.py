"""A Delta table, written with `deltalake` and without Delta's jars. Each batch is one transaction that names the batch.

The commit info of each transaction has the record of its query (`tables.QueryRecord`) under `braidmq`.

Compaction is a separate transaction that changes no rows, so the driver may die before or after it. If two compactions read the
same files, deltalake lets both commit, which duplicates rows. So ours take a lock in the table's file system. An object store has
no locks; there, tables are compacted only on request.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.tables.parquet_table import OWN, own_place
from braidmq.spark.jobs.tables.tables import (
    BatchName,
    Compacted,
    QueryRecord,
    Written,
    check_folder,
    check_others,
    for_spark,
    local_path,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The values of the partition columns.
Partition = tuple[Any, ...]

_RECORD: Final = "braidmq"  # the key of our record in the commit info
_COMMITS_FIRST: Final = 16
_COMMITS_MAX: Final = 100_000  # searched for records


class DeltaFiles:
    """A table at a path or address that deltalake supports. The rows of a batch pass through the driver's memory."""

    def __init__(self, path: str, partitioned_by: Sequence[str] = ()) -> None:
        """Raises UsageError if deltalake is missing, or the path is invalid."""
        try:
            import deltalake
        except ImportError:
            raise UsageError("Delta tables need deltalake", "pip install 'braidmq[delta]'") from None
        self._delta = deltalake
        self.path = self._path = path
        self._root = local_path(path)
        if self._root is not None and "%" in str(self._root):
            raise UsageError(f"deltalake cannot use {self._root}: it treats % as an escape character", "choose another name")
        self._partitioned_by = list(partitioned_by)
        self._touched: set[Partition] | None = None  # by the last batch; None: unknown
        self._is_checked = False  # other queries have been checked

    def check_place(self) -> None:
        """Raise UsageError if the table cannot be written: another kind of table, a file, no permission."""
        if self._root is None:
            return
        check_folder(self._root, "a table")
        if (self._root / OWN / "commits").is_dir():
            raise UsageError(f"there is a table of Parquet files at {self._root}", "give --table parquet, or another path")

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that is in the table."""
        table = self._open()
        version = None if table is None else table.transaction_version(query)
        return None if version is None else int(version)

    def records(self, until: str = "") -> list[QueryRecord]:
        """The last record of each query that has written to the table; the search may stop at the record of the query `until`."""
        table = self._open()
        if table is None:
            return []
        found: dict[str, QueryRecord] = {}
        limit = _COMMITS_FIRST
        while True:
            commits = table.history(limit)
            for each in commits:
                record = _record_in(each)
                if record is not None:
                    found.setdefault(record.query, record)
            if until in found or len(commits) < limit or limit >= _COMMITS_MAX:
                break
            limit *= 8
        if not found and _files_of(table):
            return [QueryRecord("")]
        return list(found.values())

    def finish_commits(self) -> None:
        """Does nothing: transactions are atomic."""

    def append(self, frame: DataFrame, batch: BatchName) -> Written:
        """Add the rows of a batch, unless the table has a transaction of this or a later batch.

        Raises UsageError if another query has taken over, which is checked with the first batch.
        """
        done = self.last_batch(batch.query)
        if not self._is_checked:
            check_others(batch, self._path, done is not None, self.records(batch.query))
            self._is_checked = True
        if done is not None and done >= batch.number:
            self._touched = None  # an earlier driver may have died before it compacted
            return Written()
        rows = frame.toArrow()
        properties = self._delta.CommitProperties(
            custom_metadata=None if batch.record is None else {_RECORD: msgspec.json.encode(batch.record).decode()},
            app_transactions=[self._delta.Transaction(batch.query, batch.number)],
        )
        before = {file["path"] for file in self._files()}
        self._delta.write_deltalake(
            self._path, rows, mode="append", partition_by=self._partitioned_by, schema_mode="merge", commit_properties=properties
        )
        added = [file for file in self._files() if file["path"] not in before]
        self._touched = set(map(self._partition_of, added))
        return Written(rows.num_rows, len(added), sum(file["size_bytes"] for file in added))

    def read(self, spark: SparkSession) -> DataFrame:
        """The whole table."""
        self._check_exists()
        table = self._delta.DeltaTable(self._path)
        files, base = table.file_uris(), self._path
        if self._root is not None:
            # deltalake percent-encodes the directory of a file, but not its name.
            encoded, base = urlsplit(table.table_uri).path, for_spark(self._root)
            files = [for_spark(self._root / file.removeprefix(encoded)) for file in files]
        return spark.read.option("basePath", base).option("mergeSchema", "true").parquet(*files)

    def tidy(self, query: str, target_bytes: int, files_max: int) -> Compacted:
        """Compact the partitions of the last batch that have more than `files_max` small files; not in an object store.

        Conflicts with other writers are left to the next batch.
        """
        done = Compacted()
        if self._root is None:
            return done
        with self._alone() as is_alone:
            table = self._open() if is_alone else None
            if table is None:
                return done
            small = [file for file in _files_of(table) if file["size_bytes"] * 2 < target_bytes]
            for partition, count in Counter(map(self._partition_of, small)).items():
                is_touched = self._touched is None or partition in self._touched
                if count > files_max and is_touched and None not in partition:
                    filters = [(name, "=", str(value)) for name, value in zip(self._partitioned_by, partition, strict=True)]
                    with contextlib.suppress(self._delta.exceptions.CommitFailedError):
                        done += _compacted(table.optimize.compact(partition_filters=filters or None, target_size=target_bytes))
        return done

    def compact(self, target_bytes: int, keep_hours: int) -> Compacted:
        """Merge small files in one transaction, and remove files that no version of the last `keep_hours` uses.

        Does nothing while another compaction is running, which cannot be detected in an object store.
        """
        self._check_exists()
        with self._alone() as is_alone:
            if not is_alone:
                return Compacted()
            table = self._delta.DeltaTable(self._path)
            done = _compacted(table.optimize.compact(target_size=target_bytes))
            table.vacuum(retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False)
            return done

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Take the compaction lock of the table; yields whether that succeeded."""
        place = own_place(self._path, "compacting")
        if place is None:
            yield True
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _open(self) -> Any | None:
        try:
            is_there = self._delta.DeltaTable.is_deltatable(self._path)
            return self._delta.DeltaTable(self._path) if is_there else None
        except (OSError, self._delta.exceptions.DeltaError) as problem:
            detail = (str(problem).splitlines() or [type(problem).__name__])[0]
            raise UsageError(
                f"the Delta table at {self._path} cannot be opened: {detail}", "check the address and access"
            ) from None

    def _check_exists(self) -> None:
        if not self._delta.DeltaTable.is_deltatable(self._path):
            raise UsageError(f"there is no Delta table at {self._path}", "give the path that a job wrote to")

    def _files(self) -> list[dict[str, Any]]:
        table = self._open()
        return [] if table is None else _files_of(table)

    def _partition_of(self, file: dict[str, Any]) -> Partition:
        return tuple(file[f"partition.{name}"] for name in self._partitioned_by)


def _record_in(commit: dict[str, Any]) -> QueryRecord | None:
    text = commit.get(_RECORD)
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=QueryRecord)
    except msgspec.MsgspecError:
        return None  # by another program or a later version


def _files_of(table: Any) -> list[dict[str, Any]]:
    """The files of a table: `path`, `size_bytes`, and `partition.NAME` for each partition column."""
    actions = pa.table(table.get_add_actions(flatten=True))
    kept = [name for name in actions.column_names if name in ("path", "size_bytes") or name.startswith("partition.")]
    rows: list[dict[str, Any]] = actions.select(kept).to_pylist()
    return rows


def _compacted(figures: dict[str, Any]) -> Compacted:
    added = json.loads(figures["filesAdded"])
    return Compacted(figures["numFilesRemoved"], figures["numFilesAdded"], added["totalSize"])
