"""Which query may write to a table: a second checkpoint, or a lost one, must not double its rows."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.framework.checkpoint import Checkpoint, local_checkpoint
from braidmq.spark.jobs.framework.job import HistoryOptions, Job, OtherQueries, Pace
from braidmq.spark.jobs.framework.session import SparkOptions
from braidmq.spark.jobs.tables.ownership import Ownership, alone_with, decide, own_tables
from braidmq.spark.jobs.tables.parquet_table import OWN, ParquetTable
from braidmq.spark.jobs.tables.tables import BatchName, OutputTable, QueryRecord, open_table
from braidmq.spark.source.offsets import Offset, parse_offset

KINDS = ["parquet", "delta"]
LOG = "00ff"


class Frame:
    """As much of a DataFrame as tables take; it has one row."""

    def __init__(self) -> None:
        self.write = self.sparkSession = self.sparkContext = self
        self.defaultParallelism = 1

    def toArrow(self) -> pa.Table:
        return pa.table({"number": [1]})

    def coalesce(self, _number: int) -> Frame:
        return self

    def parquet(self, place: str) -> None:
        folder = Path(place.removeprefix("file://"))
        folder.mkdir(parents=True)
        pq.write_table(self.toArrow(), folder / "part-0.parquet")


def query_of(checkpoint: str) -> str:
    return f"{zlib.crc32(checkpoint.encode()):08x}-query-of-{checkpoint}"


def end_at(position: int, **more: Any) -> dict[str, Any]:
    return {"version": 1, "log": LOG, "shards": {"0": position, "1": 1}} | more


class Setting:
    """A table and checkpoints, and jobs that go through a batch of them as Spark would."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.table = self.open("lake")

    def open(self, name: str) -> OutputTable:
        return open_table(self.kind, str(self.folder / name), [])  # type: ignore[arg-type]

    def checkpoint(self, name: str) -> Checkpoint:
        found = local_checkpoint(str(self.folder / name))
        assert found is not None
        return found

    def plan(self, name: str, batch: int, end: dict[str, Any]) -> None:
        """What Spark writes before a batch runs."""
        folder = self.folder / name
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text(json.dumps({"id": query_of(name)}))
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(end)}')

    def finish(self, name: str, batch: int) -> None:
        (self.folder / name / "commits").mkdir(exist_ok=True)
        (self.folder / name / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def ask(
        self,
        name: str,
        choice: OtherQueries = "refuse",
        filters: tuple[str, ...] = ("#",),
        tables: list[OutputTable] | None = None,
    ) -> Ownership:
        wanted = Ownership("archive", str(self.folder / name), filters)
        return decide(wanted, self.checkpoint(name), tables or [self.table], choice)

    def run(
        self, name: str, batch: int, end: dict[str, Any], choice: OtherQueries = "refuse", filters: tuple[str, ...] = ("#",)
    ) -> None:
        """A job that does one batch."""
        ownership = self.ask(name, choice, filters)
        self.plan(name, batch, end)
        frame: Any = Frame()
        self.table.append(frame, ownership.batch(query_of(name), batch, self.checkpoint(name).end_of(batch)))
        self.finish(name, batch)

    def rows(self) -> int:
        if self.kind == "delta":
            return int(deltalake.DeltaTable(self.folder / "lake").to_pyarrow_table().num_rows)
        return sum(pq.read_metadata(each).num_rows for each in (self.folder / "lake").glob("*.parquet"))


@pytest.fixture(params=KINDS)
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(tmp_path, request.param)


@pytest.mark.row("K10")
def test_a_second_checkpoint_is_refused_and_the_query_that_wrote_the_table_is_named(setting: Setting) -> None:
    setting.run("first", 0, end_at(10), filters=("a/#", "b"))

    with pytest.raises(UsageError) as refused:
        setting.run("second", 0, end_at(10))

    words = str(refused.value)
    assert (
        f"the query {query_of('first')} of the job archive (checkpoint {setting.folder / 'first'}, topic filters a/# b" in words
    )
    assert f"continue with its --checkpoint {setting.folder / 'first'}" in words
    assert "--adopt" in words
    assert "--append-anyway" in words
    assert setting.rows() == 1


@pytest.mark.row("K10")
def test_a_checkpoint_that_was_removed_is_refused_under_the_same_path(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    shutil.rmtree(setting.folder / "first")

    with pytest.raises(UsageError, match="its checkpoint was removed or replaced: restore it; --adopt"):
        setting.ask("first")


def test_a_query_resumes_its_own_table_and_new_queries_get_new_tables(setting: Setting) -> None:
    assert setting.ask("first").known == frozenset()
    setting.run("first", 0, end_at(10))
    setting.run("first", 1, end_at(20))

    assert setting.rows() == 2
    [record] = setting.table.records()
    assert record == QueryRecord(query_of("first"), 1, "archive", str(setting.folder / "first"), ("#",), end_at(20))


@pytest.mark.row("K10")
def test_an_adopting_query_continues_at_the_end_of_the_table(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.run("first", 1, end_at(20, version=2, gone={"1": {"raw": 7}}))

    found = setting.ask("second", "adopt")
    assert found.start == Offset({0: 20, 1: 1}, LOG, {1: {"raw": 7}})
    setting.run("second", 0, end_at(30), "adopt")

    with pytest.raises(UsageError, match=f"was adopted by the query {query_of('second')}"):
        setting.ask("first")
    setting.run("second", 1, end_at(40))  # as any other query, without the flag
    with pytest.raises(UsageError, match="was adopted by"):
        setting.ask("first")
    assert setting.rows() == 4


def test_a_third_query_adopts_from_the_second_and_the_first_stays_replaced(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.run("second", 0, end_at(30), "adopt")

    assert setting.ask("third", "adopt").start == Offset({0: 30, 1: 1}, LOG)
    setting.run("third", 0, end_at(40), "adopt")

    assert set(setting.ask("third").adopts) == {query_of("first"), query_of("second")}


def test_a_query_that_died_in_its_first_batch_adopts_again(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.ask("second", "adopt")
    setting.plan("second", 0, end_at(30, version=2, began={"shards": {"0": 10, "1": 1}}))

    again = setting.ask("second", "adopt")

    assert (again.start, again.adopts) == (None, (query_of("first"),))


def test_a_checkpoint_that_began_elsewhere_cannot_adopt(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.plan("second", 0, end_at(30, version=2, began={"shards": {"0": 1, "1": 1}}))

    with pytest.raises(UsageError, match="it is already in use: use a new --checkpoint"):
        setting.ask("second", "adopt")


def test_only_positions_of_the_same_filters_are_adopted(setting: Setting) -> None:
    setting.run("first", 0, end_at(10), filters=("a/#",))
    setting.run("other", 0, end_at(99), "append", filters=("b/#",))

    assert setting.ask("second", "adopt", filters=("a/#",)).start == Offset({0: 10, 1: 1}, LOG)
    with pytest.raises(UsageError, match=r"other topics were read by .* topic filters [ab]/#"):
        setting.ask("second", "adopt", filters=("c/#",))


@pytest.mark.row("K10")
def test_a_table_of_two_queries_with_the_same_filters_is_not_adopted(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.run("latest", 0, end_at(99), "append")  # began at 50: nothing has read from 10 to 50

    with pytest.raises(UsageError, match="several queries with these topic filters have written to it") as refused:
        setting.ask("second", "adopt")

    words = str(refused.value)
    assert f"the query {query_of('first')} " in words
    assert f"the query {query_of('latest')} " in words
    assert "continue with the --checkpoint of one of them" in words


def test_a_query_that_appends_by_flag_resumes_without_the_flag(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.run("second", 0, end_at(10), "append")
    setting.run("second", 1, end_at(20))
    setting.run("first", 1, end_at(20))

    assert setting.rows() == 4


@pytest.mark.row("K10")
def test_of_two_new_queries_that_begin_at_the_same_time_one_writes(setting: Setting) -> None:
    one, other = setting.ask("one"), setting.ask("other")
    frame: Any = Frame()
    setting.table.append(frame, one.batch(query_of("one"), 0, end_at(10)))

    with pytest.raises(UsageError, match=f"the query {query_of('one')} .* has started to write"):
        setting.open("lake").append(frame, other.batch(query_of("other"), 0, end_at(10)))

    assert setting.rows() == 1


def test_a_replaced_query_resumes_if_the_user_asks_for_it(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    setting.run("second", 0, end_at(20), "adopt")

    setting.run("first", 1, end_at(20), "append")

    assert setting.rows() == 3


def test_a_query_that_is_replaced_while_it_runs_fails_with_its_next_batch(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "parquet")
    setting.run("first", 0, end_at(10))
    running = setting.ask("first")
    setting.run("second", 0, end_at(20), "adopt")
    frame: Any = Frame()

    with pytest.raises(UsageError, match="was adopted by"):
        setting.table.append(frame, running.batch(query_of("first"), 1, end_at(20)))


def written_by_an_older_version(setting: Setting, query: str) -> None:
    """A batch as tables recorded it before they recorded positions."""
    frame: Any = Frame()
    setting.table.append(frame, BatchName(query, 4))


@pytest.mark.row("K10")
def test_a_table_of_an_older_version_is_refused_too_and_cannot_be_adopted(setting: Setting) -> None:
    written_by_an_older_version(setting, query_of("first"))

    with pytest.raises(UsageError, match=r"was written by .*, so a new query would write the same rows again"):
        setting.ask("second")
    with pytest.raises(UsageError, match="cannot be adopted: positions are not recorded by"):
        setting.ask("second", "adopt")
    assert setting.ask("second", "append").start is None


def test_a_query_of_an_older_version_resumes_and_records_its_positions_from_then_on(setting: Setting) -> None:
    setting.plan("first", 4, end_at(10))
    setting.finish("first", 4)
    written_by_an_older_version(setting, query_of("first"))

    setting.run("first", 5, end_at(20))

    assert setting.ask("second", "adopt").start == Offset({0: 20, 1: 1}, LOG)


def test_a_commit_file_of_an_older_version_is_read_as_it_was_written(tmp_path: Path) -> None:
    commits = tmp_path / OWN / "commits"
    commits.mkdir(parents=True)
    (commits / "3f2a90c1.json").write_text('{"batch":12,"files":{}}')

    assert ParquetTable(str(tmp_path)).records() == [QueryRecord("3f2a90c1", 12)]


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "removed"])
def test_a_table_that_lacks_what_its_checkpoint_has_finished_is_refused(setting: Setting, is_restored: bool) -> None:
    setting.run("first", 0, end_at(10))
    backup = setting.folder / "backup"
    shutil.copytree(setting.folder / "lake", backup)
    setting.run("first", 1, end_at(20))
    shutil.rmtree(setting.folder / "lake")
    if is_restored:
        backup.rename(setting.folder / "lake")

    has = "those up to 0" if is_restored else "none of them"
    with pytest.raises(UsageError, match=f"has batches up to 1, but .*/lake has {has}"):
        setting.ask("first")


def test_tables_that_end_at_different_positions_are_not_adopted_together(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "parquet")
    setting.run("first", 0, end_at(10))
    beside = setting.open("lake.quarantine")
    frame: Any = Frame()
    beside.append(frame, setting.ask("first").batch(query_of("first"), 0, end_at(10)))
    assert setting.ask("second", "adopt", tables=[setting.table, beside]).start == Offset({0: 10, 1: 1}, LOG)

    setting.run("first", 1, end_at(20))

    with pytest.raises(UsageError, match="end at different positions"):
        setting.ask("second", "adopt", tables=[setting.table, beside])


def a_job(*, choice: OtherQueries = "refuse") -> Job:
    history = HistoryOptions(servers="h:1", filters=("#",), start="-1h", more={"startingTimestamp": "-2h"})
    return Job("archive", SparkOptions(), history, Pace(other_queries=choice))


def test_a_job_that_adopts_a_table_reads_from_its_end_despite_other_options(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    job = a_job(choice="adopt")

    with job.until_end:
        own_tables(job, str(setting.folder / "second"), [setting.table])

    options = job.history.reader_options()
    assert parse_offset(json.loads(options["startingOffsets"])) == Offset({0: 10, 1: 1}, LOG)
    assert "startingTimestamp" not in options
    start = job.history.asking.start
    assert start is not None
    assert start.offset == Offset({0: 10, 1: 1}, LOG)


def test_a_commit_whose_driver_died_before_readers_saw_it_is_not_lost_with_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What a driver does not survive."""

    def die(*_: object) -> None:
        raise Killed

    setting = Setting(tmp_path, "parquet")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die)
        with pytest.raises(Killed):
            setting.run("first", 0, end_at(10))
    assert setting.rows() == 0
    shutil.rmtree(tmp_path / "first")
    job = a_job(choice="adopt")

    with job.until_end:
        own_tables(job, str(tmp_path / "second"), [setting.table])

    assert setting.rows() == 1


def test_a_job_that_cannot_adopt_says_why(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))

    with pytest.raises(UsageError, match="use a new table; --append-anyway"):
        own_tables(a_job(), str(setting.folder / "second"), [setting.table], cannot_adopt="windows are elsewhere")
    with pytest.raises(UsageError, match="cannot be adopted: windows are elsewhere"):
        own_tables(a_job(choice="adopt"), str(setting.folder / "second"), [setting.table], cannot_adopt="windows are elsewhere")


def test_a_checkpoint_is_used_by_one_job_at_a_time(setting: Setting) -> None:
    checkpoint = str(setting.folder / "first")
    first, second = a_job(), a_job()

    with first.until_end:
        own_tables(first, checkpoint, [setting.table])
        with pytest.raises(UsageError, match="another job uses the checkpoint"):
            own_tables(second, checkpoint, [setting.table])
    with second.until_end:
        own_tables(second, checkpoint, [setting.table])


def test_a_query_that_is_at_work_is_not_replaced(setting: Setting) -> None:
    setting.run("first", 0, end_at(10))
    job = a_job(choice="adopt")

    with (
        alone_with(str(setting.folder / "first")),
        job.until_end,
        pytest.raises(UsageError, match=r"another job uses the checkpoint .*/first"),
    ):
        own_tables(job, str(setting.folder / "second"), [setting.table])


def test_an_invalid_table_path_is_rejected_before_anything_is_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places: dict[str, Callable[[], None]] = {
        r"/file is a file: choose another path": open_table("parquet", str(tmp_path / "file" / "lake"), []).check_place,
        r"there is a Delta table at": open_table("parquet", str(tmp_path / "delta"), []).check_place,
        r"there is a table of Parquet files at": open_table("delta", str(tmp_path / "parquet"), []).check_place,
        r"/proc cannot be written": open_table("parquet", "/proc/lake", []).check_place,
    }
    frame: Any = Frame()
    open_table("delta", str(tmp_path / "delta"), []).append(frame, BatchName("q", 0))
    open_table("parquet", str(tmp_path / "parquet"), []).append(frame, BatchName("q", 0))
    before = sorted(tmp_path.iterdir())

    for words, check in places.items():
        with pytest.raises(UsageError, match=words):
            check()

    assert sorted(tmp_path.iterdir()) == before
