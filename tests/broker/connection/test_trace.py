"""Following clients and topics on a running node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from braidmq.base.errors import UsageError
from tests.support.operated import Operated, qos0


def test_a_trace_of_a_client_shows_its_packets_both_ways(node: Operated) -> None:
    lines = _Trace(node, "client", "me")

    client = node.connect("me")
    client.subscribe("t")
    client.send(qos0("t", b"hello"))
    client.receive_publish()

    connack, subscribe, suback, published, delivered = lines.take(5)
    assert "me <- CONNACK" in connack
    assert "me -> SUBSCRIBE" in subscribe
    assert "me <- SUBACK" in suback
    assert "me -> PUBLISH" in published
    assert "hello" in published
    assert "me <- PUBLISH" in delivered
    lines.close()
    assert not node.node.broker.tracer.clients


def test_a_trace_of_a_topic_shows_messages_that_match(node: Operated) -> None:
    lines = _Trace(node, "topic", "a/+")
    client = node.connect("me")

    client.publish("b/c", b"no")
    client.publish("a/c", b"yes")

    (line,) = lines.take(1)
    assert "a/c" in line
    assert "yes" in line
    assert "me" in line
    lines.close()


def test_a_trace_whose_reader_is_slow_says_how_much_it_left_out(node: Operated) -> None:
    lines = _Trace(node, "topic", "t")
    client = node.connect()

    client.send(qos0("t", b"") * 5000)
    client.ping()

    shown = 0
    while "omitted" not in (line := lines.take(1)[0]):
        shown += 1
    assert 0 < shown < 5000
    assert f" {5000 - shown} lines omitted" in line
    lines.close()


def test_a_trace_of_an_invalid_filter_is_rejected(node: Operated) -> None:
    with pytest.raises(UsageError):
        node.operations.trace("topic", "a/#/b")


class _Trace:
    """A trace that is being followed on the node's loop; lines are fetched when asked for."""

    def __init__(self, node: Operated, kind: str, value: str) -> None:
        self._run = node.broker.run
        self._lines: AsyncIterator[str] = node.operations.trace(kind, value)  # type: ignore[arg-type]
        self._first: Any = None
        self._run(self._begin())

    async def _begin(self) -> None:
        # The iterator registers when it is first asked.
        self._first = asyncio.ensure_future(self._lines.__anext__())
        await asyncio.sleep(0)

    def take(self, count: int) -> list[str]:
        """The next lines, as many as this."""
        return list(self._run(asyncio.wait_for(self._take(count), 5)))

    async def _take(self, count: int) -> list[str]:
        taken: list[str] = []
        while len(taken) < count:
            taken.append(await (self._first or self._lines.__anext__()))
            self._first = None
        return taken

    def close(self) -> None:
        """Follow no more."""

        async def close() -> None:
            if self._first is not None:
                self._first.cancel()
                await asyncio.wait([self._first])
            await self._lines.aclose()  # type: ignore[attr-defined]

        self._run(close())
