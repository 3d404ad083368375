"""What a job says while it runs, at its end, and when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.spark.jobs.failures import AGAIN_FROM_CHECKPOINT, explain
from braidmq.spark.jobs.progress import Backlog, Display, Meter


def report(batch: int, rows: int, end: int = 0, late: int = 0) -> dict[str, Any]:
    offset = {"version": 1, "log": "x", "shards": {"0": end}}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "sources": [{"endOffset": offset, "latestOffset": None}],
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
    }


def test_rows_of_a_batch_count_once_however_often_it_is_reported() -> None:
    now = [10.0]
    meter = Meter(lambda: now[0])
    meter.see([report(7, 100, end=5), report(8, 50, end=9, late=2)])
    meter.see([report(7, 100, end=5), report(8, 50, end=9, late=2), report(9, 0, end=9)])
    now[0] = 15.0

    assert (meter.rows, meter.batches, meter.late_rows, dict(meter.end)) == (150, 2, 2, {"0": 9})
    assert meter.rate == pytest.approx(30.0)
    assert meter.time_left_s(Backlog(rows=300, seconds=61.0)) == pytest.approx(10.0)
    assert meter.words(Backlog(rows=300, seconds=61.0)) == "150 rows, 30/s, 300 behind (1 m 1 s), 10 s left, 2 too late"


def test_nothing_is_promised_where_nothing_is_known() -> None:
    meter = Meter(lambda: 1.0)

    assert meter.words(None) == "0 rows, 0/s"
    assert meter.time_left_s(Backlog(5, 0.0)) is None


def test_without_a_terminal_a_line_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
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
