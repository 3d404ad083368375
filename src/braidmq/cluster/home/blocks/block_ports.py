"""What the blocks of a node need of the rest of the home; `blocks` uses these ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from braidmq.broker.ports import Change
from braidmq.cluster.home.blocks.operations import AppliedRows, Effect
from braidmq.cluster.home.blocks.publishing import FindKey, NodeMessage, Published
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.blocks import BlockMark
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.peers.node_entries import EntryWaiter, NodeEntry
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.net.proto_v1 import PresenceEntry


class ChannelClient(Struct, frozen=True, gc=False):
    """The client of a channel, and its user."""

    client_id: str
    user_name: str | None


class HomePublisher(Protocol):
    """Publishes entries; `publishing.EntryPublisher`."""

    @property
    def publish_plain(self) -> Callable[[list[NodeEntry], int, int, EntryWaiter], int]:
        """See `lane.peers.node_entries.NodeEntries.publish`."""

    def publish(
        self,
        sent: NodeMessage,
        shard: int,
        user_name: str | None,
        waiter: Outlet,
        number: int,
        find_key: FindKey | None = None,
    ) -> Published:
        """Retain, record and route a message; ``waiter`` is settled with its ``number`` when it has been shown."""

    def retain(self, message: Message, user_name: str | None) -> None:
        """Set or remove a retained message that has reached its subscribers on another way."""

    def show(self, message: Message, waiter: Outlet, number: int) -> None:
        """Show a message that is not recorded; ``waiter`` is settled with its ``number``."""

    def flush(self) -> None:
        """Send what was shown."""


class BlockRecorder(Protocol):
    """The recorder's open block; `lane.path.recorder.Recorder`."""

    def change(self, change: Change) -> None:
        """Add a row."""

    def mark_entry(self, shard: int, name: bytes, sequence: int, check: int) -> None:
        """Write the sequence of a producer of another node."""

    def await_rows(self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int) -> Pending:
        """Wait until the block is on disk and everything before this was shown."""


class NodePort(Protocol):
    """What the rest of the home does for one node."""

    def client_of(self, channel: int) -> ChannelClient | None:
        """The client of a channel; None if the channel no longer owns its client id: its entries are refused as fenced."""

    def mark_row(self, shard: int, mark: BlockMark) -> Change:
        """The row that says what became of the node's blocks."""

    def apply(self, found: list[operations.Operation], client_id: str | None) -> AppliedRows:
        """See `home.operations.HomeRows.apply`."""

    def carry_out(self, effects: list[Effect]) -> None:
        """Rows are committed."""

    def when_known(self, effects: list[Effect], on_done: Callable[[], None]) -> None:
        """Call back, perhaps at once, when the homes of all publishers know of what these effects have brought."""

    def when_retained(self, shard: int, on_done: Callable[[], None]) -> None:
        """Call back when the homes of their topics have the retained messages of a shard, or do not answer."""

    def reserve(self, message: Message) -> bool:
        """Make room for a delayed message that is about to be written; False if there is none."""

    def give_back(self, message: Message) -> None:
        """A delayed message for which there was room could not be written."""

    def release(self, channel: int, ending: Ending) -> None:
        """A channel has ended; everything that its client sent is in the recorder's block or refused.

        What this call writes through the recorder is on disk together with the block's mark.
        """

    def tell_presence(self, entry: PresenceEntry) -> None:
        """A client of the node has connected or disconnected."""

    def withdraw(self, request: ClaimRequest) -> None:
        """The node no longer wants what it has claimed."""

    def when_forwarded(self, on_done: Callable[[], None]) -> None:
        """Call back when the nodes that want what was shown so far and not recorded have it."""

    def is_congested(self) -> bool:
        """Whether publishers should wait for the core's log."""
