"""Builds the parts of the broker, each from the parts that it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic

from braidmq.base.config.settings import Settings
from braidmq.base.deadline_clock import DeadlineClock
from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.bounds.large import LargeMessages
from braidmq.broker.bounds.parts import Parts
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.backlog import BacklogFeeder
from braidmq.broker.connection.context import ConnectionContext
from braidmq.broker.connection.deadlines import Wheel
from braidmq.broker.connection.presence import Presence
from braidmq.broker.connection.rates import TokenBucket
from braidmq.broker.connection.table import ConnectionTable
from braidmq.broker.connection.trace import Tracer
from braidmq.broker.drops import DropLog
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.delayed import DelayedMessages
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.messages.producer_books import ProducerBooks
from braidmq.broker.messages.producers import Producers
from braidmq.broker.messages.retained import RetainedStore
from braidmq.broker.messages.retained_delivery import RetainedDelivery
from braidmq.broker.messages.topic_inspector import TopicInspector
from braidmq.broker.packets.admission import Admission
from braidmq.broker.packets.auth import AuthHandler
from braidmq.broker.packets.connack import ConnackWriter
from braidmq.broker.packets.connect import ConnectHandler
from braidmq.broker.packets.decoding import Decoding
from braidmq.broker.packets.disconnect import DisconnectHandler
from braidmq.broker.packets.dispatch import PacketDispatcher
from braidmq.broker.packets.publish import PublishHandler
from braidmq.broker.packets.subscribe import SubscribeHandler
from braidmq.broker.packets.unsubscribe import UnsubscribeHandler
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Storage
from braidmq.broker.reading import catch_up, replay
from braidmq.broker.reading.context import ReadingContext
from braidmq.broker.reading.recall import Recall
from braidmq.broker.reading.slots import IdleReaders, Readers
from braidmq.broker.reading.source import LogSource
from braidmq.broker.session.cursors import SessionCursors
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.local import LocalExclusiveTopics, LocalRegistry
from braidmq.broker.session.ports import AccessControl, ExclusiveTopics, NodePorts, Registry
from braidmq.broker.session.redelivery import Redelivery
from braidmq.broker.session.restoration import Restoration
from braidmq.broker.session.revocation import Revocation
from braidmq.broker.session.session import SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.session.takeover_steps import TakeoverSteps
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.binding import GroupBinding
from braidmq.broker.shared.group import Groups
from braidmq.broker.shared.membership import Memberships
from braidmq.broker.statistics import Statistics
from braidmq.broker.sys_topics import SysTopics
from braidmq.broker.timers import Timers
from braidmq.broker.turn import Phase, Turn
from braidmq.broker.users import UserExistence
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.state import State
from braidmq.lane.routing.routes import NEVER as NEVER_RECORDED
from braidmq.lane.routing.routes import RouteTable

_WORK_MAX = 20_000  # deliveries in one callback before others have their turn: about 3 ms


class BrokerParts:
    """All parts of a node's broker. The public ones are those that an operator sees or acts on; no part knows this class."""

    def __init__(
        self,
        settings: Settings,
        access: AccessControl,
        hooks: Hooks,
        storage: Storage,
        clock: Callable[[], float] | None,
        ports: NodePorts,
    ) -> None:
        self.live = LiveSettings(settings)
        self.access = access
        self.hooks = hooks
        self.loop = asyncio.get_running_loop()
        self.started_at = monotonic()
        self.registry: Registry = LocalRegistry(storage.log.fences) if ports.registry is None else ports.registry
        self.exclusive: ExclusiveTopics = LocalExclusiveTopics() if ports.exclusive is None else ports.exclusive
        self._is_home = ports.is_home
        self._claim_gate = ports.claim_gate
        self._presence_home = ports.presence
        self.users = UserExistence(access, hooks, settings)
        self.statistics = Statistics()
        self._make_lane(settings, clock)
        self._make_messages(settings, storage, ports)
        self._make_sessions(settings, ports)
        self._make_connections(settings)
        hooks.on_change = self.routes.refresh

    def _make_lane(self, settings: Settings, clock: Callable[[], float] | None) -> None:
        self.state = State(settings.limits.outbox_bytes_max, _WORK_MAX)
        self.state.unread_bytes_max = settings.limits.outboxes_bytes_max
        self.timers = Timers(self.loop, clock or DeadlineClock())
        self.state.now = self.timers.now()
        self.drops = DropLog(self.statistics, settings.log.drops)
        self.state.on_drop = self.drops
        self.tracer = Tracer(self._on_trace_change)
        self.routes = RouteTable(settings.mqtt.topic_levels_max)
        self.routes.inspector = TopicInspector(self.hooks, self.tracer, self.live).inspect
        self.routes.weight_max = _WORK_MAX
        self.routes.history_qos = settings.history.min_qos if settings.history.topics else NEVER_RECORDED
        self.lane = Lane(self.state, self.routes)
        self.turn = Turn(self.loop)
        self.turn.at_end(Phase.SEND, self.lane.end_turn)
        self.state.on_turn = partial(self.turn.ask, Phase.SEND)
        self.holdings = Holdings(self.state, self.loop, settings.limits.held_bytes_max)
        self.turns = Turns(self.turn)
        self.parts = Parts(self.loop, settings.limits.parts_bytes_max)
        self.wheel = Wheel(self.state.now)
        self.connections = ConnectionTable(self.loop, self.wheel, self.parts)
        self.decoding = Decoding(self.loop)

    def _make_messages(self, settings: Settings, storage: Storage, ports: NodePorts) -> None:
        self.sessions = SessionTable()
        self.retained = RetainedStore(settings.retained.messages_max, settings.retained.bytes_max)
        resume_publishers = self.connections.resume_publishers
        self.turns.is_urged = lambda: storage.log.has_commit
        self.turn_writer = writer = TurnWriter(self.loop, self.lane, storage, self.turn, resume_publishers)
        self.pipeline = MessagePipeline(
            self.lane,
            self.routes,
            writer,
            self.retained,
            self.hooks,
            self.tracer,
            self.statistics,
            self.live,
            self._is_home,
            ports.retained_homes,
        )
        writer.recorder.outcomes.deliver = self.pipeline.deliver_with_flags
        self.retained.on_expired = self.pipeline.forget_retained_row
        self.delayed = DelayedMessages(
            self.loop, self.lane, self.routes, writer, self.pipeline, self.sessions, self.access, self.statistics, self.live
        )
        self.producer_books = None
        if storage.producers is not None:
            has_users = self.users.exist
            self.producer_books = ProducerBooks(storage.log, storage.producers, writer.recorder, self.turn, has_users)
        self.producers = Producers(storage.log, self.producer_books)

    def _make_sessions(self, settings: Settings, ports: NodePorts) -> None:
        self.flows = Flows(self.live, self.state, self.turn_writer.log)
        self.session_storage = SessionStorage(self.turn_writer.storage.sessions, self.turn_writer.log)
        self.readers = Readers(replay.READERS_MAX)
        self.idle_readers = IdleReaders()
        ask_hooks = self.pipeline.ask_deliver_hooks
        source = LogSource(self.turn_writer.log, self.state, self.loop.call_later)
        self.turn_writer.on_shown = source.showing.note_progress
        self.sharing = GroupBinding(
            self.loop,
            self.lane,
            self.turn_writer,
            self.turn,
            self.turns,
            self.sessions,
            self.statistics,
            source=source,
            slots=self.readers,
            hooks=self.hooks,
            ask_hooks=ask_hooks,
        )
        routes = self.routes if ports.extend_routes is None else ports.extend_routes(self.routes)
        self.groups = (
            Groups(routes, settings.shared.strategy, self.sharing)
            if ports.groups is None
            else Memberships(ports.groups, self.sharing)
        )
        self.cursors = SessionCursors(
            self.loop, self.lane, self.turn_writer, self.sessions, self.session_storage, self.groups, self.sharing, self.turn
        )
        self._retained_reads = self.retained if ports.extend_retained is None else ports.extend_retained(self.retained)
        self.subscriptions = Subscriptions(routes, self.groups, self.exclusive, self.turns)
        publish = self.pipeline.publish
        storage, writer = self.session_storage, self.turn_writer
        self.wills = Wills(self.sessions, storage, writer, self.access, self.lane, self.statistics, publish)
        self.revocation = Revocation(self.access, self.subscriptions, storage, writer, self.statistics)
        self.presence = Presence(
            self.statistics, self.hooks, self.producers, self.routes, publish, self.live, self._presence_home
        )
        self.lifecycle = Lifecycle(
            self.sessions,
            self.registry,
            self.subscriptions,
            self.wills,
            storage,
            writer,
            groups=self.groups,
            holdings=self.holdings,
            timers=self.timers,
            hooks=self.hooks,
            presence=self.presence,
            statistics=self.statistics,
            lane=self.lane,
            revocation=self.revocation,
            is_home=ports.is_home,
        )
        self.takeover_steps = TakeoverSteps(
            self.sessions,
            self.registry,
            self.lifecycle,
            self.wills,
            groups=self.groups,
            holdings=self.holdings,
            hooks=self.hooks,
            presence=self.presence,
            statistics=self.statistics,
            flows=self.flows,
            has_users=self.users.exist,
        )
        self.redelivery = Redelivery(self.access, self.hooks, ask_hooks, self.state, self.statistics)
        self._reading = ReadingContext(
            source=source,
            state=self.state,
            statistics=self.statistics,
            hooks=self.hooks,
            ask_hooks=ask_hooks,
            readers=self.readers,
            idle_readers=self.idle_readers,
            rows=storage,
            redelivery=self.redelivery,
            writer=writer,
            route=self.subscriptions.route,
            relieve_groups=self.groups.relieve_all,
        )
        self.restoration = Restoration(
            writer.storage.sessions,
            writer.storage.groups,
            writer.log.fences,
            self.flows,
            self.sessions,
            self.lifecycle,
            self.subscriptions,
            self.groups,
            exclusive=self.exclusive,
            redelivery=self.redelivery,
            holdings=self.holdings,
            state=self.state,
            restore_replay=partial(replay.restore, self._reading),
            access=self.access,
            revocation=self.revocation,
            is_home=ports.is_home,
            keeps_groups=ports.keeps_groups,
        )

    def _make_connections(self, settings: Settings) -> None:
        self._accepts = TokenBucket(settings.limits.connections_per_s, self.started_at)
        retained_delivery = RetainedDelivery(self.loop, self.state, self.pipeline, self.hooks, self.access, self.live)
        disconnect = DisconnectHandler(self.lifecycle, self.presence, self.live)
        self._context = ConnectionContext(
            loop=self.loop,
            lane=self.lane,
            recorder=self.turn_writer.recorder,
            live=self.live,
            statistics=self.statistics,
            access=self.access,
            timers=self.timers,
            wheel=self.wheel,
            parts=self.parts,
            large=LargeMessages(self.loop, lambda: self.state.counters.messages_received),
            turns=self.turns,
            tracer=self.tracer,
            rows=self.turn_writer.storage.sessions,
            writer=self.turn_writer,
            connections=self.connections,
            packets=self._make_packets(retained_delivery, disconnect),
            publishing=PublishHandler(
                self.pipeline, self.delayed, self.producers, self.hooks, self.state, self.statistics, self.live
            ),
            closing=disconnect,
            backlog=BacklogFeeder(
                self.turns,
                feed_retained=retained_delivery.feed,
                feed_catch_up=partial(catch_up.feed, self._reading),
                feed_replays=replay.feed,
                feed_groups=self.sharing.feed,
            ),
        )
        self.sys_topics = SysTopics(
            self.loop,
            self.lane,
            self.pipeline,
            self.sessions,
            self.subscriptions,
            self.groups,
            self.retained,
            self.statistics,
            self.live,
            self.started_at,
        )

    def _make_packets(self, retained_delivery: RetainedDelivery, disconnect: DisconnectHandler) -> PacketDispatcher:
        self._connack = ConnackWriter(self.session_storage, self.live)
        admission = Admission(
            self.access,
            self.hooks,
            self.registry,
            self.sessions,
            self.takeover_steps,
            self.lifecycle,
            session_storage=self.session_storage,
            turn_writer=self.turn_writer,
            producers=self.producers,
            groups=self.groups,
            connack=self._connack,
            presence=self.presence,
            connections=self.connections,
            statistics=self.statistics,
            live=self.live,
            make_recall=partial(Recall, self._reading),
            restore=partial(self.restoration.restore, waits=False),
            is_home=self._is_home,
            claim_gate=self._claim_gate,
        )
        auth = AuthHandler(self.access, admission, self.connections, self.statistics)
        connect = ConnectHandler(
            self.access, self.hooks, admission, auth, self.connections, self.sessions, self.statistics, self.live
        )
        subscribe = SubscribeHandler(
            self.subscriptions,
            self.groups,
            self.exclusive,
            self._retained_reads,
            retained_delivery=retained_delivery,
            session_storage=self.session_storage,
            turn_writer=self.turn_writer,
            turns=self.turns,
            state=self.state,
            statistics=self.statistics,
            live=self.live,
            begin_replay=partial(replay.begin, self._reading),
            may_follow=lambda filters: self._reading.source.may_follow(filters),
        )
        unsubscribe = UnsubscribeHandler(
            self.subscriptions, self.session_storage, self.turn_writer, self.turns, self.statistics, self.live
        )
        return PacketDispatcher(
            connect, auth, subscribe, unsubscribe, disconnect, self.connections, self.statistics, self.decoding
        )

    def _on_trace_change(self) -> None:
        self.routes.refresh()
        self.connections.take_trace()
