"""The API over ``FakeOperations``, in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from braidmq.api.server import ApiServer
from tests.support.fakes.operations import FakeOperations


class ApiNode:
    """``with ApiNode(data_dir) as node``: both doors of the API are open; ``node.operations`` is what they show."""

    operations: FakeOperations
    server: ApiServer

    def __init__(self, data_dir: Path, bind: str = "127.0.0.1:0") -> None:
        self._data_dir = data_dir
        self._bind = bind
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> ApiNode:
        self._thread.start()
        try:
            self.call(self._start())
        except BaseException:
            self._end()
            raise
        return self

    async def _start(self) -> None:
        self.operations = FakeOperations()
        self.server = ApiServer(self.operations, bind=self._bind, data_dir=self._data_dir)
        await self.server.start()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.call(self.server.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the loop of the API and give its result."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout=10)

    @property
    def url(self) -> str:
        """Where TCP listens."""
        assert self.server.address is not None
        return f"http://{self.server.address}"
