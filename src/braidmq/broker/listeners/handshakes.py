"""Limits the cost of TLS handshakes of unauthenticated peers.

A handshake has a buffer of OpenSSL, one of the loop and up to 128 KiB of a client's hello, and it takes a signature: about a
millisecond of the loop's time. So

- a connection that says nothing has none of that: its handshake begins with its first byte;
- a turn of the loop begins at most ``STARTS_PER_TURN``, and the clients that are connected have their turn in between;
- no more than ``handshakes_max`` are under way. For one more the oldest gives way. Honest clients are done after two round trips,
  so the oldest handshake is that of a client that does not go on.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STARTS_PER_TURN: Final = 8


class Handshakes:
    """The handshakes of one listener. ``under_way_max`` may change at any time."""

    def __init__(self, under_way_max: int) -> None:
        self.under_way_max = under_way_max
        self._under_way: dict[object, Callable[[], None]] = {}  # how to give way, the oldest first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = STARTS_PER_TURN  # of this turn
        self._is_turning = False

    async def wait_for_turn(self, accepted: socket.socket) -> None:
        """Wait until the client has sent something, then until this turn of the loop may begin another handshake."""
        await _readable(accepted)
        loop = asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    @contextmanager
    def begun(self, give_way: Callable[[], None]) -> Iterator[None]:
        """A handshake is under way in this block; ``give_way`` is called if it has become the oldest of too many."""
        while len(self._under_way) >= self.under_way_max:
            self._under_way.pop(next(iter(self._under_way)))()
        token = object()
        self._under_way[token] = give_way
        try:
            yield
        finally:
            self._under_way.pop(token, None)

    def _turn(self) -> None:
        self._left = STARTS_PER_TURN
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its client may have left
                turn.set_result(None)
                self._left -= 1
        self._is_turning = self._left < STARTS_PER_TURN
        if self._is_turning:
            asyncio.get_running_loop().call_soon(self._turn)


async def _readable(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(accepted, on_ready)
    try:
        await ready
    finally:
        loop.remove_reader(accepted)
