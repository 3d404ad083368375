"""The figures of the log of a real node, counted against what clients did."""

from __future__ import annotations

import time

from braidmq.control.history import ReadRequest
from tests.support.operated import Operated
from tests.support.recording import lines_of, records_of


def test_a_recorded_message_shows_in_every_figure_of_the_log(node: Operated) -> None:
    publisher = node.connect()
    before = node.metrics()
    began = time.time()

    for _ in range(3):
        publisher.publish("t", b"x" * 1000, qos=1)
    publisher.publish("t", b"not recorded", qos=0)
    publisher.ping()

    now = node.metrics()
    assert now["history_appended"] - before["history_appended"] == 3
    assert now["history_records_count"] - before["history_records_count"] == 3
    assert now["history_appended_bytes"] - before["history_appended_bytes"] >= 3000
    assert now["history_records_bytes"] >= 3000
    assert 1 <= now["history_commits"] - before["history_commits"] <= 3
    assert now["history_commit_seconds"] > before["history_commit_seconds"]
    assert 0 <= now["history_oldest_age_seconds"] <= time.time() - began + 1
    assert (now["history_pending_bytes"], now["history_refused"], now["history_health"]) == (0, 0, 0)
    assert now["history_disk_free_bytes"] > 0


def test_records_read_from_the_log_are_counted(node: Operated) -> None:
    publisher = node.connect()
    for number in range(5):
        publisher.publish(f"t/{number}", b"x", qos=1)
    before = node.metrics()

    lines = node.broker.run(lines_of(node.operations.history.read(ReadRequest(filters=("t/+",), limit=4))))

    assert len(records_of(lines)) == 4
    assert 4 <= node.metrics()["history_replayed"] - before["history_replayed"] <= 5  # it may read ahead


def test_durable_sessions_are_counted_while_they_live(node: Operated) -> None:
    node.connect("memory")
    durable = node.connect("disk", persistent=True)
    assert (node.metrics()["sessions_count"], node.metrics()["sessions_durable_count"]) == (2, 1)

    durable.disconnect()
    assert node.metrics()["sessions_durable_count"] == 1
    node.ask("kick", "disk")

    assert node.metrics()["sessions_durable_count"] == 0
