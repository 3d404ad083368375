"""What is made of the measurements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.figures import Figure
from benchmarks.measure import Run, Series
from benchmarks.report import Report, missed, render
from benchmarks.shapes import QUICK


def series(target: float | None = 10, **rates: list[float]) -> Series:
    return Series("s", "the shape", {name: [Run(delivered_per_s=rate) for rate in row] for name, row in rates.items()}, target)


def report(*flows: Series, **figures: Any) -> Report:
    return Report("2026-01-01 00:00", "abc", "a machine", {}, QUICK, list(flows), **figures)


def test_the_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    # In the second round the machine was busy for both; the ratio of medians would be 10.
    found = series(braidmq=[100, 30, 110], mosquitto=[10, 2, 10])

    assert found.ratio("braidmq", "mosquitto") == 11


def test_a_broker_that_failed_once_has_no_figure() -> None:
    found = series(braidmq=[100, 100])
    found.runs["braidmq"][1] = Run(error="it fell over")

    assert found.median("braidmq") is None
    assert found.ratio("braidmq", "mosquitto") is None


@pytest.mark.parametrize(("rate", "expected"), [(100.0, []), (99.0, ["the shape"])])
def test_a_target_is_met_at_its_ratio_and_missed_below(rate: float, expected: list[str]) -> None:
    assert missed(report(series(braidmq=[rate], mosquitto=[10]))) == expected


@pytest.mark.parametrize("fault", ["lost", "dup"])
def test_a_single_message_lost_or_repeated_misses_the_target(fault: str) -> None:
    found = series(braidmq=[1000], mosquitto=[10])
    setattr(found.runs["braidmq"][0], fault, 1)

    assert missed(report(found)) == ["the shape"]


def test_a_broker_that_was_not_there_misses_its_target() -> None:
    assert missed(report(series(mosquitto=[10]))) == ["the shape"]


def test_mqtt_5_may_be_slower_by_15_percent() -> None:
    def measured(rate: float) -> Report:
        rates: dict[str, Any] = {"braidmq": [100], "braidmq v5": [rate]}
        return report(series(None, **rates))

    assert missed(measured(85)) == []
    assert missed(measured(84)) == ["the shape (MQTT 5)"]


def test_memory_idle_and_table_have_targets_of_their_own() -> None:
    def measured(memory: float, idle: float, full: float) -> Report:
        table = Series("table", "t", {"empty": [Run(delivered_per_s=100)], "full": [Run(delivered_per_s=full)]})
        return report(memory_kib={"braidmq": memory}, idle_cpu={"braidmq": idle}, idle_clients=5, table=table)

    assert missed(measured(4.1, 0.02, 50)) == []
    assert len(missed(measured(4.2, 0.03, 49))) == 3


@pytest.mark.parametrize(
    ("rates", "is_met"),
    [
        ({"braidmq": [300.0], "mosquitto": [150.0], "nats": [100.0]}, True),
        ({"braidmq": [299.0], "mosquitto": [150.0], "nats": [50.0]}, False),
        ({"braidmq": [300.0], "mosquitto": [100.0], "nats": [101.0]}, False),
        ({"braidmq": [300.0], "mosquitto": [150.0]}, True),
        ({"mosquitto": [150.0], "nats": [1.0]}, False),
    ],
)
def test_recorded_messages_are_to_be_twice_as_fast_as_mosquitto_and_thrice_as_nats(
    rates: dict[str, list[float]], is_met: bool
) -> None:
    assert missed(report(recorded=series(2, **rates))) == ([] if is_met else ["the shape"])


def test_a_recorded_message_that_is_lost_misses_the_target() -> None:
    found = series(2, braidmq=[900], mosquitto=[10])
    found.runs["braidmq"][0].lost = 1

    assert missed(report(recorded=found)) == ["the shape"]


@pytest.mark.parametrize("section", ["log", "history"])
def test_only_a_figure_with_a_target_can_be_missed(section: str) -> None:
    figures = [
        Figure("met", "5", "at least 4"),
        Figure("not met", "3", "at least 4", False),
        Figure("only told", "3", is_met=False),
    ]

    assert missed(report(**{section: figures})) == ["not met"]
    assert "only told" in render(report(**{section: figures}))


def test_the_report_survives_its_file() -> None:
    whole = report(
        series(braidmq=[1], mosquitto=[1]),
        latency={"braidmq": Run(p50_ms=1)},
        recorded=series(2, braidmq=[1]),
        log=[Figure("a", "b", "c")],
        history=[Figure("d", "e")],
    )

    assert msgspec.json.decode(msgspec.json.encode(whole), type=Report) == whole
    assert "the shape" in render(whole)
