"""What is made of the registry's measurements."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.registry.report import Curve, ModeCost, ModeRow, RegistryReport, missed, render, write
from benchmarks.registry.storm import Burst


def report(*rows: ModeRow) -> RegistryReport:
    return RegistryReport("2026-01-01 00:00", "abc", "a machine", 3, list(rows))


def test_rows_that_miss_their_target_are_named() -> None:
    found = report(ModeRow("slow work", "2 s", "1 s", "1 s", False), ModeRow("fast work", "1 s", "30 s", "2 s", True))

    assert missed(found) == ["slow work"]
    assert "| slow work | 2 s | 1 s | 1 s | no |" in render(found)


def test_the_costs_of_all_processes_are_added_up() -> None:
    found = report()
    found.costs.append(ModeCost("work", "linear", {"replicant1": 30.4, "core1": 10.2}))

    assert "| work | linear | core1 10, replicant1 30 | 41 |" in render(found)


def test_the_page_has_curves_if_there_are_some(tmp_path: Path) -> None:
    found = report()
    page = write(found, tmp_path / "results", tmp_path / "pages")
    assert "registry.svg" not in page.read_text()

    found.curves.append(Curve("work", {"linear": [0.0, 1.0, 5.0], "eventual": [1.0, 20.0, 500.0]}))
    page = write(found, tmp_path / "results", tmp_path / "pages")

    assert "(registry.svg)" in page.read_text()
    assert "eventual" in (tmp_path / "pages" / "registry.svg").read_text()
    (saved,) = (tmp_path / "results").iterdir()
    assert msgspec.json.decode(saved.read_bytes(), type=RegistryReport) == found


def test_the_rate_counts_those_who_were_connected() -> None:
    assert Burst(wanted=10, connected=6, seconds=2.0).per_s == 3.0
    assert Burst().per_s == 0.0
