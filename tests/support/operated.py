"""A running broker together with its operator's view of it."""

from __future__ import annotations

from typing import Any

from braidmq.control.contract import Page, PageRequest
from braidmq.operations import NodeOperations
from braidmq.testing import Broker
from tests.support.clients.wire import Wires


class Operated:
    """A broker, clients of it, and its operations called from outside its loop."""

    def __init__(self, broker: Broker) -> None:
        assert broker.node is not None
        self.broker = broker
        self.node = broker.node
        self.connect = Wires(broker.host, broker.port)
        self.operations = NodeOperations(broker.node)

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of an asynchronous operation."""
        return self.broker.run(getattr(self.operations, name)(*arguments))

    def all(self, name: str, limit: int) -> list[Any]:
        """Every item of a list, fetched page by page."""
        items: list[Any] = []
        cursor = ""
        while True:
            page: Page[Any] = self.ask(name, PageRequest(limit=limit, cursor=cursor))
            assert len(page.items) <= limit
            items += page.items
            cursor = page.cursor
            if not cursor:
                return items

    def metrics(self) -> dict[str, float]:
        """The metrics of now."""
        return dict(self.broker.call(self.operations.metrics))

    def rise(self, before: dict[str, float]) -> dict[str, float]:
        """What has changed in the metrics, uptime apart."""
        now = self.metrics()
        return {name: now[name] - before[name] for name in now if now[name] != before[name] and name != "uptime_seconds"}


def qos0(topic: str, payload: bytes) -> bytes:
    """The frame of an MQTT 5 PUBLISH, for clients that are subscribed to what they publish."""
    body = len(topic).to_bytes(2, "big") + topic.encode() + b"\0" + payload
    return bytes((0x30, len(body))) + body
