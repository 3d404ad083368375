"""The metrics of a core and its workers, as those of one process."""

from __future__ import annotations

from braidmq.operations.totals import Totals

FIRST, SECOND = ("core1/w1", 1), ("core1/w1", 2)


def values(received: float, live: float) -> dict[str, float]:
    return {"messages_received": received, "live_connections_count": live, "uptime_seconds": 5}


def test_counters_and_gauges_are_summed_and_the_uptime_is_the_cores() -> None:
    found = Totals().add(values(1, 2), {FIRST: values(10, 20)})

    assert found == values(11, 22)


def test_counters_do_not_fall_while_a_worker_does_not_answer() -> None:
    totals = Totals()
    totals.add(values(1, 2), {FIRST: values(10, 20)})

    found = totals.add(values(2, 2), {FIRST: None})

    assert found["messages_received"] == 12
    assert found["live_connections_count"] == 2, "a gauge says only what is known now"


def test_counters_do_not_fall_when_a_worker_is_restarted() -> None:
    totals = Totals()
    totals.add(values(1, 2), {FIRST: values(10, 20)})

    found = totals.add(values(1, 2), {SECOND: values(3, 1)})

    assert found["messages_received"] == 14
    assert totals.add(values(1, 2), {SECOND: values(4, 1)})["messages_received"] == 15
