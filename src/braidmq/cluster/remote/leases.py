"""Shared groups as a node sees them: asks the home for memberships, and answers for the messages that it lends.

With several cores, each of them chooses the members for the messages of its own shards, so all are told of all memberships. At a
core that does not decide about its client id a member is a *guest*, known by its channel, in entries of the node's own.

Each core numbers its leases itself. To the broker a lease has a number that also says which core has lent it.

A result is sent at the end of its turn, and before a release of its channel: at the release the home takes back what has no
result. After a lost connection the node states what it has and what it has answered lately; everything else never arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from braidmq.base.shards import shard_of
from braidmq.broker.ports import Change
from braidmq.broker.shared.membership import Memberships
from braidmq.cluster.protocol.lease_frames import (
    RETURNED,
    SETTLED,
    STATEMENT,
    LeaseResult,
    LentMessage,
    decode_leases,
    encode_result,
)
from braidmq.cluster.protocol.operations import JoinGroup, LeaveGroup, ReleaseGuest
from braidmq.cluster.protocol.parts import BodyParts, Send, split
from braidmq.cluster.remote.log.rows import OWN, NodeChange
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.records.records import Record
from braidmq.lane.routing.subscription import Subscription
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import HeldLeases, LeaseStatement

LEASES_MAX: Final = 1000  # of one client; its Receive Maximum may be lower
_encode: Final = msgspec.msgpack.Encoder().encode


class _ChannelLeases:
    """The leases of one channel."""

    __slots__ = ("answered", "held")

    def __init__(self) -> None:
        self.held: dict[int, None] = {}
        # The home has processed all results but the last ones, which are as many as it can have lent.
        self.answered: deque[LeaseResult] = deque(maxlen=LEASES_MAX)


class NodeLeases:
    """Implements `broker.shared.membership.GroupHome` on a node without groups; ``open`` follows for each core."""

    def __init__(
        self, shards: int, ask: Callable[[], None], is_open: Callable[[int], bool], channel_of: Callable[[str], int]
    ) -> None:
        """``ask`` asks for ``flush`` at the end of this turn. ``is_open``: whether a channel has not ended.

        ``channel_of``: the channel that owns a client id; 0 if there is none.
        """
        self.is_open = is_open
        self.ask = ask
        self._shards = shards
        self._channel_of = channel_of
        self._guests: dict[int, str] = {}  # client ids of channels that cores know as those of guests
        self._memberships: Memberships | None = None
        self._cores: list[CoreLeases] = []

    def open(self, send: Send, shards: Sequence[int]) -> CoreLeases:
        """The leases of another core, which leads these shards."""
        core = CoreLeases(self, len(self._cores), send, shards)
        self._cores.append(core)
        return core

    @property
    def qos_max(self) -> int:
        """With several cores a lease and its member's cursor are two commits, so QoS 2 cannot be kept (S10)."""
        return 2 if len(self._cores) == 1 else 1

    def serve(self, memberships: Memberships) -> None:
        """The broker is made."""
        self._memberships = memberships

    @property
    def memberships(self) -> Memberships:
        """The members on this node."""
        assert self._memberships is not None  # cores are connected later
        return self._memberships

    def number_of(self, core: int, lease: int) -> int:
        """The number of a core's lease in this node."""
        return lease * len(self._cores) + core

    def is_of(self, core: int, number: int) -> bool:
        """Whether the core has lent what has this number in this node."""
        return number % len(self._cores) == core

    def _place_of(self, number: int) -> tuple[CoreLeases, int]:
        lease, core = divmod(number, len(self._cores))
        return self._cores[core], lease

    # What the broker asks

    def join(self, client_id: str, number: int, member: Subscription, name: str, start: Sequence[int] | None) -> list[Change]:
        """Make the client a member, or change how it is one."""
        flow = member.flow

        def asked(channel: int) -> JoinGroup:
            return JoinGroup(
                client_id,
                number,
                name,
                member.topic_filter.decode(),
                member.qos,
                member.retain_as_published,
                max(1, min(flow.window, LEASES_MAX)),
                None if start is None else list(start),
                flow.is_durable,
                channel,
            )

        channel = self._channel_of(client_id)
        if channel and len(self._cores) > 1:
            self._guests[channel] = client_id
        return self._changes(client_id, asked(0), asked(channel))

    def leave(self, client_id: str, name: str, topic_filter: bytes) -> list[Change]:
        """The client is no longer a member."""
        text = topic_filter.decode()
        return self._changes(
            client_id, LeaveGroup(client_id, name, text), LeaveGroup(client_id, name, text, self._channel_of(client_id))
        )

    def end(self, channel: int) -> list[NodeChange]:
        """A channel ends, and its client's home hears of that: what to tell the others, who may know a guest."""
        client_id = self._guests.pop(channel, None)
        return [] if client_id is None else self._at_others(client_id, ReleaseGuest(client_id, channel))

    def _changes(self, client_id: str, own: JoinGroup | LeaveGroup, guest: JoinGroup | LeaveGroup) -> list[Change]:
        """For the client's home, and for all other cores unless the channel is gone."""
        home = NodeChange(shard_of(client_id, self._shards), client_id, own)
        return [home, *(self._at_others(client_id, guest) if guest.channel else ())]

    def _at_others(self, client_id: str, operation: JoinGroup | LeaveGroup | ReleaseGuest) -> list[NodeChange]:
        """At each core that does not decide about the client id, in one shard whatever it is about."""
        home = shard_of(client_id, self._shards)
        others = [core.shards for core in self._cores if home not in core.shards]
        return [NodeChange(shards[home % len(shards)], OWN, operation) for shards in others]

    def answer(self, channel: int, lease: int, is_settled: bool) -> None:
        """A lease has ended."""
        core, number = self._place_of(lease)
        core.answer(channel, number, is_settled)

    def let_go(self, channel: int, lease: int) -> None:
        """The channel of a lease ends."""
        core, number = self._place_of(lease)
        core.let_go(channel, number)

    def flush(self) -> None:
        """Send the results so far, to every core."""
        for core in self._cores:
            core.flush()

    def forget(self, channel: int, shard: int) -> None:
        """The core of this shard has answered the end of a channel."""
        for core in self._cores:
            if shard in core.shards:
                core.forget(channel)

    def announce_again(self, shards: Container[int]) -> None:
        """The core that leads these shards has restarted, and is connected: tell it the members."""
        self.memberships.announce_again(lambda change: isinstance(change, NodeChange) and change.shard in shards)


class CoreLeases:
    """The leases of one core. The owner of the connection calls ``connected``, ``lost`` and ``receive``."""

    def __init__(self, node: NodeLeases, index: int, send: Send, shards: Sequence[int]) -> None:
        self.shards = shards
        self._node = node
        self._index = index
        self._send = send
        self._channels: dict[int, _ChannelLeases] = {}
        self._results = bytearray()
        self._parts = BodyParts()
        self._is_connected = False

    def answer(self, channel: int, lease: int, is_settled: bool) -> None:
        """A lease has ended."""
        result = LeaseResult(channel, lease, SETTLED if is_settled else RETURNED)
        known = self._channels.get(channel)
        if known is not None:
            known.held.pop(lease, None)
            known.answered.append(result)
        if self._is_connected and (known is not None or self._node.is_open(channel)):
            self._results += encode_result(result)
            self._node.ask()

    def let_go(self, channel: int, lease: int) -> None:
        """The channel of a lease ends."""
        known = self._channels.get(channel)
        if known is not None:
            known.held.pop(lease, None)

    def receive(self, flags: int, body: bytes | memoryview) -> None:
        """The home lends messages. Raises BraidError if they cannot be read."""
        whole = self._parts.add(0, flags, body)
        if whole is None:
            return
        memberships = self._node.memberships
        for lent in decode_leases(bytes(whole)):
            if lent.qos and memberships.has_member(lent.member):
                self._channels.setdefault(lent.channel, _ChannelLeases()).held[lent.lease] = None
            number = self._node.number_of(self._index, lent.lease)
            memberships.receive(lent.channel, lent.member, number, message_of(lent), lent.qos, lent.retain)

    def flush(self) -> None:
        """Send the results so far."""
        results, self._results = self._results, bytearray()
        if results:
            self._send(FrameKind.LEASE_RESULTS, 0, bytes(results), 0)

    def forget(self, channel: int) -> None:
        """The home has answered the release of a channel."""
        self._channels.pop(channel, None)

    def connected(self) -> None:
        """A connection for messages was made: say what this node has."""
        self._is_connected = True
        self._parts = BodyParts()
        self._results.clear()
        stated = [
            HeldLeases(channel, list(each.held), [result.lease for result in each.answered if result.outcome == SETTLED])
            for channel, each in self._channels.items()
        ]
        for part, flag in split(_encode(LeaseStatement(stated))):
            self._send(FrameKind.LEASE_RESULTS, 0, part, STATEMENT | flag)

    def lost(self) -> None:
        """The connection is gone."""
        self._is_connected = False

    def forget_all(self) -> None:
        """The home has restarted: what it had lent is its own again."""
        self._channels.clear()
        self._node.memberships.forget_leases(lambda number: self._node.is_of(self._index, number))


def message_of(lent: LentMessage) -> Message:
    """The message that a home lends."""
    return from_record(lent.shard, Record(lent.timestamp, lent.value))
