"""Traces single clients or topics on a running node; without readers there is no cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import time

from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import PacketType
from braidmq.mqtt.topics import matches

_LINES_MAX = 1000  # that a slow reader may be behind
_SHOWN_BYTES = 64


class _Reader:
    """The lines for one reader; if it is slow, the broker omits lines and says so instead of waiting."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue(_LINES_MAX)
        self._missed = 0

    def tell(self, line: str) -> None:
        """Pass the line on, or count it."""
        if self._lines.qsize() + 2 > _LINES_MAX:  # a line about those left out must fit too
            self._missed += 1
            return
        if self._missed:
            self._lines.put_nowait(self._excuse())
        self._lines.put_nowait(line)

    async def next(self) -> str:
        """The next line."""
        if self._missed and self._lines.empty():
            return self._excuse()
        return await self._lines.get()

    def _excuse(self) -> str:
        missed, self._missed = self._missed, 0
        return f"{time():.3f} {missed} lines omitted: the reader is too slow"


class Tracer:
    """The traced clients and topics. ``on_change`` is called when they change, to mark channels and routes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.clients: dict[str, list[_Reader]] = {}
        self.filters: dict[str, list[_Reader]] = {}
        self._on_change = on_change

    def concerns(self, topic: str) -> bool:
        """Whether messages of the topic are traced."""
        return any(matches(topic_filter, topic) for topic_filter in self.filters)

    async def follow(self, kind: str, value: str) -> AsyncIterator[str]:
        """Lines about one ``client`` (id) or ``topic`` (filter), until the caller stops."""
        followed = self.clients if kind == "client" else self.filters
        reader = _Reader()
        followed.setdefault(value, []).append(reader)
        self._on_change()
        try:
            while True:
                yield await reader.next()
        finally:
            followed[value].remove(reader)
            if not followed[value]:
                del followed[value]
            self._on_change()

    def on_message(self, message: Message) -> None:
        """A message of a traced topic was published."""
        topic = message.topic.decode()
        line = (
            f"PUBLISH {topic} from {message.publisher or '-'} qos={message.qos} retain={int(message.retain)}"
            f" payload={_shown(message.payload)}"
        )
        for topic_filter, readers in self.filters.items():
            if matches(topic_filter, topic):
                _tell(readers, line)

    def on_frame(self, client_id: str, inbound: bool, frame: bytes) -> None:
        """A traced client received or sent a frame. Of CONNECT and AUTH only the name is shown, because they contain secrets."""
        kind = frame[0] >> 4
        name = PacketType(kind).name if 1 <= kind <= 15 else f"type {kind}"
        shown = "" if kind in (PacketType.CONNECT, PacketType.AUTH) else f" {_shown(frame[2:])}"
        _tell(self.clients.get(client_id, []), f"{client_id} {'->' if inbound else '<-'} {name} {len(frame)} bytes{shown}")


def _shown(data: bytes) -> str:
    cut = "..." if len(data) > _SHOWN_BYTES else ""
    return repr(data[:_SHOWN_BYTES])[1:] + cut


def _tell(readers: list[_Reader], line: str) -> None:
    stamped = f"{time():.3f} {line}"
    for reader in readers:
        reader.tell(stamped)
