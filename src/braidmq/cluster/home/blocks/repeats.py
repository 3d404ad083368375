"""Blocks that a node sends again: what they left unrecorded is shown again if the core has restarted since.

Such a message may have been lost on its way when the core ended (C18). What became of a block that this
process has taken itself is known, so only those that the core knows from its rows are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from braidmq.cluster.home.blocks.block_ports import HomePublisher, NodePort
from braidmq.cluster.home.blocks.publishing import read_message
from braidmq.cluster.protocol.blocks import NOT_RECORDED, BlockMark, Outcomes, outcome_of
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.net.proto_v1 import BlockBody, PublishEntry


class RepeatedBlocks:
    """The repeated blocks of one incarnation of a node."""

    def __init__(self, node: NodePort, publisher: HomePublisher, marks: Mapping[int, BlockMark]) -> None:
        """``marks``: the rows of this incarnation, by shard."""
        self._node = node
        self._publisher = publisher
        self._last = {shard: mark.number for shard, mark in marks.items()}  # known from the rows only
        self._shown: dict[tuple[int, int], bool] = {}  # by shard and number: whether it is being shown now

    def show(self, shard: int, block: BlockBody, outcomes: Outcomes, on_shown: Callable[[], None]) -> None:
        """Show what was not recorded, then call back. A block that is being shown calls back once, however often it comes."""
        is_being_shown = self._shown.get((shard, block.number))
        if is_being_shown:
            return
        is_taken_before = block.number <= self._last.get(shard, 0)
        live = self._live(block, outcomes) if is_taken_before and is_being_shown is None else []
        if not live:
            on_shown()
            return
        self._shown[shard, block.number] = True

        def finish() -> None:
            if (shard, block.number) in self._shown:
                self._shown[shard, block.number] = False
            on_shown()

        waiter = RepeatWaiter(len(live), lambda: self._node.when_forwarded(finish))
        for message in live:
            self._publisher.show(message, waiter, 0)

    def _live(self, block: BlockBody, outcomes: Outcomes) -> list[Message]:
        """The messages that were not recorded."""
        return [
            read_message(entry.value, client.client_id).message
            for index, entry in enumerate(block.entries)
            if isinstance(entry, PublishEntry)
            and outcome_of(outcomes, index) == NOT_RECORDED
            and (client := self._node.client_of(entry.channel)) is not None
        ]

    def forget(self, shard: int, confirmed: int) -> None:
        """The node has the answers up to this block, and will not send it again."""
        if self._shown:
            for each in [each for each in self._shown if each[0] == shard and each[1] <= confirmed]:
                del self._shown[each]


class RepeatWaiter(Outlet):
    """Waits until the messages of a repeated block were shown."""

    def __init__(self, count: int, on_shown: Callable[[], None]) -> None:
        self._left = count
        self._on_shown = on_shown

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        """One of them was shown."""
        self._left -= 1
        if not self._left:
            self._on_shown()

    def end_large(self, size: int) -> None:
        """Nothing waits for that."""
