"""What is made of the cluster's measurements."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.cluster.report import Cost, Report, Row, median_ratio, missed, predict, render


def report(*rows: Row, costs: list[Cost] | None = None) -> Report:
    return Report("2026-01-01 00:00", "abc", "a machine", 3, 2, list(rows), costs or [])


def test_the_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    # In the second round the machine was busy for both; the ratio of medians would be 0.5.
    assert median_ratio([50.0, 9.0, 60.0], [100.0, 10.0, 100.0]) == pytest.approx(0.6)


def test_rows_that_miss_their_target_are_named() -> None:
    found = report(Row("slow work", "1/s", "0.1/s", "half", False), Row("fast work", "1/s", "1/s", "half", True))

    assert missed(found) == ["slow work"]
    assert "| slow work | 1/s | 0.1/s | half | no |" in render(found)


def test_the_core_limits_the_rate_once_there_are_enough_processors() -> None:
    cost = Cost("work", 1.0, {"core1": 2.0, "replicant1": 3.0, "replicant2": 3.0})

    assert predict(cost, 16) == (500_000.0, 4.0)  # the core's 2 us; the nodes keep three more processors busy
    assert predict(cost, 3) == (2e6 / 6, 3.0)  # two processors for the 6 us of the nodes


def test_work_that_does_not_touch_the_core_grows_with_the_processors() -> None:
    assert predict(Cost("work", 1.0, {"core": 0.0, "worker1": 2.0}), 4) == (2_000_000.0, 4.0)


def test_the_report_survives_its_file() -> None:
    found = report(Row("w", "1", "2", "3", True, "because"), costs=[Cost("w", 1.0, {"core1": 1.0})])

    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found
    assert "because" in render(found)
