"""A node without a network, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from braidmq.base.config.settings import NodeSettings, Settings
from braidmq.broker.broker import Broker
from braidmq.node import Node


async def turns_until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; fail if it takes more turns than any of this could need."""
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within 1000 turns")


def with_broker(data_dir: Path, work: Callable[[Broker], Awaitable[None]], recorded: tuple[str, ...] = ("#",)) -> None:
    """Run ``work`` beside a broker that no network leads to, and whose history has these topics."""

    async def run() -> None:
        settings = Settings()
        listeners = replace(settings.listeners, tcp={}, ws={})
        node = Node(
            replace(
                settings,
                node=NodeSettings(data_dir=str(data_dir)),
                listeners=listeners,
                api=replace(settings.api, bind=""),
                history=replace(settings.history, bind="", topics=recorded),
            )
        )
        await node.start()
        try:
            await work(node.broker)
        finally:
            await node.stop()

    asyncio.run(run())
