"""Where the source runs: drivers, executors, a Python that lacks something, a server that is lost."""

from __future__ import annotations

import sys

import pytest
from pyspark.cloudpickle import cloudpickle

from braidmq.base.errors import BraidError, UsageError
from braidmq.spark import BraidDataSource, requirements
from tests.spark.driving import batch_reader, rows_of
from tests.support.fakes.history_service import FakeHistoryService


def test_a_source_and_its_readers_are_made_without_a_connection() -> None:
    made = BraidDataSource({"servers": "nowhere.invalid:1", "path": "a"})

    made.reader(made.schema())
    made.streamReader(made.schema())


def test_a_lost_server_does_not_repeat_or_miss_rows_of_a_task(history: FakeHistoryService) -> None:
    for number in range(12):
        history.add(f"t/{number % 4}", shard=0)
    reader = batch_reader(history, columns="topic")
    partitions = reader.partitions()
    history.broken_after = [3, 6]

    topics = [row["topic"] for row in rows_of(reader, partitions)]

    assert sorted(topics) == sorted(row["topic"] for row in history.rows())
    assert len(history.tickets) == 3


def test_an_executor_that_lacks_something_says_so_in_words(history: FakeHistoryService, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = cloudpickle.dumps(batch_reader(history))
    monkeypatch.setattr(requirements, "MODULES", ("no_such_module",))

    with pytest.raises(UsageError, match=r"Python of this Spark process \(.*\) lacks no_such_module: install braidmq\[spark\]"):
        cloudpickle.loads(shipped)
    with pytest.raises(UsageError, match="lacks no_such_module"):
        BraidDataSource({"path": "a"})


def test_an_old_python_says_so_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))

    with pytest.raises(UsageError, match=r"3\.10\.4\) is older than 3\.11"):
        requirements.check_requirements()


def test_a_password_appears_in_no_text_of_a_reader(history: FakeHistoryService) -> None:
    history.users = {"ann": "right"}
    reader = batch_reader(history, user="ann", password="s3cret-word")

    with pytest.raises(BraidError) as caught:
        reader.partitions()

    assert "s3cret-word" not in repr(reader) + str(caught.value)
