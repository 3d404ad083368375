"""What a job says while it runs, at its end, and when it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.spark.jobs.framework.at_work import AtWork, BatchAtWork
from braidmq.spark.jobs.framework.failures import AGAIN_FROM_CHECKPOINT, explain
from braidmq.spark.jobs.framework.progress import Display, JobBacklog, Meter


def report(batch: int, rows: int, end: int = 0, late: int = 0) -> dict[str, Any]:
    offset = {"version": 1, "log": "x", "shards": {"0": end}}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "sources": [{"endOffset": offset, "latestOffset": None}],
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
        "eventTime": {"watermark": f"2024-03-01T12:00:{batch:02d}.000Z"} if rows else {},
    }


def test_rows_of_a_batch_count_once_however_often_it_is_reported() -> None:
    now = [10.0]
    meter = Meter(lambda: now[0])
    meter.see([report(7, 100, end=5), report(8, 50, end=9, late=2)])
    meter.see([report(7, 100, end=5), report(8, 50, end=9, late=2), report(9, 0, end=9)])
    now[0] = 15.0

    assert (meter.rows, meter.batches, meter.late_rows, dict(meter.end)) == (150, 2, 2, {"0": 9})
    assert meter.rate == pytest.approx(30.0)
    assert meter.watermark == "2024-03-01T12:00:08.000Z"
    assert (
        meter.words(JobBacklog(rows=300, seconds=61.0)) == "150 rows, 30/s, at most 300 behind (1 m 1 s), 10 s left, 2 too late"
    )


def test_nothing_is_promised_where_nothing_is_known() -> None:
    meter = Meter(lambda: 1.0)

    assert meter.words(None) == "0 rows, 0/s"
    assert meter.words(JobBacklog(5, None)) == "0 rows, 0/s, at most 5 behind"


def test_progress_within_the_first_batch_is_shown() -> None:
    now = [0.0]
    meter = Meter(lambda: now[0])
    now[0] = 10.0

    at_work = AtWork(rows=200, tasks_done=2, tasks=6)

    assert (
        meter.words(JobBacklog(1000, None), at_work)
        == "200 rows, 20/s, at most 800 behind, 40 s left, current batch: 2 of 6 tasks"
    )
    assert meter.words(None, AtWork(0, 0, 6)) == "0 rows, 0/s, current batch: 0 of 6 tasks"


class FakeTracker:
    """Spark's jobs with one stage each: by number, tasks that are done, tasks, and rows."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[int, int, int]] = {}
        self.sparkContext = self._jsc = self

    def statusTracker(self) -> FakeTracker:
        return self

    def sc(self) -> FakeTracker:
        return self

    def statusStore(self) -> FakeTracker:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        assert group == "run"
        return list(self.jobs)

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=[job + 100])

    def getStageInfo(self, stage: int) -> Any:
        done, tasks, _ = self.jobs[stage - 100]
        return SimpleNamespace(numCompletedTasks=done, numTasks=tasks)

    def lastStageAttempt(self, stage: int) -> Any:
        return SimpleNamespace(inputRecords=lambda: self.jobs[stage - 100][2])


def test_progress_counts_tasks_and_rows_of_the_current_batch_only() -> None:
    fake: Any = FakeTracker()
    looking = BatchAtWork(fake, "run")

    assert looking.look(0) is None
    fake.jobs = {1: (4, 4, 90), 2: (1, 3, 30)}  # a batch that is looked at, and then written
    assert looking.look(0) == AtWork(90, 5, 7)
    assert looking.look(1) is None
    fake.jobs[3] = (0, 2, 0)
    assert looking.look(1) == AtWork(0, 0, 2)


def test_a_job_is_not_stopped_by_what_spark_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = FakeTracker()
    fake.jobs = {1: (1, 1, 1)}
    looking = BatchAtWork(fake, "run")

    def forgotten(_stage: int) -> Any:
        raise Py4JError("no such stage")

    monkeypatch.setattr(fake, "lastStageAttempt", forgotten)

    assert looking.look(0) is None


def test_without_a_terminal_progress_is_printed_as_occasional_lines(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Display("archive", lambda: now[0]) as display:
        for now[0] in (1.0, 9.0, 11.0, 12.0, 22.0):
            display.show(f"at {now[0]:g}")

    assert capsys.readouterr().err.splitlines() == ["archive: at 11", "archive: at 22"]


JAVA = """An error occurred while calling o1.awaitTermination
org.apache.spark.sql.streaming.StreamingQueryException: [PYTHON_DATA_SOURCE_ERROR] Failed when Python data source
Traceback (most recent call last):
  File "x.py", line 1, in f
braidmq.base.errors.{}: {}

\tat org.apache.spark.sql.execution"""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UsageError("mine", "do that"), UsageError, "mine: do that"),
        (
            RuntimeError(JAVA.format("Unavailable", "nobody answers (try again in 1 s)")),
            Unavailable,
            "nobody answers; the checkpoint keeps",
        ),
        (RuntimeError(JAVA.format("ConfigError", "servers: is wrong; write host:port")), UsageError, "servers: is wrong"),
        (RuntimeError("java.io.IOException: No space left on device"), UsageError, "a disk is full"),
        (RuntimeError("java.lang.OutOfMemoryError: Java heap space"), UsageError, "spark.driver.memory=4g"),
        (RuntimeError("Multiple streaming queries are concurrently using file:/x/offsets"), UsageError, "same checkpoint"),
        (RuntimeError("Traceback\nKeyError: 'x'\nValueError: broken value\n\tat java"), UsageError, "ValueError: broken value"),
        (RuntimeError(""), UsageError, "RuntimeError"),
    ],
)
def test_a_failure_is_a_sentence_with_what_to_do(error: Exception, kind: type[BraidError], words: str) -> None:
    found = explain(error, AGAIN_FROM_CHECKPOINT)

    assert isinstance(found, kind)
    assert words in str(found)
    assert "\n" not in str(found)
