"""How far a job is behind, as it shows while it runs."""

from __future__ import annotations

from braidmq.spark.jobs.job import HistoryOptions
from braidmq.spark.jobs.running import Watch
from tests.spark.driving import at
from tests.spark.fake_history import FakeHistoryService


def test_a_shard_of_which_nothing_was_read_yet_does_not_make_a_job_decades_late(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    history.add("a", shard=1)
    watch = Watch(HistoryOptions(servers=history.address, filters=("#",)))

    backlog = watch.backlog({"0": at(1), "1": 1})
    watch.close()

    assert backlog is not None
    assert backlog.seconds == 2.0
    assert backlog.rows == 3
