"""``braidmq start``: a node that was declared dead starts again as a new member, where its clients find it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import Config, from_settings
from braidmq.base.errors import Unavailable
from braidmq.cli import start
from braidmq.cluster.membership.members import DECLARED_DEAD


class EndingNode:
    """A node that ends at once, for a reason; it is bound to a port that the system chose."""

    api_address = Address("127.0.0.1", 8081)
    cluster_address = None
    history_bind = ""

    def __init__(self, config: Config, reason: str) -> None:
        self.config = config
        self.settings = config.settings
        self.addresses = {"tcp:default": ("127.0.0.1", 4242)}
        self.events: list[str] = []
        self._reason = reason

    async def start(self) -> None:
        self.events.append("start")

    async def stop(self) -> None:
        self.events.append("stop")

    async def wait_ended(self) -> str:
        return self._reason


def serve(monkeypatch: pytest.MonkeyPatch, *reasons: str) -> list[EndingNode]:
    """Run nodes that end for these reasons, one after the other."""
    listener = msgspec.structs.replace(Settings().listeners.tcp["default"], bind="127.0.0.1:0")
    listeners = msgspec.structs.replace(Settings().listeners, tcp={"default": listener})
    left = list(reasons)
    nodes: list[EndingNode] = []

    def make_node(config: Config, plan: object) -> EndingNode:
        nodes.append(EndingNode(config, left.pop(0)))
        return nodes[-1]

    monkeypatch.setattr(start, "make_node", make_node)
    first = make_node(from_settings(msgspec.structs.replace(Settings(), listeners=listeners)), None)

    async def run() -> None:
        with pytest.raises(Unavailable, match=reasons[-1]):
            await start._serve(first, None, None, False, None)  # type: ignore[arg-type]

    asyncio.run(run())
    return nodes


def test_a_node_that_was_declared_dead_starts_again_at_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = serve(monkeypatch, DECLARED_DEAD, "it was replaced")

    assert first.events == second.events == ["start", "stop"]
    assert first.settings.listeners.tcp["default"].bind == "127.0.0.1:0"
    assert second.settings.listeners.tcp["default"].bind == "127.0.0.1:4242"
    assert second.settings.api.bind == "127.0.0.1:8081"


def test_a_node_that_another_process_has_replaced_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = serve(monkeypatch, "this node was started a second time")

    assert only.events == ["start", "stop"]
