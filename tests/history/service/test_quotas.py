"""Limits of readers."""

from __future__ import annotations

import pytest

from braidmq.history.messages import Limits, Served
from braidmq.history.service.errors import HistoryError
from braidmq.history.service.quotas import Quotas
from tests.tidy.tree import ROOT


def test_readers_do_not_count_for_each_other() -> None:
    quotas = Quotas(Limits(1, 0))
    quotas.begin("ann")
    quotas.begin("bob")

    with pytest.raises(HistoryError, match=r"this reader has 1 open streams, the maximum of history\.streams_max"):
        quotas.begin("ann")
    assert quotas.served() == Served(0, 0, 2, refused=1)


def test_the_documentation_quotes_the_answer_to_a_reader_with_too_many_streams() -> None:
    quotas = Quotas(Limits(16, 0))
    for _ in range(16):
        quotas.begin("ann")

    with pytest.raises(HistoryError) as refused:
        quotas.begin("ann")

    assert refused.value.problem.detail in " ".join((ROOT / "docs" / "spark.md").read_text().split())


def test_data_above_the_allowed_rate_waits() -> None:
    now = 0.0
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    quotas = Quotas(Limits(1, 1000), lambda: now, sleep)
    quotas.begin("ann")

    for _ in range(5):
        quotas.sent("ann", 1, 1000)

    # A second's worth goes at once, the rest at the rate.
    assert now == pytest.approx(4.0)
    assert quotas.served() == Served(5, 5000, 1)


def test_a_reader_cannot_get_more_by_many_short_streams() -> None:
    waits: list[float] = []
    quotas = Quotas(Limits(1, 1000), lambda: 0.0, waits.append)

    for _ in range(3):
        quotas.begin("ann")
        quotas.sent("ann", 1, 1000)
        quotas.end("ann")

    assert waits == pytest.approx([1.0, 2.0])


def test_readers_that_are_gone_are_forgotten() -> None:
    now = 0.0
    quotas = Quotas(Limits(1, 1000), lambda: now, lambda _: None)
    for number in range(5000):
        quotas.begin(f"host {number}")
        quotas.sent(f"host {number}", 1, 1000)
        quotas.end(f"host {number}")
        now += 1.0

    assert len(quotas) <= 1000
