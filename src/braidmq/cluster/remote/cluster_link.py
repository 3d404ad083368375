"""The cluster as a node's broker finds it behind its ports: what a node has once, however many cores there are.

`home_link` has what belongs to a single core, and its connections. A shard is at home at the core that leads it: the claims,
messages and rows of a client go to the core of its client id's shard, and that core feeds the node with the shard's commits. Each
core has a copy of this node's routes, and one of them, the *watched* one, tells it those of all other nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from braidmq.base.config.cluster_settings import ClusterSettings, RegistrySettings
from braidmq.broker.broker import Broker
from braidmq.broker.session.ports import NodePorts, RetainedReads, Routes
from braidmq.broker.shared.membership import Memberships
from braidmq.broker.turn import Phase
from braidmq.cluster.eventual.front import RegistryFront
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.versions import VersionClock
from braidmq.cluster.remote.exclusive import NodeExclusiveTopics
from braidmq.cluster.remote.home_link import HomeLink
from braidmq.cluster.remote.known_routes import KnownRoutes
from braidmq.cluster.remote.leases import NodeLeases
from braidmq.cluster.remote.live_topics import LiveTopics
from braidmq.cluster.remote.log.merged_scans import MergedScans
from braidmq.cluster.remote.log.remote_log import BYTES_MAX, RemoteLog
from braidmq.cluster.remote.log.rows import remote_storage
from braidmq.cluster.remote.producer_names import AskBatch, ProducerNames
from braidmq.cluster.remote.registry import KICKED, TAKEN_OVER, NodeRegistry
from braidmq.cluster.remote.retained_homes import CoreRetained
from braidmq.cluster.remote.topic_homes import TopicHomes
from braidmq.cluster.remote.uplink import Uplink
from braidmq.cluster.remote.watched_core import WatchedCore
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.origins import written_with
from braidmq.cluster.rlog.tables import RowChange, Tables
from braidmq.cluster.routes import OwnRoutes, WantedRoutes, count_routes, origin_of
from braidmq.cluster.slow_subscribers import SlowSubscribers
from braidmq.lane.peers.peer import PeerFlow
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1 import Marks, Position, ReleaseEntry, WithdrawEntry
from braidmq.net.proto_v1_claims import ClaimId, Declare

log = logging.getLogger("braidmq.cluster")

_FIRST_MARK: Final = 1
_BEFORE_US: Final = 10_000_000


class ClusterLink:
    """``storage`` and ``ports`` are for the broker; ``serve`` follows with the broker, then the cores may be connected."""

    def __init__(
        self,
        member: Member,
        cores: Mapping[str, Sequence[int]],
        loop: asyncio.AbstractEventLoop,
        cluster: ClusterSettings,
        registry: RegistrySettings,
        clock: VersionClock | None = None,
    ) -> None:
        """``cores``: by name, the shards that each leads; one of them leads each shard. ``clock``: dates connections."""
        home_wait_s = cluster.home_wait
        shards = sum(map(len, cores.values()))
        self.loop = loop
        self.on_ready: Callable[[], None] | None = None  # called once, when clients can be served
        self.leases = NodeLeases(
            shards,
            self.ask,
            lambda channel: self.registry.client_of(channel) is not None,
            lambda client_id: self.registry.of_client(client_id),
        )
        self._member = member
        self._origin = origin_of(member.name)
        self._written = written_with(self._origin)
        self._broker: Broker | None = None
        self._uplink: Uplink | None = None
        self._watched = WatchedCore(member.name, loop.call_later, loop.time)
        self._homes = {name: HomeLink(self, name, led, home_wait_s, BYTES_MAX // len(cores)) for name, led in cores.items()}
        self._home_of = {shard: home for home in self._homes.values() for shard in home.shards}
        claims = NodeClaims(home_wait_s, home_of=self._name_of_home)
        self.registry: NodeRegistry = NodeRegistry(claims, self, loop, self._say_claim, self._close_client, home_wait_s, clock)
        is_several = len(self._homes) > 1
        self._names = ProducerNames(self.registry, loop, self._asker_of, home_wait_s) if is_several else None
        scans = [home.scans for home in self]
        self._merged = MergedScans(scans, lambda: self.log.watermarks, loop.call_later, loop.time) if len(scans) > 1 else None
        self.log: RemoteLog = RemoteLog(
            [home.blocks for home in self],
            self._merged or self._only.scans,
            self.registry,
            loop.call_later,
            on_fenced=self.registry.on_fenced,
        )
        self.storage = remote_storage(self.log, shards)
        is_only = len(self._homes) == 1
        self._exclusive = NodeExclusiveTopics(shards, self.registry.of_client) if is_only else None
        blocks = [home.blocks for home in self]
        self._topic_homes = None if is_only else TopicHomes(self.log, blocks, self.registry.of_client, self._is_durable)
        self._tables = Tables(self._on_rows)
        self._tables.open(self._origin, member.incarnation)
        self._exchange = RlogExchange(self._tables, self._origin, is_core=False, ask=self.ask, on_applied=self._on_applied)
        self._is_patient_no_more = False
        self._known = KnownRoutes(list(cores), loop.call_later, loop.time, self._wake_readers)
        self._routes: OwnRoutes | None = None
        self._wanted: WantedRoutes | None = None
        self.front = RegistryFront(
            member,
            list(cores),
            loop,
            registry,
            registry=self._names or self.registry,
            channels=self.registry,
            tables=self._tables,
            home_of=self._name_of_home,
            close=lambda client_id: self._close_client(client_id, Reason.SESSION_TAKEN_OVER, TAKEN_OVER),
            ask=self.ask,
            waits_s=(home_wait_s, registry.wait),
        )

    def __iter__(self) -> Iterator[HomeLink]:
        return iter(self._homes.values())

    def home(self, name: str) -> HomeLink:
        """The core of this name."""
        return self._homes[name]

    @property
    def _only(self) -> HomeLink:
        return next(iter(self._homes.values()))

    @property
    def broker(self) -> Broker:
        """The node's broker, once it is there."""
        assert self._broker is not None  # cores are connected later
        return self._broker

    @property
    def flow(self) -> PeerFlow:
        """Stands for all other nodes among the destinations."""
        assert self._uplink is not None  # made for the broker
        return self._uplink.flow

    @property
    def ports(self) -> NodePorts:
        """What the node's broker uses in place of its own parts."""
        return NodePorts(
            registry=self.front,
            groups=self.leases,
            presence=self.log,
            exclusive=self._exclusive if self._exclusive is not None else self._topic_homes,
            extend_routes=self._extend_routes,
            extend_retained=self._extend_retained,
            is_home=False,
        )

    def _extend_routes(self, routes: Routes) -> Routes:
        self._routes = OwnRoutes(routes, self._tables, self._origin, self.ask)
        self._known.serve(self._routes)
        return self._routes

    def _extend_retained(self, retained: RetainedReads) -> RetainedReads:
        def listen(note: Callable[[bytes], None] | None) -> None:
            self.broker.state.on_retained = note

        homes = list(self)

        def home_of(topic: bytes) -> int:
            return homes.index(self._home_of[self.shard_of(topic.decode())])

        return CoreRetained(retained, [home.read_retained for home in homes], LiveTopics(listen), home_of, self.loop)

    def serve(self, broker: Broker) -> None:
        """The broker is made: from now on the cores can be connected."""
        self._broker = broker
        recorder = broker.turn_writer.recorder
        recorder.is_remote = True
        broker.routes.keep_all = True
        self.log.outcomes = recorder.outcomes
        self.log.collect = broker.turn_writer.pass_on
        self.log.ask_flush = partial(broker.turn.ask, Phase.WRITE)
        source = broker.sharing.source
        source.showing.is_remote = True
        source.may_follow = self._may_follow
        if len(self._homes) > 1:
            source.away = self._away
        broker.turn.at_end(Phase.PEERS, self._flush)
        assert isinstance(broker.groups, Memberships)  # made of the ports
        self.leases.serve(broker.groups)
        if self._exclusive is not None:
            self._exclusive.serve(broker.turn_writer)
        SlowSubscribers(broker, lambda publisher, is_held: self._home_of[self.shard_of(publisher)].say_hold(publisher, is_held))
        self._uplink = Uplink(broker.state, is_only=len(self._homes) == 1)
        self.log.on_stalled = lambda shards: setattr(recorder, "stalled", shards or None)
        destination = self._uplink.destination
        self._wanted = WantedRoutes(broker.routes, self._tables, self._origin, lambda node: destination, shares=True)

    # What the registry asks

    def shard_of(self, client_id: str) -> int:
        """The shard of a client id."""
        return self.log.shard_of(client_id)

    def add_entry(self, shard: int, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        """Put an entry behind everything that was collected so far, and behind what became of messages that were lent."""
        self.leases.flush()
        if self._exclusive is not None:
            self._exclusive.forget(entry.channel)
        if self._topic_homes is not None:
            self._topic_homes.leave(entry.channel)
        guest = self.leases.end(entry.channel)
        if guest:
            self.log.guests.tell(guest, lambda change: self.leases.forget(entry.channel, change.shard))

        def answered() -> None:
            self.leases.forget(entry.channel, shard)
            if self._topic_homes is not None:
                self._topic_homes.end(entry.channel)
            on_answer()

        self.log.add_entry(shard, entry, answered)

    def _is_durable(self, client_id: str) -> bool:
        session = self.broker.sessions.get(client_id)
        return session is not None and session.is_durable

    def _asker_of(self, name: str, client_id: str) -> AskBatch | None:
        """Asks the core of a producer's name; None if it also has the client id."""
        home = self._home_of[self.shard_of(name)]
        return None if self._home_of[self.shard_of(client_id)] is home else home.open_batch

    def _name_of_home(self, client_id: str) -> str:
        return self._home_of[self.shard_of(client_id)].name

    def _say_claim(self, message: ClaimId) -> None:
        self._home_of[self.shard_of(message.client_id)].say_claim(message)

    def _close_client(self, client_id: str, reason: int, detail: str) -> None:
        """A home wants a client's connection to be closed: mostly because another one has the client id."""
        broker = self.broker
        session = broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            broker.statistics.taken_over += detail == TAKEN_OVER
            if detail == KICKED:
                broker.statistics.kicked += 1
                session.expiry_s = 0  # wherever it waits, it ends with its connection
            session.connection.close(reason, detail)
            broker.lane.flush()

    async def fill_bag(self) -> None:
        """Begin to write the bag of `cluster.eventual`; returns when it has the channels of this node."""
        await self.front.fill_bag()
        for home in self:
            home.open_eventual()

    # What the links ask

    def declaration(self, home: HomeLink) -> Declare:
        """The channels and claims of this node whose client ids are at home there."""
        return self.registry.declaration(home.name, home.term)

    def watch(self, home: HomeLink, send: Send) -> RlogLink:
        """A core is connected: tell it this node's routes, and ask it for those of all others unless another core is asked."""
        link = self._exchange.open(send, lambda origin: origin not in self._written)
        self._watched.connected(home, link)
        return link

    @property
    def sequence(self) -> int:
        """The last entry of this node's routes."""
        assert self._routes is not None  # made with the broker
        return self._routes.sequence

    def own_position(self) -> dict[str, Position]:
        """How far this node's routes have come, by their origin."""
        return {self._origin: Position(self._member.incarnation, self.sequence)}

    def on_connected(self, home: HomeLink) -> None:
        """A core is connected for messages."""
        self._known.connected(home.name)
        self._lead_up()
        self._read_missing()
        self._note_scans()

    def _away(self) -> list[int]:
        """The shards of cores that cannot be read."""
        return [shard for home in self for shard in home.shards if not home.scans.is_connected]

    def _read_missing(self) -> None:
        """A core is back: sessions that have followed without its shards read them."""
        for session in self.broker.sessions:
            if session.flow.missing is not None:
                session.flow.fall_behind()
                if session.connection is not None:
                    session.connection.on_room()

    def _note_scans(self) -> None:
        """A core is there, or has announced commits: readers that have waited for that go on."""
        if self._merged is not None:
            self._merged.note()

    def on_lost(self, home: HomeLink) -> None:
        """A core is away."""
        self._known.lost(home.name)
        self._lead_up()
        self._watched.lost(home)
        if any(other.is_connected for other in self):
            self._wake_readers()  # they may follow without its shards
        self.judge_ready()

    def _lead_up(self) -> None:
        """A core has come or gone: unrecorded messages may have to go another way."""
        if self._uplink is not None:
            self._uplink.lead([self._home_of[shard].outlet for shard in range(len(self._home_of))])

    def hold_publisher(self, client_id: str, is_held: bool) -> None:
        """What a client publishes fills a queue somewhere: it waits for a while, or goes on."""
        session = self.broker.sessions.get(client_id)
        if session is None or session.connection is None:
            return
        if is_held:
            session.connection.hold_for_node()
        else:
            session.connection.release_for_node()

    def note_answer(self, home: HomeLink) -> None:
        """A core is told how far this node's routes have come."""
        self._known.note_answer(home.name)

    def forget_routes(self, home: HomeLink) -> None:
        """A core has restarted, and has none of this node's routes."""
        self._known.forget(home.name)

    def announce_again(self, home: HomeLink) -> None:
        """A core has restarted: tell it which clients are in groups and have exclusive topics."""
        self.leases.announce_again(home.blocks.shards)
        if self._exclusive is not None:
            self._exclusive.announce_again(self.registry.client_of)
        if self._topic_homes is not None:
            self._topic_homes.announce(home.blocks)

    def on_marks(self, home: HomeLink, marks: Marks) -> None:
        """A core has said how far the log, and the feed, are in its shards. Raises BadFrame."""
        broker = self.broker
        self.log.on_marks(home.blocks, marks)
        positions = [_FIRST_MARK] * len(self._home_of)
        for shard in home.shards:
            positions[shard] = marks.positions[shard]
        broker.turn_writer.recorder.outcomes.advance_marks(positions)
        broker.turn_writer.on_shown()
        self._note_scans()

    # Routes

    def _on_rows(self, changes: list[RowChange]) -> None:
        if self._wanted is not None:
            self._wanted.apply(changes)

    def _on_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        """A core has this much of this node's routes."""
        if origin != self._origin or position.incarnation != self._member.incarnation:
            return
        home = next((home for home in self if home.rlog is link), None)
        if home is not None:
            self._known.note(home.name, position.sequence)

    def _wake_readers(self) -> None:
        """Readers may have waited for what has happened."""
        if self._broker is not None:
            self._broker.turn_writer.on_shown()

    def _may_follow(self, filters: Sequence[str]) -> bool:
        return self._routes is None or self._routes.has_all(filters)

    # Turns

    def ask(self) -> None:
        """Ask for ``flush`` at the end of this turn."""
        if self._broker is not None:
            self._broker.turn.ask(Phase.PEERS)

    def _flush(self) -> None:
        self._exchange.run()
        for home in self._homes.values():
            home.flush()

    def leave_out(self) -> None:
        """Wait no longer for cores that are away: clients can be served without them."""
        self._is_patient_no_more = True
        self.judge_ready()

    def judge_ready(self) -> None:
        """Something has changed on which it depends whether clients can be served."""
        if self.on_ready is None or self._watched.core is None or not self._watched.core.is_following:
            return
        if not all(home.is_fed or (self._is_patient_no_more and not home.is_connected) for home in self):
            return
        self._begin_without([home for home in self if not home.is_fed])
        on_ready, self.on_ready = self.on_ready, None
        on_ready()

    def _begin_without(self, homes: Sequence[HomeLink]) -> None:
        """Some cores were never reached, and it is not known how far their logs are: begin a little before now.

        What was committed there a moment ago may come as new. Later messages would be lost only if that core's clock were behind
        those of the others by more than that.
        """
        if not homes:
            return
        begin = max(self.log.now() - _BEFORE_US, _FIRST_MARK)
        positions = [_FIRST_MARK] * len(self._home_of)
        for home in homes:
            home.is_fed = True
            self.log.assume(home.blocks, begin)
            for shard in home.shards:
                positions[shard] = begin
        self.broker.turn_writer.recorder.outcomes.advance_marks(positions)

    @property
    def outlet_bytes(self) -> int:
        """What waits to be sent to the cores, blocks aside."""
        return sum(home.outlet_bytes for home in self)

    @property
    def scans(self) -> int:
        """Scans of the cores' logs that are open."""
        return sum(len(home.scans) for home in self)

    def count_routes(self) -> tuple[int, int]:
        """The filters that this node has announced, and those of all others."""
        return count_routes(self._tables, self._origin)

    def close(self) -> None:
        """The node stops."""
        self.front.close()
        self._watched.close()
        self.log.close()
