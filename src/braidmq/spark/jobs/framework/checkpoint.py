"""Reads Spark's checkpoint of a streaming query: the query id, the planned batches and the finished batches.

    metadata        {"id": "<query>"}
    offsets/12      the end of batch 12, written before it runs: `v1`, a line about the engine, a line for each source
    commits/12      batch 12 is finished

Spark keeps the last hundred batches. A local checkpoint is read without Spark, others through Spark's file systems.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.tables.tables import for_spark, local_path
from braidmq.spark.source.offsets import Offset, parse_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT: Final = "v1"
_ENGINE_LINES: Final = 2  # the version, and metadata of the engine


class Files(Protocol):
    """The files of a checkpoint."""

    def names(self, folder: str) -> list[str]:
        """The files in a directory; empty if it does not exist."""

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""


class LocalFiles:
    """Files below a local directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """The files in a directory; empty if it does not exist."""
        place = self._root / folder
        return [each.name for each in place.iterdir()] if place.is_dir() else []

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        try:
            return (self._root / name).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None


class SparkFiles:
    """Files below an address that Spark can read; for the driver."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root

    def names(self, folder: str) -> list[str]:
        """The files in a directory; empty if it does not exist."""
        path, files = self._place(folder)
        return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        path, files = self._place(name)
        if not files.exists(path):
            return None
        jvm: Any = self._spark._jvm
        stream = files.open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _place(self, name: str) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm
        context: Any = self._spark.sparkContext
        path = jvm.org.apache.hadoop.fs.Path(f"{for_spark(self._root)}/{name}")
        return path, path.getFileSystem(context._jsc.hadoopConfiguration())


class Checkpoint:
    """The checkpoint at a path or address; each call reads its current state."""

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self._files = files

    def query(self) -> str | None:
        """The id of its query; None for a new checkpoint."""
        text = self._files.read("metadata")
        if not text:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            hint = "give a new --checkpoint"
            raise UsageError(f"{self.path}/metadata does not belong to a Spark checkpoint", hint) from None

    def planned(self) -> int | None:
        """The last planned batch; if it is not finished, Spark runs it again."""
        return self._last("offsets")

    def finished(self) -> int | None:
        """The last finished batch."""
        return self._last("commits")

    def end_of(self, batch: int) -> dict[str, Any] | None:
        """The end of a batch as the source wrote it; None if it is unknown."""
        lines = (self._files.read(f"offsets/{batch}") or "").splitlines()
        if len(lines) != _ENGINE_LINES + 1 or lines[0] != _FORMAT:
            return None
        try:
            found = json.loads(lines[_ENGINE_LINES])
        except ValueError:
            return None  # still being written
        return found if isinstance(found, dict) else None

    def begin(self) -> Offset | None:
        """The start of the first unfinished batch; None if unknown, for example before the first batch is planned."""
        done = self.finished()
        end = self.end_of(0 if done is None else done)
        try:
            offset = None if end is None else parse_offset(end)
        except UsageError:
            return None
        return offset if offset is None or done is not None else offset.began

    def _last(self, folder: str) -> int | None:
        return max((int(each) for each in self._files.names(folder) if each.isdecimal()), default=None)


def local_checkpoint(path: str) -> Checkpoint | None:
    """The checkpoint at a local path; None for an address that only Spark can read."""
    root = local_path(path)
    return None if root is None else Checkpoint(path, LocalFiles(root))


def open_checkpoint(spark: SparkSession, path: str) -> Checkpoint:
    """The checkpoint at a path or address."""
    return local_checkpoint(path) or Checkpoint(path, SparkFiles(spark, path))
