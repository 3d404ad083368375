"""A Delta table, written through `deltalake` without any jar of Delta. Each batch is one transaction that names the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.tables import BatchName, Compacted, Written, for_spark, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaFiles:
    """A table at a path or address that deltalake knows. The rows of a batch pass through the driver's memory."""

    def __init__(self, path: str, partitioned_by: Sequence[str] = ()) -> None:
        """Raises UsageError if deltalake is missing, or the table cannot be there."""
        try:
            import deltalake
        except ImportError:
            raise UsageError("Delta tables need deltalake", "pip install 'braidmq[delta]'") from None
        self._delta = deltalake
        self._path = path
        self._root = local_path(path)
        if self._root is not None and "%" in str(self._root):
            raise UsageError(f"deltalake cannot use {self._root}: it takes % for the beginning of a code", "choose another name")
        self._partitioned_by = list(partitioned_by)

    def append(self, frame: DataFrame, batch: BatchName) -> Written:
        """Add the rows of a batch, unless a transaction of its name or of a later one is in the table."""
        before = self._version_of(batch.query)
        if before is not None and before >= batch.number:
            return Written()
        rows = frame.toArrow()
        properties = self._delta.CommitProperties(app_transactions=[self._delta.Transaction(batch.query, batch.number)])
        self._delta.write_deltalake(
            self._path, rows, mode="append", partition_by=self._partitioned_by, schema_mode="merge", commit_properties=properties
        )
        return Written(rows.num_rows, 1, rows.nbytes)

    def read(self, spark: SparkSession) -> DataFrame:
        """The whole table as of now."""
        if not self._delta.DeltaTable.is_deltatable(self._path):
            raise UsageError(f"there is no Delta table at {self._path}", "give the path that a job wrote to")
        table = self._delta.DeltaTable(self._path)
        files, base = table.file_uris(), self._path
        if self._root is not None:
            # deltalake encodes the folder of a file, as in a URI, and not the rest.
            encoded, base = urlsplit(table.table_uri).path, for_spark(self._root)
            files = [for_spark(self._root / file.removeprefix(encoded)) for file in files]
        return spark.read.option("basePath", base).option("mergeSchema", "true").parquet(*files)

    def compact(self, target_bytes: int, keep_hours: int) -> Compacted:
        """Join small files in one transaction, and remove files that no version of the last `keep_hours` has."""
        table = self._delta.DeltaTable(self._path)
        figures = table.optimize.compact(target_size=target_bytes)
        table.vacuum(retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False)
        added = figures.get("filesAdded") or {}
        size = added.get("totalSize", 0) if isinstance(added, dict) else 0
        return Compacted(figures["numFilesRemoved"], figures["numFilesAdded"], size)

    def _version_of(self, query: str) -> int | None:
        if not self._delta.DeltaTable.is_deltatable(self._path):
            return None
        version = self._delta.DeltaTable(self._path).transaction_version(query)
        return None if version is None else int(version)
