"""One trace over several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from braidmq.base.errors import Unavailable
from braidmq.operations.cluster_trace import follow_all
from braidmq.operations.node_traces import TraceRequest


class Other:
    """A node or core with one line, which goes away then."""

    name = "core2"

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    async def ask(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        self.asked.append((operation, arguments))
        if operation == "trace_open":
            return b"7"
        if len(self.asked) > 2:
            raise Unavailable("core2 is away", 1.0)
        return msgspec.json.encode(["a line"])


def test_lines_of_all_are_marked_and_those_that_are_away_are_named() -> None:
    async def own() -> AsyncIterator[str]:
        yield "my line"

    async def work() -> None:
        other = Other()
        lines = follow_all("core1", own(), lambda: [other], ["core3"], TraceRequest("client", "c"))

        found = [await anext(lines) for _ in range(4)]

        assert found[0].startswith("core3: ")
        assert found[0].endswith("lines are missing: it is away")
        assert found[1:3] == ["core1: my line", "core2: a line"]
        assert found[3].startswith("core2: ")
        assert "lines are missing: core2 is away" in found[3]
        assert other.asked[1:] == [("trace_read", b"7"), ("trace_read", b"7")]
        assert msgspec.json.decode(other.asked[0][1]) == {"kind": "client", "value": "c"}

    asyncio.run(work())
