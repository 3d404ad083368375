"""One trace over all nodes of a cluster: each line begins with the name of the node that it is from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from time import time
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import BraidError
from braidmq.operations.node_traces import TraceRequest

_LINES_MAX: Final = 1000
_ANSWER_S: Final = 5.0
_LOOK_S: Final = 1.0  # for nodes that have joined


class Followed(Protocol):
    """A node, or another core, whose lines are asked for."""

    @property
    def name(self) -> str: ...

    async def ask(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """Its answer. Raises Unavailable and UsageError."""
        ...


async def follow_all(
    name: str,
    own: AsyncIterator[str],
    connected: Callable[[], Iterable[Followed]],
    away: Iterable[str],
    request: TraceRequest,
) -> AsyncIterator[str]:
    """The lines of this core and of all others, those that join meanwhile included, until the iterator is closed.

    ``connected``: those that can be asked now. ``away``: those that cannot, which are named first.
    """
    lines: asyncio.Queue[str] = asyncio.Queue(_LINES_MAX)
    for missing in away:
        yield _missing(missing, "it is away")
    tasks = [
        asyncio.ensure_future(_follow_own(name, own, lines)),
        asyncio.ensure_future(_follow_others(connected, request, lines)),
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


async def _follow_others(connected: Callable[[], Iterable[Followed]], request: TraceRequest, lines: asyncio.Queue[str]) -> None:
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for each in connected():
                task = followed.get(each.name)
                if task is None or task.done():
                    followed[each.name] = asyncio.ensure_future(_follow(each, request, lines))
            await asyncio.sleep(_LOOK_S)
    finally:
        for task in followed.values():
            task.cancel()


async def _follow(followed: Followed, request: TraceRequest, lines: asyncio.Queue[str]) -> None:
    name = followed.name
    try:
        number = await followed.ask("trace_open", msgspec.json.encode(request), _ANSWER_S)
        while True:
            found = msgspec.json.decode(await followed.ask("trace_read", number, _ANSWER_S), type=list[str])
            for line in found:
                await lines.put(f"{name}: {line}")
    except (BraidError, msgspec.MsgspecError) as problem:
        await lines.put(_missing(name, str(problem)))


def _missing(name: str, reason: str) -> str:
    return f"{name}: {time():.3f} lines are missing: {reason}"
