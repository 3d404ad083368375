"""A real broker for tests, in three lines:

    def test_greeting(braidmq_broker):
        client.connect(braidmq_broker.host, braidmq_broker.port)
        ...

``pytest_plugins = ["braidmq.testing"]`` provides the fixture; without pytest, ``with Broker() as broker:`` does the same.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from braidmq.base.config import sources as config
from braidmq.node import Node

__all__ = ["Broker"]

_START_S = 30.0
T = TypeVar("T")


class Broker:
    """A node in a thread of its own, on free ports of the loopback address, with a temporary data directory.

    Keyword arguments are tables of the configuration: ``Broker(mqtt={"receive_maximum": 10})``. With
    ``history={"bind": "127.0.0.1:0"}`` it also has a history service.
    """

    def __init__(self, **tables: Mapping[str, Any]) -> None:
        self._tables = tables
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.node: Node | None = None
        self.ports: dict[str, int] = {}
        self.host = "127.0.0.1"

    @property
    def port(self) -> int:
        """The port of the first plain TCP listener."""
        return next(port for name, port in self.ports.items() if name.startswith("tcp:"))

    @property
    def history_port(self) -> int:
        """The port of the history service; waits until it listens."""
        assert self.node is not None, "the broker is not running"
        service = self.node.history
        assert service is not None, "this broker has no history service; give it an address"
        self.run(service.wait_up())
        assert service.address is not None
        return service.address.port

    @property
    def data_dir(self) -> Path:
        """The node's data directory, where its control socket is."""
        assert self.node is not None, "the broker is not running"
        return Path(self.node.settings.node.data_dir)

    def __enter__(self) -> Broker:
        self._folder = tempfile.TemporaryDirectory(prefix="braidmq-")
        self._thread = threading.Thread(target=self._run, name="braidmq", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_S):
            raise TimeoutError(f"the broker did not start within {_START_S:g} s")
        if self._failure is not None:
            self._thread.join()
            self._folder.cleanup()
            raise self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None and self._over is not None and self._failure is None:
            self._loop.call_soon_threadsafe(self._over.set)
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()
        if self._failure is not None and error is None:
            raise self._failure

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a function on the broker's loop and return its result; for tests of the broker's internals."""

        async def run() -> T:
            return work(*arguments)

        assert self._loop is not None, "the broker is not running"
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_START_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop and return its result."""
        assert self._loop is not None, "the broker is not running"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    def _run(self) -> None:
        try:
            import uvloop

            runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        except ImportError:
            runner = asyncio.Runner()
        with runner:
            try:
                runner.run(self._serve())
            except BaseException as failure:
                self._failure = failure
            finally:
                self._started.set()

    async def _serve(self) -> None:
        assert self._folder is not None
        tables: dict[str, Any] = {
            "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}, "ws": {"default": {"bind": "127.0.0.1:0"}}},
            "api": {"bind": "127.0.0.1:0"},
            "sys": {"interval": 0},
            **self._tables,
        }
        tables["node"] = {"data_dir": self._folder.name, **tables.get("node", {})}
        tables["history"] = {"bind": "", **tables.get("history", {})}  # the service is a process of its own, which few tests need
        self.node = Node(config.from_tables(tables))
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        await self.node.start()
        self.ports = {name: port for name, (_, port) in self.node.addresses.items()}
        self._started.set()
        await self._over.wait()
        await self.node.stop()


try:
    import pytest
except ImportError:
    pass
else:
    __all__ += ["braidmq_broker"]

    @pytest.fixture
    def braidmq_broker() -> Iterator[Broker]:
        """A broker with the default configuration, on free ports."""
        with Broker() as broker:
            yield broker
