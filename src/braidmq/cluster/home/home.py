"""What a core does for its nodes, put together: claims, blocks, routes, feeds and scans.

`core_side` makes the connections; everything here is called on the loop of the core's broker. A node is known as a member from
its registration to its death, over any number of connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from braidmq.base.deadline_clock import time_since_boot
from braidmq.broker.broker import Broker
from braidmq.broker.ports import Change
from braidmq.broker.session.ports import NodePorts, Routes
from braidmq.broker.shared.group import Groups
from braidmq.broker.turn import Phase
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.cores.core_peers import CorePeers
from braidmq.cluster.cores.durable_routes import DurableRoutes, NotedRoutes, RoutesElsewhere
from braidmq.cluster.cores.exclusive_rows import ExclusiveRows
from braidmq.cluster.cores.groups_elsewhere import GroupsElsewhere
from braidmq.cluster.eventual.core_side import EventualCore
from braidmq.cluster.home.blocks.block_marks import BlockMarks
from braidmq.cluster.home.blocks.blocks import HomeBlocks
from braidmq.cluster.home.blocks.node_port import BlockServices
from braidmq.cluster.home.blocks.publishing import EntryPublisher
from braidmq.cluster.home.confidence import Confidence
from braidmq.cluster.home.doubt import Doubt
from braidmq.cluster.home.exclusive import ExclusiveGrants
from braidmq.cluster.home.forwarding import Forwarding
from braidmq.cluster.home.guests import Guests
from braidmq.cluster.home.holds import PublisherHolds
from braidmq.cluster.home.node_peer import NodePeer
from braidmq.cluster.home.presence import HomePresence
from braidmq.cluster.home.retained.homes import CoreRetainedHomes
from braidmq.cluster.home.sessions.own_clients import OwnClients
from braidmq.cluster.home.sessions.registry import HomeRegistry
from braidmq.cluster.home.sessions.sessions import HomeSessions
from braidmq.cluster.membership.led_shards import LedShards, Misdirected
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.decisions import DEADLINE_S
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.versions import VersionClock
from braidmq.cluster.rlog.agent import AgentPace
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.tables import STORE, RowChange, Tables, death_of, store_origin
from braidmq.cluster.routes import OwnRoutes, WantedRoutes, count_routes, node_of, origin_of
from braidmq.cluster.slow_subscribers import SlowSubscribers
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription
from braidmq.net.calls import Calls
from braidmq.net.connection import PeerConnection
from braidmq.net.proto_v1 import Position
from braidmq.storage.log import DurableLog

log = logging.getLogger("braidmq.cluster")


_ORPHANS_S: Final = 60.0  # in which nodes have told a restarted core of their clients' groups


class Home:
    """The core's side of everything that its nodes do. ``ports`` are for the core's broker; ``serve`` follows with the broker."""

    def __init__(
        self,
        local: Member,
        registry_wait_s: float,
        pace: AgentPace,
        log: DurableLog,
        undeclared: Sequence[Member] = (),
        dead: Sequence[Member] = (),
        led: LedShards | None = None,
        clock: Callable[[], float] = time_since_boot,
        claim_deadline_s: float = DEADLINE_S,
        version_clock: VersionClock | None = None,
    ) -> None:
        """``local``: the core itself. ``undeclared``: nodes that are thought to live, and have to say which clients they have.

        ``dead``: nodes whose death other nodes may not know. ``led``: the shards that this core leads; None: it is the only one.
        ``clock``: seconds that go on while the machine is suspended. ``registry_wait_s``: how long a claim waits for the channel
        that has its client id. ``claim_deadline_s``: how long nodes pursue a claim. ``version_clock``: says which of two
        connections is newer; None: the one whose claim arrives later.
        """
        self._local = local
        self._origin = origin_of(local.name)
        self._log = log
        self.led = led or LedShards.all(local.name, log.shards)
        self.misdirected = Misdirected()
        self._broker: Broker | None = None
        self._peers: dict[Member, NodePeer] = {}
        self._by_name: dict[str, NodePeer] = {}  # in their latest lives
        self._registrations: dict[Member, int] = {}  # their registration ids
        self._guests: dict[Member, Guests] = {}
        self._own_clients = OwnClients()
        self.claims: HomeClaims[Member] = HomeClaims(
            registry_wait_s,
            log.now,
            undeclared,
            deadline_s=claim_deadline_s,
            cluster_clock=None if version_clock is None else version_clock.reading,
            local=local,
            guard_of_row=self._own_clients.guard_of,
        )
        self._holds = PublisherHolds(self.claims, self._peers)
        self._wanted: WantedRoutes | None = None
        self._elsewhere: RoutesElsewhere | None = None
        self._groups_elsewhere: GroupsElsewhere | None = None
        self.tables = Tables(self._on_rows)
        self.tables.open(self._origin, local.incarnation)
        self._store = STORE if self.led.is_all else store_origin(local.name)
        self.tables.open(self._store, local.incarnation)
        if dead:
            self.tables.write(self._store, [death_of(origin_of(each.name), each.incarnation + 1) for each in dead])
        self._durable = None if self.led.is_all else DurableRoutes(self.led, self.tables, self._ask)
        self._exclusive: ExclusiveGrants | None = None
        self._exclusive_rows: ExclusiveRows | None = None
        self.exchange = RlogExchange(
            self.tables,
            self._origin,
            is_core=True,
            ask=self._ask,
            on_applied=self._on_applied,
            pace=pace,
            writes=None if self._durable is None else self._durable.origins.__contains__,
        )
        self._clock = clock
        self._confidence: Confidence[object] | None = None
        self.cores: CorePeers | None = None
        self.core_calls = CoreCalls(self.led.others)
        self.doubt: Doubt | None = None
        self.retained: CoreRetainedHomes | None = None
        if self._durable is not None:
            self._confidence = Confidence(self._position_of)
            self.retained = CoreRetainedHomes(self.led, log, self.core_calls)
            self._exclusive_rows = ExclusiveRows(self._durable, self.tables, self.led.count, self._ask)
            self._exclusive = ExclusiveGrants(self._exclusive_rows, lambda: self._has_heard_all, self._is_known_since, clock)
            self.cores = CorePeers(self.led, self._durable, self.exchange, self._confidence, clock)
        self.presence = HomePresence()
        self.registry = HomeRegistry(self.claims, local, self.led, self.misdirected, self.presence, version_clock)
        self._routes: OwnRoutes | None = None
        self._noted: NotedRoutes | None = None
        self._sessions: HomeSessions | None = None
        self._forwarding: Forwarding | None = None
        self.eventual = EventualCore(lambda member: member in self._peers)
        self._has_heard_all = False  # since this core was started
        self.blocks_refused = self.entries_fenced = 0  # of nodes that are dead

    @property
    def ports(self) -> NodePorts:
        """What the core's broker uses in place of its own parts."""
        return NodePorts(
            registry=self.registry,
            presence=self.presence,
            exclusive=self._exclusive_rows,
            retained_homes=self.retained,
            extend_routes=self._extend_routes,
            keeps_groups=self._durable is not None,
        )

    def _extend_routes(self, routes: Routes) -> Routes:
        if self._durable is not None:
            assert isinstance(routes, RouteTable)
            self._noted = NotedRoutes(routes, self._durable)
            return self._noted
        self._routes = OwnRoutes(routes, self.tables, self._origin, self._ask, is_known_at_once=True)
        return self._routes

    def serve(self, broker: Broker) -> None:
        """The broker is made: from now on nodes can join."""
        self._broker = broker
        self.presence.serve(broker)
        broker.turn_writer.recorder.keeps_values = True
        broker.routes.keep_for_peers = True
        broker.turn.at_end(Phase.PEERS, self._flush)
        # The end of the turn comes after another round of reading, which the answers to nodes would wait for.
        self._log.on_reported = partial(broker.turn.run_asked, Phase.PEERS)
        self.exchange.rest_with(broker.loop.call_later)
        self._wanted = WantedRoutes(broker.routes, self.tables, self._origin, self._destination, shares=False)

        def sessions_max() -> int:
            return broker.live.now.session.sessions_max

        close_channel = self.registry.close_channel
        self._sessions = HomeSessions(broker, broker.users.exist, sessions_max, close_channel, self._noted, self.led)
        self._forwarding = Forwarding(self._peers.values, broker.loop.call_later, broker.loop.time, self._holds.end_of)
        SlowSubscribers(broker, self._holds.say)
        self.eventual.serve(broker.loop, broker.live.now.registry.lock_timeout)
        own = self._own_clients
        own.broker = broker
        self.registry.serve(self._sessions, broker.loop, own.close, self._on_ready, own.is_banned)
        if self.cores is not None and self._confidence is not None:
            self._elsewhere = RoutesElsewhere(broker.routes, broker.state, self.tables, self.led)
            assert isinstance(broker.groups, Groups)  # a core chooses itself
            self._groups_elsewhere = GroupsElsewhere(
                broker.groups, broker.state, self.tables, self.led, broker.restoration.adopt_group
            )
            if self._noted is not None:
                broker.groups.watch_members(self._noted.note_member)
            self.cores.serve(broker.loop)
            self.doubt = Doubt(
                self._confidence, broker.routes, self._peers.values, self.cores, self._clock, broker.loop, self._note_sure
            )
            self.doubt.start()
            if self.retained is not None:
                self.retained.serve(broker)
            self._forget_orphans()

    @property
    def is_ready(self) -> bool:
        """Whether all nodes have said which clients they have."""
        return self.registry.is_ready

    def _on_ready(self) -> None:
        assert self._broker is not None
        self._broker.restoration.decide()
        if self.cores is None:
            self._broker.loop.call_later(_ORPHANS_S, self._broker.restoration.forget_orphans)
        for peer in self._peers.values():
            peer.note_home_ready()

    def _forget_orphans(self, is_time: bool = False) -> None:
        """Groups that neither nodes nor other cores have named are over, some time after all of these were heard."""
        assert self._broker is not None
        assert self.cores is not None
        if is_time and self.is_ready:
            self._broker.restoration.forget_orphans()
        else:
            self._broker.loop.call_later(_ORPHANS_S, partial(self._forget_orphans, self.cores.were_heard))

    def __iter__(self) -> Iterator[NodePeer]:
        return iter(self._peers.values())

    @property
    def is_serving(self) -> bool:
        """Whether nodes can join."""
        return self._sessions is not None

    def count_routes(self) -> tuple[int, int]:
        """The filters that this core has announced, and those of all nodes."""
        return count_routes(self.tables, self._origin)

    @property
    def routes_durable(self) -> int:
        """The filters of durable sessions that other cores have been told of."""
        return 0 if self._durable is None else len(self._durable)

    def find(self, name: str) -> NodePeer | None:
        """A node by its name."""
        return next((peer for member, peer in self._peers.items() if member.name == name), None)

    @property
    def lagged(self) -> int:
        """How often a node was too slow to confirm messages that are not recorded."""
        return 0 if self._forwarding is None else self._forwarding.lagged

    @property
    def sessions(self) -> HomeSessions:
        """The sessions that live on nodes."""
        assert self._sessions is not None, "the home has no broker"
        return self._sessions

    # Other cores

    def core_of(self, name: str) -> str | None:
        """The other core that is the home of a client id or topic; None: this one is."""
        return None if self.led.has(name) else self.led.leaders[self.led.shard_of(name)]

    def on_core_up(self, name: str, incarnation: int, calls: Calls, messages: PeerConnection) -> None:
        """There is a pair of connections to another core, which may have restarted. An older pair counts no more."""
        self.core_calls.up(name, calls)
        if self.cores is not None:
            messages.on_frame = self.cores.up(name, messages).receive
        if self.retained is not None:
            self.retained.sender.up(name)

    def on_core_down(self, name: str) -> None:
        """The connections to another core are gone."""
        self.core_calls.down(name)
        if self.cores is not None:
            self.cores.down(name)

    # Nodes

    def expect(self, member: Member) -> None:
        """A node is a member, wherever it has registered: messages that it may want are recorded until its routes are known."""
        if self._confidence is not None:
            self._confidence.expect(member)

    def join(self, member: Member, registration_id: int) -> NodePeer:
        """A node has registered, or connects again."""
        self.expect(member)
        self.claims.meet(member, registration_id)
        peer = self._peers.get(member)
        if peer is None:
            peer = self._peers[member] = self._by_name[member.name] = self._make_peer(member, registration_id)
        return peer

    def _make_peer(self, member: Member, registration_id: int) -> NodePeer:
        broker, forwarding = self._broker, self._forwarding
        assert broker is not None, "the home has no broker"
        assert forwarding is not None
        intents = None if self.retained is None else self.retained.sender
        services = BlockServices(
            member,
            registration_id,
            broker,
            self._log,
            self.claims,
            self.registry,
            self.sessions,
            forwarding,
            self.led,
            self.misdirected,
            self.doubt,
            self.cores,
            self._exclusive,
            intents,
            self.presence,
        )
        recorder = broker.turn_writer.recorder
        blocks = HomeBlocks(
            self._log.shards,
            services,
            EntryPublisher(recorder, recorder.outcomes, broker.pipeline, broker.routes, broker.lane.flush),
            recorder,
            services.load_marks(),
            on_room=lambda: peer.note_blocks_room(),
            may_take=None if self.led.is_all else services.may_take,
        )
        peer = NodePeer(
            member,
            broker,
            self.registry,
            self.exchange,
            blocks,
            forwarding,
            self.sessions.lending,
            self._log,
            self._log.now,
            self._ask,
            self.led,
            self._confidence,
            self._holds.say,
            intents,
            self.eventual,
        )
        self._registrations[member] = registration_id
        self._guests[member] = services.guests
        return peer

    def bury(self, member: Member) -> None:
        """A node is dead: its routes and clients are gone. Everything that it sent has been read."""
        peer = self._peers.get(member)
        if peer is not None:
            view = peer.view()
            self.blocks_refused += view.blocks_refused
            self.entries_fenced += view.entries_fenced
            peer.end()
            self._guests.pop(member).end()
            self._remove_rows(BlockMarks(self._log).remove(self._registrations.pop(member), member.incarnation))
        self.tables.write(self._store, [death_of(origin_of(member.name), member.incarnation + 1)])
        if self._confidence is not None:
            self._confidence.forget(member)
        self._peers.pop(member, None)
        if peer is not None and self._by_name.get(member.name) is peer:
            del self._by_name[member.name]
        if self._exclusive is not None:
            self._exclusive.dead(member)
        self.registry.dead(member)
        self.eventual.dead(member)
        self._ask()

    def remove_marks_except(self, living: Sequence[tuple[int, int]]) -> None:
        """After a start: remove what is known of the blocks of all nodes but these (registration id, incarnation)."""
        self._remove_rows(BlockMarks(self._log).remove_dead(living))

    def _remove_rows(self, changes: Sequence[Change]) -> None:
        assert self._broker is not None, "the home has no broker"
        if changes:
            self._broker.turn_writer.write(*changes)

    def close(self) -> None:
        """The core stops: its log is about to be closed."""
        self.registry.close()
        self.eventual.close()
        if self.doubt is not None:
            self.doubt.close()
        if self.retained is not None:
            self.retained.close()
        if self._sessions is not None:
            self._sessions.close()

    def _note_sure(self) -> None:
        """Every node and every other core has said how far it is: what was so when this core was started is known here."""
        self._has_heard_all = self._has_heard_all or self.registry.is_ready

    def _is_known_since(self, client_id: str, time: float) -> bool:
        """Whether the core knows which rows a client id had at this time, or later."""
        leader = self.led.leaders[self.led.shard_of(client_id)]
        return leader == self.led.local or self._confidence is None or self._confidence.is_known_since(leader, time)

    def _destination(self, name: str) -> Subscription | None:
        peer = self._by_name.get(name)
        return None if peer is None else peer.destination

    # The replication log

    def _on_rows(self, changes: list[RowChange]) -> None:
        if self._wanted is not None:
            self._wanted.apply(changes)
        if self._elsewhere is not None and self._groups_elsewhere is not None:
            self._elsewhere.apply(changes)
            self._groups_elsewhere.apply(changes)
        for name in {node_of(change.origin) for change in changes}:
            if name is not None and (peer := self._by_name.get(name)) is not None:
                peer.note_routes()

    def _on_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        """A peer has this much of an origin; the core waits for nothing that nodes have."""
        if self.cores is not None:
            self.cores.note_applied(link, origin, position)

    def _position_of(self, origin: str) -> Position | None:
        rows = self.tables.get(origin)
        return None if rows is None else rows.position

    # Turns

    def _ask(self) -> None:
        if self._broker is not None:
            self._broker.turn.ask(Phase.PEERS)

    def _flush(self) -> None:
        if self._exclusive_rows is not None:
            self._exclusive_rows.flush()
        self.exchange.run()
        for peer in self._peers.values():
            peer.flush()
