"""One trace over all nodes of a cluster: each line begins with the name of the node that it is from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import time
from typing import Final

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.administration.questions import NodeQuestions
from braidmq.operations.node_traces import TraceRequest

_LINES_MAX: Final = 1000
_ANSWER_S: Final = 5.0
_LOOK_S: Final = 1.0  # for nodes that have joined


async def follow_all(name: str, own: AsyncIterator[str], questions: NodeQuestions, request: TraceRequest) -> AsyncIterator[str]:
    """The lines of this core and of all nodes, those that join meanwhile included, until the iterator is closed."""
    lines: asyncio.Queue[str] = asyncio.Queue(_LINES_MAX)
    tasks = [
        asyncio.ensure_future(_follow_own(name, own, lines)),
        asyncio.ensure_future(_follow_nodes(questions, request, lines)),
    ]
    try:
        while True:
            yield await lines.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow_own(name: str, own: AsyncIterator[str], lines: asyncio.Queue[str]) -> None:
    async for line in own:
        await lines.put(f"{name}: {line}")


async def _follow_nodes(questions: NodeQuestions, request: TraceRequest, lines: asyncio.Queue[str]) -> None:
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for node in questions.nodes():
                task = followed.get(node.name)
                if node.is_connected and (task is None or task.done()):
                    followed[node.name] = asyncio.ensure_future(_follow_node(node.name, questions, request, lines))
            await asyncio.sleep(_LOOK_S)
    finally:
        for task in followed.values():
            task.cancel()


async def _follow_node(name: str, questions: NodeQuestions, request: TraceRequest, lines: asyncio.Queue[str]) -> None:
    try:
        number = await questions.ask(name, "trace_open", msgspec.json.encode(request))
        while True:
            found = msgspec.json.decode(await questions.ask(name, "trace_read", number, _ANSWER_S), type=list[str])
            for line in found:
                await lines.put(f"{name}: {line}")
    except (BraidError, msgspec.MsgspecError) as problem:
        await lines.put(f"{name}: {time():.3f} lines are missing: {problem}")
