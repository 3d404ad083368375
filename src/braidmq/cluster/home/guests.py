"""Guests: members of shared groups, connected to one node, whose client ids other cores decide about.

Each core chooses the members for the messages of its own shards, so a node tells every core of all memberships of its clients.
A guest is known by its node and channel; its node says when it ends, or dies.
"""

from __future__ import annotations

from braidmq.cluster.home.lending import GuestKey, Lending
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.operations import JoinGroup, LeaveGroup, ReleaseGuest


class Guests:
    """The guests on one node; implements `operations.GuestPort`."""

    def __init__(self, node: Member, lending: Lending, led: LedShards) -> None:
        self._node = node
        self._lending = lending
        self._led = led
        self._keys: dict[GuestKey, None] = {}
        self._is_over = False

    def __len__(self) -> int:
        return len(self._keys)

    def may_be(self, client_id: str) -> bool:
        """Whether another core decides about the client id."""
        return not self._led.has(client_id)

    def may_join(self, asked: JoinGroup) -> bool:
        """Whether the client has made few enough groups that still read the past; ``join`` follows."""
        self._keys[self._node, asked.channel] = None
        return self._lending.may_join(asked, self._node, asked.channel)

    def join(self, asked: JoinGroup) -> None:
        """A guest is a member, or is one in another way than before. Its node may have died while that was written."""
        if not self._is_over:
            self._keys[self._node, asked.channel] = None
            self._lending.join(asked, self._node, asked.channel, ("client", asked.client_id))

    def leave(self, asked: LeaveGroup) -> None:
        """A guest is no longer a member of a group. What it was lent stays with it."""
        self._lending.leave((self._node, asked.channel), asked.name, asked.topic_filter)

    def release(self, asked: ReleaseGuest) -> None:
        """The channel of a guest has ended."""
        key = (self._node, asked.channel)
        if key in self._keys:
            del self._keys[key]
            self._lending.end(key, is_dead=False)

    def end(self) -> None:
        """The node is dead."""
        self._is_over = True
        keys, self._keys = self._keys, {}
        for key in keys:
            self._lending.end(key, is_dead=True)
