"""Following single clients or topics on a running node: lines for whoever listens, nothing for anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import time

from braidmq.lane.message import Message
from braidmq.mqtt.packets import PacketType
from braidmq.mqtt.topics import matches

_LINES_MAX = 1000  # that a slow reader may be behind
_SHOWN_BYTES = 64


class Tracer:
    """Who is being followed. ``on_change`` is called whenever that changes, so that channels and routes can be marked."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.clients: dict[str, list[asyncio.Queue[str]]] = {}
        self.filters: dict[str, list[asyncio.Queue[str]]] = {}
        self._on_change = on_change

    def concerns(self, topic: str) -> bool:
        """Whether messages of the topic are followed."""
        return any(matches(topic_filter, topic) for topic_filter in self.filters)

    async def follow(self, kind: str, value: str) -> AsyncIterator[str]:
        """Lines about one ``client`` (id) or ``topic`` (filter), until the caller stops."""
        followed = self.clients if kind == "client" else self.filters
        queue: asyncio.Queue[str] = asyncio.Queue(_LINES_MAX)
        followed.setdefault(value, []).append(queue)
        self._on_change()
        try:
            while True:
                yield await queue.get()
        finally:
            followed[value].remove(queue)
            if not followed[value]:
                del followed[value]
            self._on_change()

    def on_message(self, message: Message) -> None:
        """A message of a followed topic passes."""
        topic = message.topic.decode()
        line = (
            f"PUBLISH {topic} from {message.publisher or '-'} qos={message.qos} retain={int(message.retain)}"
            f" payload={_shown(message.payload)}"
        )
        for topic_filter, queues in self.filters.items():
            if matches(topic_filter, topic):
                _tell(queues, line)

    def on_frame(self, client_id: str, inbound: bool, frame: bytes) -> None:
        """A frame of a followed client passes. CONNECT and AUTH are named only: they hold secrets."""
        kind = frame[0] >> 4
        name = PacketType(kind).name if 1 <= kind <= 15 else f"type {kind}"
        shown = "" if kind in (PacketType.CONNECT, PacketType.AUTH) else f" {_shown(frame[2:])}"
        _tell(self.clients.get(client_id, []), f"{client_id} {'->' if inbound else '<-'} {name} {len(frame)} bytes{shown}")

    def on_event(self, client_id: str, event: str) -> None:
        """Something else happened to a followed client."""
        _tell(self.clients.get(client_id, []), f"{client_id} {event}")


def _shown(data: bytes) -> str:
    cut = "..." if len(data) > _SHOWN_BYTES else ""
    return repr(data[:_SHOWN_BYTES])[1:] + cut


def _tell(queues: list[asyncio.Queue[str]], line: str) -> None:
    stamped = f"{time():.3f} {line}"
    for queue in queues:
        if not queue.full():  # a reader that is behind misses lines, the broker does not wait
            queue.put_nowait(stamped)
