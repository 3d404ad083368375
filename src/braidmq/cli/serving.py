"""What all commands that run a node have in common: the event loop and the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from braidmq.base.errors import Unavailable

log = logging.getLogger("braidmq.node")

# Thresholds of the garbage collector. Young objects are collected 1,000 and 4,000 at a time, which takes about a millisecond;
# larger steps would pause every client noticeably. A full collection runs only after forty million new objects, or after 50 s of
# long work, which collects young objects too (`broker.bounds.turns`): each client has some twenty long-lived objects, scanning
# those of a large fleet takes tenths of a second, and ended clients leave no cycles.
_GC_THRESHOLDS: Final = (1000, 3, 10_000)


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a node to its end, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # not available on every platform; asyncio's own loop does the same, slower
        log.warning("uvloop is not installed: the node runs on asyncio's own event loop, several times slower")
        asyncio.run(work)
    else:
        uvloop.run(work)


def tune_collector() -> None:
    """For a node that has started. Restored state is long-lived: scanning 100,000 sessions would stop everything for 0.2 s."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class RunningProcess(Protocol):
    """A node of any role."""

    async def start(self) -> None:
        """Start everything."""
        ...

    async def stop(self) -> None:
        """Stop everything."""
        ...

    async def wait_ended(self) -> str:
        """Wait until the node must be stopped; the reason."""
        ...


async def start_until(node: RunningProcess, over: asyncio.Event) -> bool:
    """Start a node, which may have to wait for its core; False if it is over before that, and the node is stopped."""
    starting = asyncio.ensure_future(node.start())
    waiting = asyncio.ensure_future(over.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if starting.done():
        starting.result()
        tune_collector()
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    return False


async def run_until(node: RunningProcess, over: asyncio.Event) -> None:
    """Wait until it is over, and stop the node. Raises Unavailable if the node itself has to end."""
    if reason := await run_to_end(node, over):
        raise Unavailable(reason)


async def run_to_end(node: RunningProcess, over: asyncio.Event) -> str:
    """Wait until it is over, and stop the node; why it had to end, or nothing."""
    ended = asyncio.ensure_future(node.wait_ended())
    waiting = asyncio.ensure_future(over.wait())
    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    log.info("stopping")
    await node.stop()
    if ended.done():
        return ended.result()
    ended.cancel()
    return ""


def free_stopped() -> None:
    """A node has stopped, and another one follows: give the memory of the first one back."""
    gc.unfreeze()
    gc.collect()
