"""Calls between cores: each operation is answered by what serves it, and a core that does not answer is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.net.calls import Calls
from braidmq.net.proto_v1 import AskNode, NodeAnswer
from tests.net.nodes import Owner, run, two_nodes


@contextlib.asynccontextmanager
async def two_cores(directory: Path) -> AsyncIterator[tuple[CoreCalls, CoreCalls]]:
    async with two_nodes(directory / "s") as (left, right):
        yield connected("one", left, {"two": [1, 3]}), connected("two", right, {"one": [0, 2]})


def connected(name: str, owner: Owner, others: dict[str, list[int]]) -> CoreCalls:
    calls = Calls(owner.connection, requests=AskNode, answers=NodeAnswer)
    owner.connection.on_frame = calls.receive
    owner.connection.on_lost = calls.lost
    core = CoreCalls(others)
    for other in others:
        core.up(other, calls)
    return core


def test_an_operation_is_answered_by_what_serves_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_cores(tmp_path) as (one, two):
            two.serve("double", lambda arguments: asyncio.sleep(0, arguments * 2))
            one.serve("length", lambda arguments: asyncio.sleep(0, b"%d" % len(arguments)))

            assert await one.ask("two", "double", b"ab", 30.0) == b"abab"
            assert await two.ask("one", "length", b"abc", 30.0) == b"3"
            with pytest.raises(Unavailable, match="cannot answer 'triple' yet"):
                await one.ask("two", "triple", b"", 30.0)

    run(work())


def test_a_core_that_does_not_answer_is_named_with_its_shards(tmp_path: Path) -> None:
    async def refuse(arguments: bytes) -> bytes:
        raise UsageError("no such thing", "ask for another")

    async def work() -> None:
        async with two_cores(tmp_path) as (one, two):
            never = asyncio.get_running_loop().create_future()
            two.serve("wait", lambda arguments: never)
            two.serve("refuse", refuse)

            with pytest.raises(Unavailable, match=r"core two, which leads shard 1, 3, did not answer within 0\.05 s"):
                await one.ask("two", "wait", b"", 0.05)
            with pytest.raises(UsageError, match="core two: no such thing"):
                await one.ask("two", "refuse", b"", 30.0)
            one.down("two")
            with pytest.raises(Unavailable, match="core two, which leads shard 1, 3, is away"):
                await one.ask("two", "wait", b"", 30.0)

    run(work())
