"""How long a client tries again: not long for a server that is lost, longer for a stream that becomes free when another ends."""

from __future__ import annotations

import logging

import pytest

from braidmq import flight
from braidmq.base.errors import Unavailable
from braidmq.flight.errors import Busy
from braidmq.flight.retry import BUSY_S, Retry
from tests.support.fakes.history_service import FakeHistoryService

RETRY_S = 60.0
LOST = Unavailable("connection refused")
FULL = Busy("16 streams of this reader are open")


class Waiting:
    """A retry by a clock that goes on with its pauses only."""

    def __init__(self, *servers: str) -> None:
        self.now = 0.0
        names = list(servers) or ["h:1"]
        self.retry = Retry(names, names[0], RETRY_S, self.pause, clock=lambda: self.now)

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def until_given_up(self, *problems: Unavailable) -> str:
        """Fail with these problems, again and again; gives what is raised at last."""
        for _ in range(100_000):
            for each in problems:
                try:
                    self.retry.failed(each)
                except Unavailable as end:
                    return end.detail
        raise AssertionError("there is no end to it")


def test_a_stream_is_waited_for_longer_than_a_lost_server_and_the_end_says_which_it_was() -> None:
    lost, full = Waiting(), Waiting()

    lost_words, full_words = lost.until_given_up(LOST), full.until_given_up(FULL)

    assert lost.now <= RETRY_S
    assert BUSY_S - 5 <= full.now <= BUSY_S
    assert lost_words == "no history service at h:1 is available: connection refused"
    assert full_words.startswith("waited 1")
    assert full_words.endswith("for a free stream at h:1: 16 streams of this reader are open")


def test_a_caller_that_waits_long_for_a_server_waits_as_long_for_a_stream() -> None:
    retry = Retry(["h:1"], "h:1", 3600.0, lambda _: None, busy_s=900.0, clock=lambda: 0.0)

    assert retry._busy_s == 3600.0


def test_a_server_that_answered_is_not_lost_and_has_all_of_its_time_when_it_is() -> None:
    waiting = Waiting()
    while waiting.now < 300:
        waiting.retry.failed(FULL)
    answered_at = waiting.now

    waiting.until_given_up(LOST)

    assert RETRY_S - 10 <= waiting.now - answered_at <= RETRY_S  # less the pauses at both ends


def test_of_several_servers_one_without_a_free_stream_is_enough_to_wait_long() -> None:
    waiting = Waiting("h:1", "h:2")

    words = waiting.until_given_up(FULL, LOST)

    assert waiting.now > BUSY_S - 10
    assert "for a free stream at h:1, h:2" in words


def test_servers_that_take_turns_at_being_full_and_lost_are_given_up_all_the_same() -> None:
    for _ in range(50):  # pauses are random
        waiting = Waiting()

        waiting.until_given_up(FULL, LOST)

        assert waiting.now <= BUSY_S


def test_the_log_says_what_is_waited_for_after_a_while_and_then_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    with caplog.at_level(logging.WARNING, "braidmq.flight"):
        while waiting.now < 4:
            waiting.retry.failed(FULL)
        assert caplog.messages == []
        while waiting.now < 150:
            waiting.retry.failed(FULL)

    assert len(caplog.messages) == 3
    assert caplog.messages[0].startswith("waiting for a free stream at h:1 for ")
    assert caplog.messages[0].endswith(": 16 streams of this reader are open")


def test_the_time_begins_anew_with_every_row() -> None:
    waiting = Waiting()
    while waiting.now < BUSY_S / 2:
        waiting.retry.failed(FULL)
    waiting.retry.progressed()
    resumed_at = waiting.now

    waiting.until_given_up(FULL)

    assert waiting.now - resumed_at > BUSY_S - 10


@pytest.mark.parametrize("rows_before", [0, 3])
def test_a_stream_starts_when_a_busy_server_becomes_free_without_waiting_for_lost_servers(
    history: FakeHistoryService, rows_before: int
) -> None:
    history.add_many("a", 9, shard=0)
    history.broken_after = [rows_before] if rows_before else []
    history.busy = 3

    with flight.connect(history.address, retry_s=0.2) as client:
        table = client.read("a").read_all()

    assert sorted(table.column("position").to_pylist()) == [row["position"] for row in history.rows()]
    assert history.busy == 0
