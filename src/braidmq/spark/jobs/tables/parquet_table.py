"""A table that is a directory of Parquet files, on a file system that all machines share.

    date=2024-03-01/pattern=plant%2F+%2Ftemp/0000000012-3f2a90c1-0003.parquet      batch 12 of a query, file 3
    _braidmq/commits/QUERY.json      the last batch of each query, where its files go, and its `tables.QueryRecord`
    _braidmq/staging/                files being written
    _braidmq/lock, compacting        held while files are moved or directories exchanged; shared by running compactions

Spark's tasks write a whole batch into the staging directory. Then its commit is recorded atomically, and then its files are moved
to where readers see them. A crash before the commit leaves only staged files, which the next attempt replaces; after it, the next
attempt moves the remaining files and writes nothing. Readers of the directory never see a row twice or see one disappear; they
may see a batch appear in parts. Spark and pyarrow skip names that begin with `_`.

Compaction builds a new directory beside the old one, and exchanges the two with one system call (`renameat2`). A reader that
lists the directory sees either only the small files or only the large ones. A query that listed the small files and opens one
later fails with "file not found", and works when it is run again. Of two compactions of a directory, the slower one finds that
its small files are gone, and gives up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.base.errors import UsageError
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

OWN: Final = "_braidmq"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
# Only one row group is in memory at a time.
_ROW_GROUP_ROWS: Final = 100_000


class Commit(msgspec.Struct, frozen=True):
    """The last batch of a query that is in the table: its staged files, and their destinations in the table.

    Older versions wrote no record, and ignore it.
    """

    batch: int
    files: dict[str, str]
    record: QueryRecord | None = None


class ParquetTable:
    """A directory of Parquet files. Used on the driver; one job at a time moves or exchanges files, others wait."""

    def __init__(self, path: str, partitioned_by: Sequence[str] = ()) -> None:
        """Raises UsageError for an address that is not a file system."""
        root = local_path(path)
        if root is None:
            scheme = path.partition("://")[0]
            hint = "give a directory that all machines share, or write a Delta table with --table delta"
            raise UsageError(f"a table of Parquet files cannot be at {scheme}://", hint)
        self.root = root
        self.path = str(root)
        self._partitioned_by = list(partitioned_by)
        self._staging = self.root / OWN / "staging"
        self._commits = self.root / OWN / "commits"

    def check_place(self) -> None:
        """Raise UsageError if the table cannot be written: another kind of table, a file, no permission."""
        check_folder(self.root, "a table")
        if (self.root / "_delta_log").is_dir():
            raise UsageError(f"there is a Delta table at {self.root}", "give --table delta, or another path")

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that is in the table."""
        commit = self._commit_of(query)
        return None if commit is None else commit.batch

    def records(self, until: str = "") -> list[QueryRecord]:
        """The last record of each query that has written to the table."""
        found = []
        for file in sorted(self._commits.glob("*.json")):
            commit = _read_commit(file)
            found.append(commit.record or QueryRecord(file.stem, commit.batch))
        if not found and any(self.directories()):
            return [QueryRecord("")]
        return found

    def finish_commits(self) -> None:
        """Move files of commits to where readers see them if the drivers died before doing so."""
        for file in self._commits.glob("*.json"):
            self._publish(_read_commit(file))

    def append(self, frame: DataFrame, batch: BatchName) -> Written:
        """Add the rows of a batch unless the table has them; raises UsageError if another query has taken over."""
        self._commits.mkdir(parents=True, exist_ok=True)
        done = self._commit_of(batch.query)
        check_others(batch, self.path, done is not None, self.records())
        if done is not None:
            self._publish(done)
            if done.batch >= batch.number:
                return Written()
        staged = self._staging / f"{batch.query}-{batch.number}"
        shutil.rmtree(staged, ignore_errors=True)
        # No more tasks than run at the same time: each writes a file to every directory that it has rows for.
        some = frame.coalesce(frame.sparkSession.sparkContext.defaultParallelism)
        writer = some.write.partitionBy(*self._partitioned_by) if self._partitioned_by else some.write
        writer.parquet(for_spark(staged))
        # Spark writes a file without rows if there is nothing to write.
        rows = {file: pq.read_metadata(file).num_rows for file in sorted(staged.rglob("*.parquet"))}
        files = [file for file, count in rows.items() if count]
        names = {
            str(file.relative_to(self.root)): str(
                file.relative_to(staged).with_name(f"{batch.number:010d}-{batch.query[:8]}-{place:04d}.parquet")
            )
            for place, file in enumerate(files)
        }
        written = Written(sum(rows.values()), len(files), sum(map(_size, files)))
        for each in files:
            _sync(each)
        commit = Commit(batch.number, names, batch.record)
        with self._locked():
            # Another query may have committed since this batch began; one that commits after this point finds this commit.
            check_others(batch, self.path, done is not None, self.records())
            self._record(batch.query, commit)
        self._publish(commit)
        shutil.rmtree(staged, ignore_errors=True)
        return written

    def read(self, spark: SparkSession) -> DataFrame:
        """The whole table; raises UsageError if nothing was written to it yet."""
        if not any(self.directories()):
            raise UsageError(f"there is no Parquet file in {self.root}", "give the directory that a job wrote to")
        return spark.read.option("mergeSchema", "true").parquet(for_spark(self.root))

    def directories(self) -> Iterator[Path]:
        """The directories that contain files of the table."""
        for folder, below, files in os.walk(self.root):
            below[:] = sorted(each for each in below if not each.startswith(("_", ".")))
            if any(each.endswith(".parquet") for each in files):
                yield Path(folder)

    def tidy(self, query: str, target_bytes: int, files_max: int) -> Compacted:
        """Compact the directories of a query's last batch that have more than `files_max` small files."""
        commit = self._commit_of(query)
        touched = sorted({Path(place).parent for place in commit.files.values()}) if commit else []
        return sum((self.compact(self.root / each, target_bytes, files_max + 1) for each in touched), Compacted())

    def compact(self, directory: Path, target_bytes: int, files_min: int = 2) -> Compacted:
        """Merge the files of a directory that are smaller than half of the target, if there are at least `files_min` of them.

        Blocking, and independent of Spark: it may run on an executor.
        """
        small = _small_files(directory, target_bytes)
        if len(small) < max(files_min, 2):
            return Compacted()
        with self._building() as fresh:
            try:
                made = _join(small, fresh, target_bytes)
            except FileNotFoundError:
                return Compacted()  # another compaction was faster
            done = Compacted(len(small), len(made), sum(map(_size, made)))
            with self._locked():
                there = set(_files(directory))
                if not there.issuperset(small):
                    return Compacted()  # another compaction was faster: its file has the same rows
                # Large files and files added in the meantime are kept, as hard links.
                for each in there - set(small):
                    os.link(each, fresh / each.name)
                for each in made:
                    _sync(each)
                exchange(fresh, directory)
            return done

    def _commit_of(self, query: str) -> Commit | None:
        file = self._commits / f"{query}.json"
        return _read_commit(file) if file.exists() else None

    def _record(self, query: str, commit: Commit) -> None:
        partial = self._commits / f"{query}.partial"
        partial.write_bytes(msgspec.json.encode(commit))
        _sync(partial)
        partial.replace(self._commits / f"{query}.json")
        _sync(self._commits)

    def _publish(self, commit: Commit) -> None:
        """Move the files of a batch to where readers see them; files moved before are skipped."""
        with self._locked():
            for staged, place in commit.files.items():
                if (self.root / staged).exists():
                    target = self.root / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(self.root / staged, target)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        (self.root / OWN).mkdir(exist_ok=True)
        with open(self.root / OWN / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _building(self) -> Iterator[Path]:
        """A directory for a compaction to build in, removed at the end with its contents.

        Each compaction holds a shared lock meanwhile. A holder of the exclusive lock knows that leftovers belong to killed
        processes.
        """
        self._staging.mkdir(parents=True, exist_ok=True)
        with open(self.root / OWN / "compacting", "w") as lock:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for each in self._staging.glob("compact-*"):
                    shutil.rmtree(each, ignore_errors=True)
            fcntl.flock(lock, fcntl.LOCK_SH)
            fresh = self._staging / f"compact-{uuid4().hex}"
            fresh.mkdir()
            try:
                yield fresh
            finally:
                shutil.rmtree(fresh, ignore_errors=True)


def _read_commit(file: Path) -> Commit:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Commit)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"{file} is not a table commit: {problem}", "restore it from a copy, or use a new table") from None


def own_place(table: str, name: str) -> Path | None:
    """The path of a job's own file beside a table; None if the table is not in a file system."""
    root = local_path(table)
    return root / OWN / name if root is not None else None


def exchange(one: Path, other: Path) -> None:
    """Exchange two directories atomically; raises UsageError if the file system does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            hint = "compact a copy on a local disk, or write a Delta table with --table delta"
            raise UsageError(f"the file system of {other} cannot exchange two directories atomically", hint)
        raise OSError(code, os.strerror(code), str(other))


def _join(small: Sequence[Path], fresh: Path, target_bytes: int) -> list[Path]:
    """Copy the rows of some files, in the order of their names, into few files of about the target size."""
    made: list[Path] = []
    room = 0
    schema: pa.Schema | None = None
    with contextlib.ExitStack() as open_files:
        for file in small:
            found = pq.read_schema(file)
            # A column added later means files of two schemas; only files of the same schema are merged.
            if schema is None or not found.equals(schema) or room <= 0:
                open_files.close()
                schema, room = found, target_bytes
                made.append(fresh / f"compact-{uuid4().hex}.parquet")
                groups = open_files.enter_context(_RowGroups(made[-1], schema))
            room -= _size(file)
            for batch in pq.ParquetFile(file).iter_batches(_ROW_GROUP_ROWS):
                groups.add(batch)
    return made


class _RowGroups:
    """Writes batches to a file, in larger row groups than those of the small files."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> _RowGroups:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []
        self._rows = 0


def _files(directory: Path) -> list[Path]:
    return sorted(each for each in directory.glob("*.parquet") if not each.name.startswith(("_", ".")))


def _small_files(directory: Path, target_bytes: int) -> list[Path]:
    small = []
    for each in _files(directory):
        with contextlib.suppress(FileNotFoundError):  # another compaction removed it in the meantime
            if _size(each) * 2 < target_bytes:
                small.append(each)
    return small


def _size(file: Path) -> int:
    return file.stat().st_size


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
