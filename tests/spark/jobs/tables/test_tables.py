"""Tables: every batch once, whatever crashes where; and compaction, which nobody notices."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.compact import old_enough
from braidmq.spark.jobs.tables import parquet_table
from braidmq.spark.jobs.tables.delta_table import DeltaFiles
from braidmq.spark.jobs.tables.parquet_table import OWN, ParquetTable, exchange
from braidmq.spark.jobs.tables.tables import BatchName, Compacted, OutputTable, Written, local_path, open_table

QUERY = "0f6a1a52-query"


class Crash(BaseException):
    """What a driver does not survive."""


def frame_of(spark: SparkSession, numbers: range) -> DataFrame:
    return spark.range(numbers.start, numbers.stop, 1, 2).selectExpr("id AS number", "IF(id % 2 = 0, 'a/+', 'b') AS pattern")


def numbers_in(table: OutputTable, spark: SparkSession) -> list[int]:
    return sorted(row["number"] for row in table.read(spark).collect())


def visible(root: Path) -> list[Path]:
    return [each for folder in ParquetTable(str(root)).directories() for each in folder.glob("*.parquet")]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_batch_that_comes_again_is_not_added_again(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "lake"), ["pattern"])  # type: ignore[arg-type]

    first = table.append(frame_of(spark, range(10)), BatchName(QUERY, 0))
    again = table.append(frame_of(spark, range(10)), BatchName(QUERY, 0))
    table.append(frame_of(spark, range(10, 16)), BatchName(QUERY, 1))
    other = table.append(frame_of(spark, range(16, 20)), BatchName("another", 0))

    assert (first.rows, again, other.rows) == (10, Written(), 4)
    assert numbers_in(table, spark) == list(range(20))
    assert {row["pattern"] for row in table.read(spark).collect()} == {"a/+", "b"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("parquet", "my lake"), ("parquet", "see ä"), ("parquet", "50%20off"), ("delta", "my lake"), ("delta", "see ä")],
)
def test_a_table_may_be_in_a_folder_of_any_name(spark: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    table = open_table(kind, str(tmp_path / name / "lake"), ["pattern"])  # type: ignore[arg-type]

    written = table.append(frame_of(spark, range(10)), BatchName(QUERY, 0))

    assert written.rows == 10
    assert numbers_in(table, spark) == list(range(10))
    assert [each.name for each in tmp_path.iterdir()] == [name]


def crash_at(monkeypatch: pytest.MonkeyPatch, where: object, name: str, calls: int) -> None:
    """Let the given call of a function, counted from 1, be the driver's last."""
    real: Callable[..., object] = getattr(where, name)
    left = [calls]

    def call(*arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize(
    ("where", "name", "calls"),
    [
        (parquet_table, "_sync", 1),  # written, not committed
        (Path, "replace", 1),  # the commit is not in its place
        (os, "rename", 1),  # committed, nothing moved
        (os, "rename", 2),  # some files moved
        (shutil, "rmtree", 2),  # all moved, not cleared up
    ],
    ids=["before commit", "in commit", "before moves", "between moves", "after moves"],
)
def test_a_crash_at_any_step_leaves_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: object, name: str, calls: int
) -> None:
    table = ParquetTable(str(tmp_path), ["pattern"])
    table.append(frame_of(spark, range(4)), BatchName(QUERY, 0))
    seen = len(visible(tmp_path))
    frame = frame_of(spark, range(4, 10))
    with monkeypatch.context() as patched:
        crash_at(patched, where, name, calls)
        with pytest.raises(Crash):
            table.append(frame, BatchName(QUERY, 1))
    assert len(visible(tmp_path)) >= seen

    # Another driver, which may cut the batch into other files.
    table = ParquetTable(str(tmp_path), ["pattern"])
    table.append(frame_of(spark, range(4, 10)).coalesce(1), BatchName(QUERY, 1))

    assert numbers_in(table, spark) == list(range(10))
    assert not list((tmp_path / OWN / "staging").rglob("*.parquet"))


def test_a_commit_is_finished_by_the_next_batch_too(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ParquetTable(str(tmp_path))
    frame = frame_of(spark, range(6))
    with monkeypatch.context() as patched:
        crash_at(patched, os, "rename", 2)
        with pytest.raises(Crash):
            table.append(frame, BatchName(QUERY, 0))

    table.append(frame_of(spark, range(6, 8)), BatchName(QUERY, 1))

    assert numbers_in(table, spark) == list(range(8))


def write_small_files(folder: Path, count: int, rows: int = 10) -> list[int]:
    folder.mkdir(parents=True)
    for number in range(count):
        values = list(range(number * rows, (number + 1) * rows))
        pq.write_table(
            pa.table({"number": values, "at": [datetime(2024, 3, 1, tzinfo=UTC)] * rows}), folder / f"{number:04d}.parquet"
        )
    return list(range(count * rows))


def numbers_of(folder: Path) -> list[int]:
    return sorted(value for file in folder.glob("*.parquet") for value in pq.read_table(file)["number"].to_pylist())


def test_compaction_joins_small_files_and_leaves_large_and_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "date=2024-03-01"
    expected = write_small_files(folder, 20)
    table = ParquetTable(str(tmp_path))
    large = folder / "large.parquet"
    pq.write_table(pa.table({"number": [1000], "text": [os.urandom(200_000)]}), large)
    real_link = os.link
    linked: list[str] = []

    def link(source: Path, target: Path) -> None:
        linked.append(Path(source).name)
        real_link(source, target)

    monkeypatch.setattr(os, "link", link)
    joining = parquet_table._join

    def join(*arguments: object) -> list[Path]:
        made: list[Path] = joining(*arguments)  # type: ignore[arg-type]
        pq.write_table(pa.table({"number": [2000]}), folder / "came-meanwhile.parquet")
        return made

    monkeypatch.setattr(parquet_table, "_join", join)

    done = table.compact(folder, 300_000)

    assert (done.files_before, done.files_after) == (20, 1)
    assert numbers_of(folder) == [*expected, 1000, 2000]
    assert sorted(linked) == ["came-meanwhile.parquet", "large.parquet"]
    assert len(list(folder.iterdir())) == 3
    assert not list((tmp_path / OWN / "staging").iterdir())
    [joined] = [each for each in folder.iterdir() if each.name.startswith("compact-")]
    assert pq.read_metadata(joined).num_row_groups == 1
    assert table.compact(folder, 300_000).files_before == 2  # the joined one and the newcomer


def test_a_directory_listing_during_compaction_shows_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "p"
    expected = write_small_files(folder, 8)
    table = ParquetTable(str(tmp_path))
    looks: list[list[int]] = []

    def look_around(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            looks.append(numbers_of(folder))
            try:
                return real(*arguments, **named)
            finally:
                looks.append(numbers_of(folder))

        return call

    with monkeypatch.context() as patched:
        for name in ("rename", "link", "fsync", "rmdir", "mkdir"):
            patched.setattr(os, name, look_around(name))
        table.compact(folder, 10**6)

    assert len(looks) > 4
    assert all(look == expected for look in looks)
    assert len(list(folder.iterdir())) == 1


def test_a_compaction_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "p"
    expected = write_small_files(folder, 3)
    crash_at(monkeypatch, parquet_table, "exchange", 1)

    with pytest.raises(Crash):
        ParquetTable(str(tmp_path)).compact(folder, 10**6)

    assert numbers_of(folder) == expected
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("is_before", [True, False], ids=["before it joins", "after it has joined"])
def test_of_two_compactions_of_a_directory_one_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool) -> None:
    folder = tmp_path / "p"
    expected = write_small_files(folder, 3)
    joining = parquet_table._join
    quicker: list[Compacted] = []

    def join(*arguments: object) -> list[Path]:
        monkeypatch.setattr(parquet_table, "_join", joining)
        if not is_before:
            made: list[Path] = joining(*arguments)  # type: ignore[arg-type]
        quicker.append(ParquetTable(str(tmp_path)).compact(folder, 10**6))
        return joining(*arguments) if is_before else made  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_table, "_join", join)

    slower = ParquetTable(str(tmp_path)).compact(folder, 10**6)

    assert numbers_of(folder) == expected
    assert ([each.files_before for each in quicker], slower) == ([3], Compacted())
    assert not list((tmp_path / OWN / "staging").iterdir())


def test_files_of_a_killed_compaction_are_removed_when_no_other_compaction_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in "pqr"]
    for each in folders:
        write_small_files(each, 3)
    left = tmp_path / OWN / "staging" / "compact-of-one-that-was-killed"
    write_small_files(left, 1)
    joining = parquet_table._join
    was_removed: list[bool] = []

    def join(*arguments: object) -> list[Path]:
        monkeypatch.setattr(parquet_table, "_join", joining)
        was_removed.append(not left.exists())
        left.mkdir(exist_ok=True)  # as that of another, which began later
        ParquetTable(str(tmp_path)).compact(folders[1], 10**6)
        was_removed.append(not left.exists())
        made: list[Path] = joining(*arguments)  # type: ignore[arg-type]
        return made

    monkeypatch.setattr(parquet_table, "_join", join)

    ParquetTable(str(tmp_path)).compact(folders[0], 10**6)
    ParquetTable(str(tmp_path)).compact(folders[2], 10**6)

    assert was_removed == [True, False]
    assert not list((tmp_path / OWN / "staging").iterdir())
    assert [len(numbers_of(each)) for each in folders] == [30, 30, 30]


def test_small_files_are_bounded_while_batches_come(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path), ["pattern"])
    total = Compacted()
    for number in range(6):
        table.append(frame_of(spark, range(number * 4, number * 4 + 4)).coalesce(1), BatchName(QUERY, number))
        total += table.tidy(QUERY, 10**6, files_max=3)
        assert all(len(list(folder.glob("*.parquet"))) <= 3 for folder in table.directories())

    assert total.files_before > total.files_after > 0
    assert numbers_in(table, spark) == list(range(24))


def test_an_exchange_swaps_both_files_or_neither(tmp_path: Path) -> None:
    (tmp_path / "one" / "x").mkdir(parents=True)
    (tmp_path / "other" / "y").mkdir(parents=True)

    exchange(tmp_path / "one", tmp_path / "other")

    assert [each.name for each in (tmp_path / "one").iterdir()] == ["y"]
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["x"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "nowhere")


def test_a_parquet_table_is_a_directory_and_says_so() -> None:
    assert local_path("file:///data/lake") == local_path("file:/data/lake") == Path("/data/lake")
    assert local_path("s3://bucket/lake") is None
    with pytest.raises(UsageError, match=r"cannot be at s3://: .*--table delta"):
        ParquetTable("s3://bucket/lake")


def test_a_folder_that_deltalake_would_not_find_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose another name"):
        DeltaFiles(str(tmp_path / "50%20off"))


def test_days_are_compacted_when_they_are_over_for_long_enough() -> None:
    until = datetime(2024, 3, 2, 0, 0, tzinfo=UTC)

    assert old_enough(Path("date=2024-03-01/pattern=a"), until)
    assert not old_enough(Path("date=2024-03-02/pattern=a"), until)
    assert not old_enough(Path("date=__HIVE_DEFAULT_PARTITION__"), until)
    assert old_enough(Path("pattern=a"), until)
    assert old_enough(Path("date=2024-03-02/pattern=a"), None)
