"""How far a job is behind, as it shows while it runs."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.jobs.framework.checkpoint import local_checkpoint
from braidmq.spark.jobs.framework.job import HistoryOptions, Job, Pace
from braidmq.spark.jobs.framework.progress import Display, JobBacklog
from braidmq.spark.jobs.framework.run import Watch, run_stream
from braidmq.spark.jobs.framework.session import SparkOptions
from braidmq.spark.jobs.tables.tables import BatchName
from braidmq.spark.source.offsets import Offset
from tests.spark.driving import at
from tests.support.fakes.history_service import FakeHistoryService


def test_a_shard_of_which_nothing_was_read_yet_does_not_make_a_job_decades_late(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    history.add("a", shard=1)
    watch = Watch(HistoryOptions(servers=history.address, filters=("#",)))

    backlog = watch.backlog({"0": at(1), "1": 1})
    watch.close()

    assert backlog is not None
    assert backlog.seconds == 2.0
    assert backlog.rows == 3


def test_during_the_first_batch_the_backlog_counts_from_its_start(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    watch = Watch(HistoryOptions(servers=history.address, filters=("#",)))

    assert watch.backlog({}) is None  # nothing is planned yet
    watch._asked_at = 0.0
    backlog = watch.backlog({}, lambda: {"0": 1, "1": 1})
    watch.close()

    assert backlog == JobBacklog(3, None)  # how old the first record is cannot be told


def test_the_position_where_a_query_resumes_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    checkpoint = local_checkpoint(str(tmp_path))
    assert checkpoint is not None
    assert (checkpoint.query(), checkpoint.planned(), checkpoint.begin()) == (None, None, None)

    def plan(batch: int, offset: str) -> None:
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')

    plan(0, '{"version": 2, "log": "00ff", "shards": {"0": 7}, "began": {"shards": {"0": 1}}}')
    assert checkpoint.begin() == Offset({0: 1}, "00ff")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    plan(1, '{"version": 1, "log": "00ff", "shards": {"0": 9}}')
    begin = checkpoint.begin()

    assert begin is not None
    assert begin.shards == {0: 7}
    assert (checkpoint.planned(), checkpoint.finished(), checkpoint.end_of(2)) == (1, 0, None)


@pytest.mark.parametrize("text", ["v2\n{}\n{}", "v1\n{}", 'v1\n{}\n{"version": 1', "v1\n{}\n{}\n{}", "v1\n{}\n-"])
def test_an_invalid_or_incomplete_offset_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(text)
    checkpoint = local_checkpoint(str(tmp_path))
    assert checkpoint is not None

    assert (checkpoint.end_of(0), checkpoint.begin()) == (None, None)


@pytest.mark.row("K16")
@pytest.mark.timeout(180)
def test_backlog_and_progress_are_shown_inside_the_first_batch(
    spark: SparkSession, history: FakeHistoryService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.add_many("a", 12, shard=0)
    shown: list[str] = []
    is_shown = threading.Event()

    def show(_display: Display, words: str) -> None:
        shown.append(words)
        if "12 rows" in words and "at most 0 behind" in words:
            is_shown.set()

    monkeypatch.setattr(Display, "show", show)
    job = Job("archive", SparkOptions(), HistoryOptions(servers=history.address, filters=("#",)), Pace())
    job.__dict__["spark"] = spark

    def each_batch(frame: DataFrame, _batch: BatchName) -> None:
        frame.collect()
        assert is_shown.wait(60), shown[-3:]  # while the batch is not over

    meter = run_stream(job, job.stream(), each_batch, str(tmp_path / "checkpoint"))

    assert meter.rows == 12
    # Rows and tasks are counted apart: the first line with all rows may not have the task yet.
    assert any(re.search(r"12 rows.*current batch: (\d+) of \1 tasks", each) for each in shown), shown
