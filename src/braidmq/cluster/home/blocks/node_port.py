"""What the home does for the blocks of one node: names the clients of its channels, writes its rows, and acts on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import time
from typing import assert_never

from braidmq.broker.broker import Broker
from braidmq.broker.messages.producer_books import KeySender, NewKey
from braidmq.broker.ports import Change
from braidmq.cluster.cores.core_peers import CorePeers
from braidmq.cluster.home.blocks.block_marks import BlockMarks
from braidmq.cluster.home.blocks.block_ports import ChannelClient
from braidmq.cluster.home.blocks.operations import (
    AppliedRows,
    DelayedAdded,
    Effect,
    GroupChanged,
    GuestReleased,
    HomeRows,
    MemberJoined,
    MemberLeft,
    NotOwned,
    RetainedSent,
    SessionChanged,
    SessionGone,
    SubscriptionChanged,
    WillChanged,
)
from braidmq.cluster.home.doubt import Doubt
from braidmq.cluster.home.exclusive import ExclusiveGrants, ExclusiveOnNode
from braidmq.cluster.home.forwarding import Forwarding
from braidmq.cluster.home.guests import Guests
from braidmq.cluster.home.presence import HomePresence
from braidmq.cluster.home.retained.sender import IntentSender
from braidmq.cluster.home.sessions.registry import HomeRegistry
from braidmq.cluster.home.sessions.sessions import HomeSessions
from braidmq.cluster.membership.led_shards import LedShards, Misdirected
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.blocks import BlockMark
from braidmq.cluster.protocol.operations import Operation
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.lane.path.message import Message
from braidmq.net.proto_v1 import PresenceEntry
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Delete, Put


class BlockServices:
    """Implements `blocks.BlockPort` for one node."""

    def __init__(
        self,
        member: Member,
        registration_id: int,
        broker: Broker,
        log: DurableLog,
        claims: HomeClaims[Member],
        registry: HomeRegistry,
        sessions: HomeSessions,
        forwarding: Forwarding,
        led: LedShards,
        misdirected: Misdirected,
        doubt: Doubt | None,
        cores: CorePeers | None,
        exclusive: ExclusiveGrants | None,
        retained: IntentSender | None,
        presence: HomePresence,
    ) -> None:
        self._member = member
        self._presence = presence
        self._registration_id = registration_id
        self._broker = broker
        self._log = log
        self._claims = claims
        self._registry = registry
        self._sessions = sessions
        self._forwarding = forwarding
        self._led = led
        self._misdirected = misdirected
        self._doubt = doubt
        self._cores = cores
        self._retained = retained
        self.guests = Guests(member, sessions.lending, led)
        topics = None if exclusive is None else ExclusiveOnNode(member, exclusive, led.has)
        self._rows = HomeRows(broker.turn_writer.storage, live=sessions, guests=self.guests, topics=topics)
        self._marks = BlockMarks(log)
        assert broker.producer_books is not None, "a home has the rows of its producers"
        self._books = broker.producer_books

    def client_of(self, channel: int) -> ChannelClient | None:
        """The client that owns its id through this channel."""
        client_id = self._claims.client_of(self._member, channel)
        return None if client_id is None else ChannelClient(client_id, self._sessions.user_of(client_id))

    def mark_row(self, shard: int, mark: BlockMark) -> Change:
        """The row that says what became of the node's blocks."""
        return self._marks.put(shard, self._registration_id, self._member.incarnation, mark)

    def load_marks(self) -> dict[int, BlockMark]:
        """The rows of this incarnation, by shard."""
        return self._marks.load(self._registration_id, self._member.incarnation)

    def apply(self, found: list[Operation], client_id: str | None) -> AppliedRows:
        """Storage's changes for these operations, and what to do once they are committed."""
        applied = self._rows.apply(found, client_id)
        if not self._led.is_all:
            for shard in _shards_of(applied, self._led):
                if shard not in self._led:
                    self._misdirected.note("rows", self._member.name, shard)
                    raise NotOwned(f"a row of shard {shard}, which another core leads")
        return applied

    def may_take(self, shard: int) -> bool:
        """Whether blocks of this shard are for this core; called before each of them if there are several cores."""
        if self._doubt is not None:
            self._doubt.check()
        if shard in self._led:
            return True
        self._misdirected.note("blocks", self._member.name, shard)
        return False

    def carry_out(self, effects: list[Effect]) -> None:
        """Rows are committed: act on what they say."""
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        sessions = self._sessions
        match effect:
            case SessionChanged(row):
                sessions.session_written(row.client_id)
            case SubscriptionChanged(client_id, written, row):
                sessions.subscription_written(client_id, written, row)
            case SessionGone(client_id):
                sessions.session_removed(client_id)
            case DelayedAdded(stored):
                self._broker.delayed.await_reserved(stored, time())
            case MemberJoined(asked) if asked.channel:
                self.guests.join(asked)
            case MemberJoined(asked):
                sessions.member_joined(asked)
            case MemberLeft(asked) if asked.channel:
                self.guests.leave(asked)
            case GuestReleased(asked):
                self.guests.release(asked)
            case MemberLeft(asked):
                sessions.lending.leave(asked.client_id, asked.name, asked.topic_filter)
            case WillChanged() | GroupChanged() | RetainedSent():
                pass  # the rows are read when the session or the group comes back; the last one is done with the messages
            case _:
                assert_never(effect)

    def when_known(self, effects: list[Effect], on_done: Callable[[], None]) -> None:
        """Call back when the other cores have the durable routes that these effects have brought, or are in doubt about them."""
        is_new = any(isinstance(effect, SubscriptionChanged) and effect.row is not None for effect in effects)
        if self._cores is None or not is_new:
            on_done()
        else:
            self._cores.when_known(on_done)

    def when_retained(self, shard: int, on_done: Callable[[], None]) -> None:
        """Call back when the homes of their topics have the retained messages of a shard, or do not answer."""
        if self._retained is None:
            on_done()
        else:
            self._retained.when_settled(on_done, shard)

    def reserve(self, message: Message) -> bool:
        """Make room for a delayed message that is about to be written; False if there is none."""
        return self._broker.delayed.reserve(message)

    def give_back(self, message: Message) -> None:
        """A delayed message for which there was room could not be written."""
        self._broker.delayed.give_back(message)

    def release(self, channel: int, ending: Ending) -> None:
        """A channel has ended."""
        self._registry.release(self._member, channel, ending)

    def tell_presence(self, entry: PresenceEntry) -> None:
        """A client of the node has connected or disconnected."""
        if self._led.has(entry.client_id):
            self._presence.take(self._member.name, entry)
        else:
            self._misdirected.note("presence", self._member.name, self._led.shard_of(entry.client_id))

    def withdraw(self, request: ClaimRequest) -> None:
        """The node no longer wants what it has claimed."""
        self._registry.withdraw(self._member, request)

    def when_forwarded(self, on_done: Callable[[], None]) -> None:
        """Call back when the nodes that want what was shown so far and not recorded have it."""
        self._forwarding.when_confirmed(on_done)

    def producer_sequence(self, shard: int, name: bytes) -> int:
        """The last sequence of a producer, as of the last flush."""
        return self._log.producer_mark(shard, name).sequence

    def is_batch_open(self, name: str, base: int, user_name: str | None) -> bool:
        """Whether a user's messages with keys belong to the open batch of a name."""
        return self._books.is_open(name, base, user_name)

    def new_key(self, name: str, base: int, key: bytes, sender: KeySender) -> NewKey | None:
        """The key to record with its message; None if that is recorded."""
        return self._books.new_key(name, base, key, sender)

    def note_live(self, name: bytes, sequence: int) -> None:
        """A message was shown that is not recorded, and everything before it is settled."""
        self._books.note_live(name, sequence)

    def is_congested(self) -> bool:
        """Whether publishers should wait for the core's log."""
        return self._broker.turn_writer.recorder.is_congested


def _shards_of(applied: AppliedRows, led: LedShards) -> Iterator[int]:
    for change in applied.changes:
        assert isinstance(change, Put | Delete)  # the core's own storage has made them
        yield change.shard
    for effect in applied.effects:
        if isinstance(effect, RetainedSent) and not effect.stored.message.publisher:  # a client's goes by way of its home
            yield led.shard_of(effect.stored.message.topic.decode())
