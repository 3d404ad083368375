"""Calls between nodes: answers, deadlines, errors of the one that is asked, and bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.net.calls import CallError, Calls
from braidmq.net.frames import BODY_BYTES_MAX, FrameKind
from braidmq.net.proto_v1 import CallFailed, Register, Registered
from tests.net.nodes import Owner, run, two_nodes, until

REGISTER = Register("edge1", b"key", 0)
REGISTERED = Registered(1, 7, 100, b"log", 4, [])


class Unknown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request that the other side was not told of."""

    text: str


class Side(Calls):
    """Calls with their connection's callbacks in place."""

    def __init__(self, owner: Owner, **options: Any) -> None:
        super().__init__(owner.connection, requests=Register, answers=Registered, **options)
        self.owner = owner
        owner.connection.on_frame = self.receive
        owner.connection.on_lost = self._on_lost

    def _on_lost(self, reason: str) -> None:
        self.lost(reason)
        self.owner._on_lost(reason)


@contextlib.asynccontextmanager
async def two_sides(directory: Path, **options: Any) -> AsyncIterator[tuple[Side, Side]]:
    """The side that asks and the one that answers."""
    async with two_nodes(directory / "s") as (edge, core):
        yield Side(edge, **options), Side(core, **options)


def test_a_call_is_answered_by_a_function_or_a_coroutine(tmp_path: Path) -> None:
    async def answer(request: Register) -> Registered:
        await asyncio.sleep(0)
        return Registered(2, request.incarnation, 100, b"log", 4, [])

    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.serve({Register: lambda request: REGISTERED})
            assert await edge.call(REGISTER, 5.0) == REGISTERED
            core.serve({Register: answer})
            assert await edge.call(Register("a", b"", 9), 5.0) == Registered(2, 9, 100, b"log", 4, [])
            edge.serve({Register: lambda request: REGISTERED})
            assert await core.call(REGISTER, 5.0) == REGISTERED  # in the other direction
            assert edge.waiting == core.serving == 0

    run(work())


def test_answers_find_their_calls_in_any_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            held: dict[int, asyncio.Future[Registered]] = {}

            def hold(request: Register) -> asyncio.Future[Registered]:
                held[request.incarnation] = asyncio.get_running_loop().create_future()
                return held[request.incarnation]

            core.serve({Register: hold})
            calls = [asyncio.ensure_future(edge.call(Register("a", b"", number), 5.0)) for number in range(5)]
            await until(lambda: len(held) == 5)
            for number in (3, 0, 4, 1, 2):
                held[number].set_result(Registered(number, 0, 0, b"", 4, []))

            assert [answer.registration_id for answer in await asyncio.gather(*calls)] == list(range(5))  # type: ignore[attr-defined]

    run(work())


def test_a_call_fails_at_its_deadline_and_its_late_answer_is_ignored(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            late: asyncio.Future[Registered] = asyncio.get_running_loop().create_future()
            core.serve({Register: lambda request: late})

            with pytest.raises(Unavailable, match=r"core1.*did not answer in time") as caught:
                await edge.call(REGISTER, 0.02)
            assert caught.value.retry_after_s > 0
            late.set_result(REGISTERED)
            await until(lambda: edge.late_answers == 1)

            core.serve({Register: lambda request: REGISTERED})
            assert await edge.call(REGISTER, 5.0) == REGISTERED

    run(work())


def test_a_second_answer_to_a_call_is_ignored(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):

            def answer_twice(request: Register) -> Registered:
                core.connection.send(FrameKind.ANSWER, 1, msgspec.msgpack.encode(REGISTERED))
                return Registered(2, 2, 2, b"", 4, [])

            core.serve({Register: answer_twice})

            assert await edge.call(REGISTER, 5.0) == REGISTERED
            await until(lambda: edge.late_answers == 1)
            assert edge.connection.is_open

    run(work())


def test_an_answer_to_a_call_that_was_not_made_ends_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.connection.send(FrameKind.ANSWER, 77, msgspec.msgpack.encode(REGISTERED))

            assert "call 77" in await edge.owner.has_lost()

    run(work())


def test_calls_fail_when_the_connection_is_lost_and_afterwards(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            never: asyncio.Future[Registered] = asyncio.get_running_loop().create_future()
            core.serve({Register: lambda request: never})
            call = asyncio.ensure_future(edge.call(REGISTER, 60.0))
            await until(lambda: core.serving == 1)
            core.connection.abort("gone")

            with pytest.raises(Unavailable, match="lost"):
                await call
            with pytest.raises(Unavailable, match="lost"):
                await edge.call(REGISTER, 60.0)
            await core.owner.has_lost()
            assert never.cancelled()
            assert edge.waiting == core.serving == 0

    run(work())


def test_a_caller_that_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            never: asyncio.Future[Registered] = asyncio.get_running_loop().create_future()
            core.serve({Register: lambda request: never})
            call = asyncio.ensure_future(edge.call(REGISTER, 60.0))
            await until(lambda: core.serving == 1)

            call.cancel()
            await asyncio.wait({call})

            assert edge.waiting == 0

    run(work())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "words", "retry_after_s", "level"),
    [
        (UsageError("another node has this name"), "another node has this name", 0.0, logging.WARNING),
        (Unavailable("no disk", 7.0), "no disk", 7.0, logging.INFO),
        (KeyError("surprise"), "Register failed: KeyError", 0.0, logging.ERROR),
    ],
    ids=["refused", "unavailable", "a bug"],
)
def test_an_error_of_the_handler_is_told_to_the_caller_and_logged(
    tmp_path: Path,
    error: Exception,
    words: str,
    retry_after_s: float,
    level: int,
    is_async: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(request: Register) -> Registered:
        raise error

    async def fail_later(request: Register) -> Registered:
        raise error

    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.serve({Register: fail_later if is_async else fail})

            with pytest.raises(CallError, match=words) as caught:
                await edge.call(REGISTER, 5.0)

            assert caught.value.retry_after_s == retry_after_s
            assert edge.connection.is_open

    with caplog.at_level(logging.INFO, "braidmq.net"):
        run(work())

    assert [line.levelno for line in caplog.records if "edge1" in line.getMessage()] == [level]


def test_a_request_without_a_handler_is_answered_with_a_failure(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, _):
            with pytest.raises(CallError, match="does not answer Register"):
                await edge.call(REGISTER, 5.0)

    run(work())


@pytest.mark.parametrize(
    "body", [b"", b"garbage", msgspec.msgpack.encode(Unknown("x")), msgspec.msgpack.encode(["Register", 1, 2, 3])]
)
def test_a_request_of_another_type_ends_the_connection(tmp_path: Path, body: bytes) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.serve({Register: lambda request: REGISTERED})
            edge.connection.send(FrameKind.CALL, 1, body)

            assert "an invalid call" in await core.owner.has_lost()

    run(work())


def test_a_frame_that_is_no_call_ends_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            edge.connection.send(FrameKind.FEED, 1, b"")

            assert "kind FEED" in await core.owner.has_lost()

    run(work())


def test_calls_under_way_are_bounded_on_both_sides(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_nodes(tmp_path / "s") as (edge_owner, core_owner):
            edge, core = Side(edge_owner, calls_max=4), Side(core_owner, served_max=3)
            gate: asyncio.Future[Registered] = asyncio.get_running_loop().create_future()

            async def wait(request: Register) -> Registered:
                return await asyncio.shield(gate)

            core.serve({Register: wait})
            calls = [asyncio.ensure_future(edge.call(REGISTER, 60.0)) for _ in range(4)]
            with pytest.raises(CallError, match="3 calls are under way") as refused:
                await calls[3]
            assert refused.value.retry_after_s > 0
            more = asyncio.ensure_future(edge.call(REGISTER, 60.0))
            with pytest.raises(CallError):
                await more
            last = [asyncio.ensure_future(edge.call(REGISTER, 60.0)) for _ in range(2)]
            await asyncio.wait(last)
            assert [type(call.exception()) for call in last] == [CallError, Unavailable]
            gate.set_result(REGISTERED)

            assert await asyncio.gather(*calls[:3]) == [REGISTERED] * 3

    run(work())


def test_an_answer_that_is_too_large_for_a_frame_is_a_failure(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.serve({Register: lambda request: Registered(1, 1, 1, bytes(BODY_BYTES_MAX), 4, [])})

            with pytest.raises(CallError, match="too large"):
                await edge.call(REGISTER, 5.0)
            assert edge.connection.is_open

    run(work())


def test_a_handler_may_answer_with_a_failure_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_sides(tmp_path) as (edge, core):
            core.serve({Register: lambda request: CallFailed("not now", 3.0)})

            with pytest.raises(CallError, match="not now") as caught:
                await edge.call(REGISTER, 5.0)
            assert caught.value.retry_after_s == 3.0

    run(work())
