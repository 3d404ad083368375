"""An authenticator that is slow, down or broken rejects all logins, is left alone for a while, and raises one alarm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.access.guarded import Breaker, is_verdict
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.support.fakes.clock import FakeClock

# What a backend that is not type-checked may put into its verdict.
NO_NAME: Any = 7
NO_REASON: Any = "x"


class FakeBackend:
    """Answers with what the test gives it; counts how often it was asked."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.answer = answer
        self.asked = 0

    async def authenticate(self, credentials: Credentials) -> Verdict:
        self.asked += 1
        verdict: Verdict = await self.answer()
        return verdict

    async def ask(self, breaker: Breaker, password: bytes = b"secret") -> Verdict:
        """Ask it through a breaker."""
        credentials = login("alice", password)
        return await breaker.ask(lambda: self.authenticate(credentials), is_verdict)


def answering(value: object) -> Callable[[], Awaitable[Any]]:
    async def answer() -> object:
        return value

    return answer


async def never() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ConnectionError("the database is gone")


async def deaf() -> None:
    """Does not even heed being cancelled, once."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


@pytest.mark.parametrize("verdict", [Granted("alice"), Granted(None), Refused(Reason.NOT_AUTHORIZED, "no")])
def test_a_valid_verdict_is_passed_on_unchanged(verdict: Verdict) -> None:
    assert run(FakeBackend(answering(verdict)).ask(Breaker(1))) == verdict


@pytest.mark.parametrize("answer", [never, broken, deaf])
def test_a_timeout_or_a_failure_is_a_rejection(answer: Callable[[], Awaitable[Any]]) -> None:
    verdict = run(FakeBackend(answer).ask(Breaker(0.02)))

    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


@pytest.mark.parametrize(
    "rubbish",
    [None, True, 0, "ok", Granted(NO_NAME), Refused(0, "success"), Refused(NO_REASON, "y"), object(), {"result": "allow"}],
)
def test_an_invalid_verdict_is_a_rejection(rubbish: object) -> None:
    verdict = run(FakeBackend(answering(rubbish)).ask(Breaker(1)))

    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


def test_after_consecutive_failures_the_backend_is_paused_and_then_gets_one_request(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        backend = FakeBackend(broken)
        breaker = Breaker(1, pause_s=2, clock=clock)
        for _ in range(10):
            await backend.ask(breaker)
        assert (backend.asked, breaker.is_alarmed) == (3, True)

        clock.advance(2)
        await asyncio.gather(*(backend.ask(breaker) for _ in range(10)))
        assert backend.asked == 4

        clock.advance(2)
        backend.answer = answering(Granted("alice"))
        assert await backend.ask(breaker) == Granted("alice")
        assert not breaker.is_alarmed
        assert await backend.ask(breaker) == Granted("alice")

    with caplog.at_level(logging.WARNING):
        run(scenario())

    assert sum("ALARM" in record.getMessage() for record in caplog.records) == 1
    assert sum("answers again" in record.getMessage() for record in caplog.records) == 1


def test_a_rejection_by_the_backend_does_not_count_as_its_failure() -> None:
    async def scenario() -> None:
        backend = FakeBackend(answering(Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "no")))
        breaker = Breaker(1)
        for _ in range(10):
            await backend.ask(breaker)
        assert backend.asked == 10

    run(scenario())


def test_pending_requests_are_bounded_including_abandoned_ones() -> None:
    async def scenario() -> None:
        backend = FakeBackend(deaf)
        breaker = Breaker(0.01, waiting_max=2)

        await asyncio.gather(*(backend.ask(breaker) for _ in range(2)))
        verdict = await backend.ask(breaker)

        assert isinstance(verdict, Refused)
        assert verdict.reason == Reason.CONNECTION_RATE_EXCEEDED
        assert backend.asked == 2
        for task in list(breaker._under_way):
            task.cancel()

    run(scenario())


def test_secrets_do_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        run(FakeBackend(broken).ask(Breaker(1), b"hunter2"))

    assert caplog.records
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(login("alice", b"hunter2"))
