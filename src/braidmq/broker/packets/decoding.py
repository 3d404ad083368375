"""Decodes large packets in one thread, in the order in which they arrived.

The thread and the loop compete for the interpreter lock. There is one thread, so that the loop has the lock for at least half of
the time, however many clients send large packets.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from braidmq.mqtt import codec
from braidmq.mqtt.packets import Packet


class Decoding:
    """The decoding thread; it starts with the first large packet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="braidmq-decode")

    async def decode(self, first_byte: int, body: bytes, version: int) -> Packet:
        """The packet; raises what ``codec.decode`` raises."""
        return await self._loop.run_in_executor(self._thread, codec.decode, first_byte, body, version)

    def close(self) -> None:
        """End the thread; packets that still wait are not decoded."""
        self._thread.shutdown(wait=False, cancel_futures=True)
