"""An authenticator that is slow, down or broken rejects all logins, is left alone for a while, and raises one alarm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from braidmq.access.contract import Credentials, Exchange, Granted, Refused, Verdict
from braidmq.access.guarded import Deadline
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.support.fakes.clock import FakeClock

# What a backend that is not type-checked may put into its verdict.
NO_NAME: Any = 7
NO_REASON: Any = "x"


class FakeBackend:
    """Answers with what the test gives it; counts how often it was asked."""

    methods = frozenset({"TEST"})

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.answer = answer
        self.asked = 0

    async def authenticate(self, credentials: Credentials) -> Verdict:
        self.asked += 1
        verdict: Verdict = await self.answer()
        return verdict

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        backend = self

        class FakeExchange:
            async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
                backend.asked += 1
                answer: tuple[bytes, Verdict | None] = await backend.answer()
                return answer

        return FakeExchange()


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
def test_a_sound_verdict_passes_unchanged(verdict: Verdict) -> None:
    assert run(Deadline(FakeBackend(answering(verdict)), 1).authenticate(login("alice"))) == verdict


@pytest.mark.parametrize("answer", [never, broken, deaf])
def test_silence_and_failure_are_refused(answer: Callable[[], Awaitable[Any]]) -> None:
    verdict = run(Deadline(FakeBackend(answer), 0.02).authenticate(login("alice")))

    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


@pytest.mark.parametrize(
    "rubbish",
    [None, True, 0, "ok", Granted(NO_NAME), Refused(0, "success"), Refused(NO_REASON, "y"), object(), {"result": "allow"}],
)
def test_rubbish_is_refused(rubbish: object) -> None:
    verdict = run(Deadline(FakeBackend(answering(rubbish)), 1).authenticate(login("alice")))

    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


@pytest.mark.parametrize(
    "rubbish", [None, b"data", (b"data",), ("text", None), (b"", True), (b"", Granted(NO_NAME)), (b"", None, None)]
)
def test_rubbish_in_an_exchange_is_refused(rubbish: object) -> None:
    data, verdict = run(Deadline(FakeBackend(answering(rubbish)), 1).begin("TEST", login()).step(b"x"))

    assert data == b""
    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


def test_an_exchange_passes_unchanged_step_by_step() -> None:
    async def scenario() -> None:
        backend = FakeBackend(answering((b"challenge", None)))
        deadline = Deadline(backend, 1)
        exchange = deadline.begin("TEST", login())

        assert deadline.methods == {"TEST"}
        assert await exchange.step(b"first") == (b"challenge", None)
        backend.answer = answering((b"done", Granted("alice")))
        assert await exchange.step(b"second") == (b"done", Granted("alice"))

    run(scenario())


def test_an_exchange_that_cannot_begin_is_refused() -> None:
    class NoExchange(FakeBackend):
        def begin(self, method: str, credentials: Credentials) -> Exchange:
            raise RuntimeError("no")

    _, verdict = run(Deadline(NoExchange(never), 1).begin("TEST", login()).step(b""))

    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.SERVER_UNAVAILABLE


def test_after_failures_in_a_row_the_backend_rests_and_then_gets_one_request(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        backend = FakeBackend(broken)
        deadline = Deadline(backend, 1, pause_s=2, clock=clock)
        for _ in range(10):
            await deadline.authenticate(login("alice"))
        assert (backend.asked, deadline.guard.is_alarmed) == (3, True)

        clock.advance(2)
        await asyncio.gather(*(deadline.authenticate(login(f"user{number}")) for number in range(10)))
        assert backend.asked == 4

        clock.advance(2)
        backend.answer = answering(Granted("alice"))
        assert await deadline.authenticate(login("alice")) == Granted("alice")
        assert not deadline.guard.is_alarmed
        assert await deadline.authenticate(login("alice")) == Granted("alice")

    with caplog.at_level(logging.WARNING):
        run(scenario())

    assert sum("ALARM" in record.getMessage() for record in caplog.records) == 1
    assert sum("answers again" in record.getMessage() for record in caplog.records) == 1


def test_a_rejection_by_the_backend_does_not_count_as_its_failure() -> None:
    async def scenario() -> None:
        backend = FakeBackend(answering(Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "no")))
        deadline = Deadline(backend, 1)
        for _ in range(10):
            await deadline.authenticate(login("alice"))
        assert backend.asked == 10

    run(scenario())


def test_questions_under_way_are_bounded_even_those_given_up() -> None:
    async def scenario() -> None:
        backend = FakeBackend(deaf)
        deadline = Deadline(backend, 0.01, waiting_max=2)

        await asyncio.gather(*(deadline.authenticate(login(f"user{number}")) for number in range(2)))
        verdict = await deadline.authenticate(login("late"))

        assert isinstance(verdict, Refused)
        assert verdict.reason == Reason.CONNECTION_RATE_EXCEEDED
        assert backend.asked == 2
        for task in list(deadline.guard._under_way):
            task.cancel()

    run(scenario())


def test_secrets_do_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        run(Deadline(FakeBackend(broken), 1).authenticate(login("alice", b"hunter2")))

    assert caplog.records
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(login("alice", b"hunter2"))
