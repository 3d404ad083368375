"""Listeners with an echo behind them: everything about a connection but MQTT, observable by tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from braidmq.base.config.settings import LimitSettings, Listeners, ListenerSettings, MqttSettings, Settings
from braidmq.broker.listeners import ListenerInfo, ListenerSet, Origin, describe_peer

DEADLINE_S = 5.0

Result = TypeVar("Result")

LOOPS = ("uvloop", "asyncio")


def run(loop_name: str, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a test's coroutine on one of ``LOOPS``; what reaches the loop's exception handler fails the test."""
    noise: list[dict[str, Any]] = []

    async def guarded() -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
        return await asyncio.wait_for(coroutine, 4 * DEADLINE_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop) as runner:
        result = runner.run(guarded())
    assert not noise
    return result


class EchoConnection(asyncio.BufferedProtocol):
    """Sends back what it gets, each piece as it came."""

    def __init__(self, house: EchoHouse, listener: ListenerInfo) -> None:
        self.house = house
        self.listener = listener
        self.received = bytearray()
        self.pieces: list[bytes] = []
        self.writing_paused = 0
        self.writing_resumed = 0
        self.is_lost = False
        self._buffer = bytearray(4096)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.origin: Origin = describe_peer(transport, self.listener)
        self.house.met(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.feed(bytes(self._buffer[:nbytes]))

    def feed(self, data: bytes) -> None:
        self.received += data
        self.pieces.append(data)
        if self.house.echoes:
            self.transport.write(data)
        self.house.changed.set()

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self.writing_paused += 1
        self.house.changed.set()

    def resume_writing(self) -> None:
        self.writing_resumed += 1
        self.house.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.listener.release()
        self.house.changed.set()


class EchoHouse:
    """A ``ListenerSet`` whose connections echo; use it with ``open_house``."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        self.echoes = True
        self.on_met: Callable[[], None] = lambda: None  # called within ``connection_made``
        self.connections: list[EchoConnection] = []
        self.refusals: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self._settings = settings
        self.listeners = ListenerSet(
            settings, lambda listener: EchoConnection(self, listener), on_refused=self._refused, **options
        )

    def met(self, connection: EchoConnection) -> None:
        """A connection came to life."""
        self.connections.append(connection)
        self.on_met()
        self.changed.set()

    def address(self, listener: str) -> tuple[str, int]:
        """Where that listener listens."""
        return self.listeners.addresses()[listener]

    def live(self, listener: str) -> int:
        """How many places are taken there."""
        return self.listeners.listeners[listener].live

    async def read_certificates_again(self) -> None:
        """As a reload of unchanged settings does."""
        await self.listeners.reconfigure(self._settings)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; looked at after each event, and now and then for places taken silently."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.01)

    def _refused(self, listener: str, reason: str) -> None:
        self.refusals[reason] += 1
        # The place is given back after the reason is told.
        asyncio.get_running_loop().call_soon(self.changed.set)


@contextlib.asynccontextmanager
async def open_house(
    *,
    limits: LimitSettings | None = None,
    mqtt: MqttSettings | None = None,
    options: dict[str, Any] | None = None,
    **kinds: ListenerSettings,
) -> AsyncIterator[EchoHouse]:
    """Start one listener of each kind given, named ``default``; ``options`` are those of ``ListenerSet``."""
    listeners = Listeners(**{kind: {"default": listener} for kind, listener in kinds.items()})
    settings = Settings(listeners=listeners, limits=limits or LimitSettings(), mqtt=mqtt or MqttSettings())
    house = EchoHouse(settings, **(options or {}))
    await house.listeners.start()
    try:
        yield house
    finally:
        house.listeners.stop_accepting()
        for connection in house.connections:
            connection.transport.abort()
        await asyncio.sleep(0)
