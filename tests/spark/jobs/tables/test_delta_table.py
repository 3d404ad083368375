"""Delta tables: what a batch adds, and compactions, which deltalake does not keep apart."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.tables.delta_table import DeltaFiles
from braidmq.spark.jobs.tables.parquet_table import OWN
from braidmq.spark.jobs.tables.tables import BatchName, Compacted, Written

QUERY = "0f6a1a52-query"
PATTERNS = ("a/+", "it's/#", "100%")
SMALL = 10**6


class Frame:
    """As much of a DataFrame as a Delta table takes: rows of three partitions."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def toArrow(self) -> pa.Table:
        patterns = [PATTERNS[number % 3] for number in self._numbers]
        return pa.table({"number": list(self._numbers), "date": [date(2024, 3, 1)] * len(patterns), "pattern": patterns})


def a_table(path: Path) -> DeltaFiles:
    return DeltaFiles(str(path), ["date", "pattern"])


def append(table: DeltaFiles, batch: int) -> Written:
    frame: Any = Frame(range(batch * 6, batch * 6 + 6))
    return table.append(frame, BatchName(QUERY, batch))


def numbers_in(path: Path) -> list[int]:
    found: list[int] = deltalake.DeltaTable(path).to_pyarrow_table()["number"].to_pylist()
    return sorted(found)


def files_of(path: Path) -> Counter[str]:
    """How many files each partition has."""
    added = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
    return Counter(added["partition.pattern"].to_pylist())


def with_tables(table: DeltaFiles, monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    """Let what the table opens be what `wrap` makes of it."""

    def open_table(path: str) -> Any:
        return wrap(deltalake.DeltaTable(path))

    open_table.is_deltatable = deltalake.DeltaTable.is_deltatable  # type: ignore[attr-defined]
    names = {name: getattr(deltalake, name) for name in dir(deltalake)}
    monkeypatch.setattr(table, "_delta", SimpleNamespace(**names | {"DeltaTable": open_table}))


def test_a_batch_counts_the_files_that_its_transaction_added_and_their_bytes(tmp_path: Path) -> None:
    table = a_table(tmp_path)

    first, second = append(table, 0), append(table, 1)

    sizes = [each.stat().st_size for each in tmp_path.rglob("*.parquet")]
    assert (first.rows, first.files, second.files) == (6, 3, 3)
    assert first.size_bytes + second.size_bytes == sum(sizes)
    assert append(table, 1) == Written()


def test_small_files_of_a_delta_table_are_bounded_while_batches_come(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    total = Compacted()
    for number in range(6):
        append(table, number)
        total += table.tidy(QUERY, SMALL, files_max=3)
        assert set(files_of(tmp_path)) == set(PATTERNS)
        assert max(files_of(tmp_path).values()) <= 3

    assert total.files_before > total.files_after > 0
    assert total.size_bytes > 0
    assert numbers_in(tmp_path) == list(range(36))
    assert append(a_table(tmp_path), 5) == Written()


def test_files_that_are_large_or_few_are_left_alone(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    for number in range(4):
        append(table, number)

    assert table.tidy(QUERY, SMALL, files_max=4) == Compacted()
    assert table.tidy(QUERY, target_bytes=100, files_max=2) == Compacted()


def test_a_driver_that_died_before_it_compacted_does_it_in_its_next_life(tmp_path: Path) -> None:
    for number in range(4):
        append(a_table(tmp_path), number)
    table = a_table(tmp_path)

    again = append(table, 3)
    done = table.tidy(QUERY, SMALL, files_max=3)

    assert (again, done.files_before, done.files_after) == (Written(), 12, 3)
    assert numbers_in(tmp_path) == list(range(24))


def test_a_compaction_without_anything_to_do_leaves_the_table_and_what_jobs_keep_beside_it(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    append(table, 0)
    (tmp_path / OWN).mkdir()
    (tmp_path / OWN / "patterns").write_text("a/+")

    assert table.compact(SMALL, keep_hours=0) == Compacted()

    assert (tmp_path / OWN / "patterns").exists()
    with pytest.raises(UsageError, match="there is no Delta table"):
        a_table(tmp_path / "typo").compact(SMALL, keep_hours=0)
    assert not (tmp_path / "typo").exists()


def test_of_two_compactions_of_a_delta_table_one_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = a_table(tmp_path), a_table(tmp_path)
    for number in range(4):
        append(table, number)
    elsewhere: list[Compacted] = []

    def compact_elsewhere(opened: Any) -> Any:
        elsewhere.append(other.compact(SMALL, keep_hours=168))
        return opened

    with_tables(table, monkeypatch, compact_elsewhere)

    done = table.compact(SMALL, keep_hours=168)

    assert numbers_in(tmp_path) == list(range(24))
    assert (elsewhere, done.files_before) == ([Compacted()], 12)
    assert done.size_bytes > 0


def test_a_job_continues_when_another_writer_commits_before_its_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(tmp_path)
    for number in range(4):
        append(table, number)

    class Contended:
        """A table that another writer changes all the time."""

        def __init__(self, opened: Any) -> None:
            self.get_add_actions = opened.get_add_actions
            self.optimize = self

        def compact(self, **_: Any) -> None:
            raise CommitFailedError("a concurrent transaction deleted data this operation read")

    with monkeypatch.context() as patched:
        with_tables(table, patched, Contended)
        assert table.tidy(QUERY, SMALL, files_max=3) == Compacted()

    assert table.tidy(QUERY, SMALL, files_max=3).files_before == 12
    assert numbers_in(tmp_path) == list(range(24))


def test_batches_do_not_compact_tables_that_cannot_be_locked() -> None:
    assert DeltaFiles("s3://bucket/lake", ["date"]).tidy(QUERY, SMALL, files_max=2) == Compacted()
