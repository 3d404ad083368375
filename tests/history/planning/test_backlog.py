"""How many records a reader has still to read: by its filters, and by an estimate where counting would be too much work."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.flight.wire import AskBacklog, Backlog
from braidmq.storage.format.rows import EpochLimits
from tests.history.staged import Viewed


def test_a_small_backlog_is_counted_exactly_within_its_range(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(shard, f"t/{number}/x") for number in range(40) for shard in (0, 1)], (1, "t/7/x"))
        stage.write((0, "t/7/x"), session_only=True)
        stage.hear()
        eighth = [each for each in stage.known if each.shard == 1][7].position

        assert stage.view.backlog(AskBacklog(["nothing/here"], {})) == Backlog(0, is_estimate=False)
        assert stage.view.backlog(AskBacklog(["t/7/x"], {})) == Backlog(3, is_estimate=False)
        assert stage.view.backlog(AskBacklog(["t/7/x"], {"0": 1, "1": eighth})) == Backlog(2, is_estimate=False)
        assert stage.view.backlog(AskBacklog(["t/7/x"], {}, {"0": 1})) == Backlog(2, is_estimate=False)
        assert stage.view.backlog(AskBacklog(["#"], {"0": stage.heard[0], "1": eighth})) == Backlog(33, is_estimate=False)


@pytest.mark.row("K14")
def test_a_backlog_that_is_expensive_to_count_is_marked_as_an_estimate(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=EpochLimits(count_max=20)) as stage:
        stage.publish_all(*[(0, "even" if number % 2 else "odd/one") for number in range(2000)])

        estimate = stage.view.backlog(AskBacklog(["odd/#"], {}), steps_max=320)

        assert estimate.is_estimate
        assert 900 <= estimate.rows <= 1100
        assert stage.view.backlog(AskBacklog(["odd/#"], {})) == Backlog(1000, is_estimate=False)


def test_a_backlog_beyond_the_served_records_ends_at_the_last_served_record(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"), (0, "a"))
        stage.write((0, "a"))

        assert stage.view.backlog(AskBacklog(["a"], {}, {"0": 1 << 60})) == Backlog(2, is_estimate=False)
