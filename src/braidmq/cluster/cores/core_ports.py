"""What the core's side of the cluster needs of the log and of the home."""

from __future__ import annotations

from typing import Protocol

from braidmq.cluster.corestore.embedded import RowLog
from braidmq.cluster.home.node_peer import NodePeer
from braidmq.cluster.membership.member import Member


class CoreLog(RowLog, Protocol):
    """What the core's side needs of the log; `DurableLog` has it."""

    @property
    def log_id(self) -> bytes:
        """Identifies the cluster's log."""

    @property
    def shards(self) -> int:
        """How many there are."""


class MemberHome(Protocol):
    """What the core does for its members; `home.home.Home`."""

    def join(self, member: Member, registration_id: int) -> NodePeer:
        """A node has registered, or connects again."""

    def expect(self, member: Member) -> None:
        """A node is a member, perhaps through another core."""

    def bury(self, member: Member) -> None:
        """A node is dead."""
