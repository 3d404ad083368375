"""A durable log on the running loop, as the operations of a node see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from braidmq.access.local import LocalAccess
from braidmq.base.config.settings import HistorySettings, NodeSettings, Settings
from braidmq.control import history as api
from braidmq.storage.engine.health import HEALTHY
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.shard.clock import ShardClock
from tests.support.appending import append


class Recording:
    """A log without a broker; ``settings``, ``log`` and ``log_health`` are those of a node."""

    def __init__(self, settings: Settings, log: DurableLog) -> None:
        self.settings = settings
        self.log = log
        self.log_health = HEALTHY
        self.history: Any = None  # no history service
        self.access = LocalAccess(settings)

    async def append(self, *messages: tuple[str, str, bytes], **fields: Any) -> list[int]:
        """Record messages of (client id, topic, payload); gives their timestamps once they are committed."""
        done = asyncio.get_running_loop().create_future()
        stamps: list[int] = []

        def committed(_: int, timestamp: int) -> None:
            stamps.append(timestamp)
            if len(stamps) == len(messages):
                done.set_result(stamps)

        def refused(refusal: WriteRefusal) -> None:
            done.set_exception(AssertionError(refusal.reason))

        for client_id, topic, payload in messages:
            append(self.log, client_id, topic.encode(), payload, on_commit=committed, on_refused=refused, **fields)
        self.log.flush()
        return await asyncio.wait_for(done, 10)


@asynccontextmanager
async def recording(
    data_dir: Path, *, options: LogOptions | None = None, clock: ShardClock | None = None, **history: Any
) -> AsyncIterator[Recording]:
    """Open a log in the directory and commit to it on this loop."""
    settings = Settings(node=NodeSettings(data_dir=str(data_dir)), history=HistorySettings(**{"shards": 3, **history}))
    log = DurableLog.open(data_dir, settings.history, clock=clock, options=options or LogOptions())
    log.start(asyncio.get_running_loop().call_soon_threadsafe)
    try:
        yield Recording(settings, log)
    finally:
        log.close()


async def lines_of(answer: AsyncIterator[bytes]) -> list[api.AnyLine]:
    """All lines of an answer."""
    return [api.decode_line(line) for some in [some async for some in answer] for line in some.splitlines()]


def records_of(lines: list[api.AnyLine]) -> list[api.RecordLine]:
    """The records among the lines."""
    return [line for line in lines if isinstance(line, api.RecordLine)]
