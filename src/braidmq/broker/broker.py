"""The broker of a node: it owns the lane, the sessions and the stores; connections act on it.

Everything here runs on the event loop and nothing awaits between a check and the act that relies on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic, time

from braidmq.base.config.settings import Settings
from braidmq.base.deadline_clock import DeadlineClock
from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.bounds.large import LargeMessages
from braidmq.broker.bounds.parts import Parts
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.deadlines import TICK_S, Wheel
from braidmq.broker.connection.rates import TokenBucket
from braidmq.broker.connection.trace import Tracer
from braidmq.broker.drops import DropLog
from braidmq.broker.listeners.origin import ListenerInfo
from braidmq.broker.messages.delayed import DelayedMessages
from braidmq.broker.messages.flags import HOOK_DELIVER, HOOK_PUBLISH, TRACED
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.pipeline import Publisher
from braidmq.broker.messages.producers import Producers
from braidmq.broker.messages.retained import RetainedStore
from braidmq.broker.packets.connack import ConnackFrames
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Storage
from braidmq.broker.reading import replay
from braidmq.broker.reading.context import ReadingContext
from braidmq.broker.reading.slots import IdleReaders, Readers
from braidmq.broker.reading.source import LogSource
from braidmq.broker.session.cursors import SessionCursors
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.local import LocalExclusiveTopics, LocalRegistry
from braidmq.broker.session.ports import AccessControl, Registry
from braidmq.broker.session.revocation import withdraw_subscriptions
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.binding import GroupBinding
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.broker.timers import Timers, after_reading
from braidmq.lane.path.channel import ASK_INNER, HOLD_LOG
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.routes import HISTORY, RouteTable
from braidmq.lane.path.routes import NEVER as NEVER_RECORDED
from braidmq.lane.path.state import State
from braidmq.lane.path.subscription import Subscription
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import matches

log = logging.getLogger("braidmq.broker")

_WORK_MAX = 20_000  # deliveries in one callback before others have their turn: about 3 ms
_EXPIRIES_MAX = 5000  # retained messages let go in one tick: about 5 ms
_STOP_S = 2.0  # how long clients have to take their DISCONNECT when the node stops


class Broker:
    """The state machine between connections. Made inside a running loop by ``node.py``, which passes the parts in."""

    def __init__(
        self,
        settings: Settings,
        access: AccessControl,
        hooks: Hooks,
        storage: Storage,
        clock: Callable[[], float] | None = None,
        registry: Registry | None = None,
    ) -> None:
        """``clock``: what deadlines are judged by, in tests; else a ``DeadlineClock``. ``registry``: this node's own if None."""
        self.settings = settings
        self.access = access
        self.hooks = hooks
        self.loop = asyncio.get_running_loop()
        self.state = State(settings.limits.outbox_bytes_max, _WORK_MAX)
        self.state.unread_bytes_max = settings.limits.outboxes_bytes_max
        self.timers = Timers(self.loop, clock or DeadlineClock())
        self.state.now = self.timers.now()
        self.routes = RouteTable(settings.mqtt.topic_levels_max)
        self.routes.inspector = self._inspect
        self.routes.weight_max = _WORK_MAX
        self.routes.history_qos = settings.history.min_qos if settings.history.topics else NEVER_RECORDED
        self.lane = Lane(self.state, self.routes)
        self.publisher = Publisher(self)
        self.turn_writer = TurnWriter(self.loop, self.lane, storage)
        self.turn_writer.recorder.deliver = self.publisher.deliver_with_flags
        self.turn_writer.resume_publishers = self._resume_publishers
        self.session_storage = SessionStorage(self, self.turn_writer)
        self.producers = Producers(self)
        self.holdings = Holdings(self.state, self.loop, settings.limits.held_bytes_max)
        self.parts = Parts(self.loop, settings.limits.parts_bytes_max)
        self.turns = Turns(self.loop)
        self.large = LargeMessages(self.loop)
        self.readers = Readers(replay.READERS_MAX)
        self.idle_readers = IdleReaders()
        self.state.on_turn = self._ask_for_end_of_turn
        self.sessions = SessionTable()
        self.statistics = Statistics()
        self._make_reading(settings)
        self.cursors = SessionCursors(
            self.loop, self.lane, self.turn_writer, self.sessions, self.session_storage, self.groups, self.sharing
        )
        self.retained = RetainedStore(settings.retained.messages_max, settings.retained.bytes_max)
        self.retained.on_expired = self._forget_retained_row
        self.delayed = DelayedMessages(self)
        self.tracer = Tracer(self._on_trace_change)
        self.drops = DropLog(self.statistics, settings.log.drops)
        self.state.on_drop = self.drops
        self.connections: set[Connection] = set()
        self.registry = LocalRegistry(storage.log.fences) if registry is None else registry
        self._make_sessions()
        self.connack_frames = ConnackFrames(settings.mqtt)
        self.wheel = Wheel(self.state.now)
        self.started_at = monotonic()
        self.accepts = TokenBucket(settings.limits.connections_per_s, self.started_at)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()  # the last connection is gone
        self._ticker: asyncio.TimerHandle | None = None
        self._access_epoch = access.epoch
        self._has_certificate_users = _takes_names_from_certificates(settings)
        hooks.on_change = self.routes.refresh
        self._tick()

    def _make_reading(self, settings: Settings) -> None:
        source = LogSource(self.turn_writer.log, self.state, self.loop.call_later)
        self.turn_writer.on_shown = source.showing.note_progress
        self.sharing = GroupBinding(
            self.loop,
            self.lane,
            self.turn_writer,
            self.turns,
            self.sessions,
            self.statistics,
            source=source,
            slots=self.readers,
            hooks=self.hooks,
            ask_hooks=self.publisher.ask_deliver_hooks,
        )
        self.groups = Groups(self.routes, settings.shared.strategy, self.sharing)
        self.reading = ReadingContext(
            source=source,
            state=self.state,
            statistics=self.statistics,
            hooks=self.hooks,
            ask_hooks=self.publisher.ask_deliver_hooks,
            readers=self.readers,
            idle_readers=self.idle_readers,
            rows=self.session_storage,
            writer=self.turn_writer,
            route=self.route,
            relieve_groups=self.groups.relieve_all,
        )

    def _make_sessions(self) -> None:
        self.exclusive = LocalExclusiveTopics()
        self.subscriptions = Subscriptions(self.routes, self.groups, self.exclusive, self.turns)
        self.wills = Wills(self.sessions, self.session_storage, self.access, self.lane, self.statistics, self.publish)
        self.lifecycle = Lifecycle(
            self.sessions,
            self.registry,
            self.subscriptions,
            self.wills,
            self.session_storage,
            groups=self.groups,
            holdings=self.holdings,
            timers=self.timers,
            hooks=self.hooks,
            statistics=self.statistics,
            lane=self.lane,
            make_flow=self.make_flow,
            withdraw=partial(withdraw_subscriptions, self),
            has_users=lambda: self.has_users,
        )

    # Connections

    def make_connection(self, listener: ListenerInfo) -> Connection:
        """The protocol object of a new connection."""
        connection = Connection(self, listener)
        connection.recorder = self.turn_writer.recorder
        return connection

    def admit(self) -> bool:
        """Whether the rate of new connections allows one more."""
        return self.accepts.admit(monotonic())

    def on_lost(self, connection: Connection) -> None:
        """A network connection is gone for good."""
        self.connections.discard(connection)
        self.parts.forget(connection)
        self.wheel.forget(connection)
        if not self.connections:
            self._drained.set()

    def run(self, work: Coroutine[None, None, None], connection: Connection) -> None:
        """Run a coroutine for a connection; if it fails, that is logged and the connection is closed."""

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: a packet could not be handled", connection.client_id or connection.peer(), exc_info=error)
                connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "")

        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(on_done)

    def _ask_for_end_of_turn(self) -> None:
        self.loop.call_soon(self.lane.end_turn)

    def _resume_publishers(self) -> None:
        """The log has room again: let publishers go on, after this callback."""
        for connection in self.connections:
            if connection.hold_bits & HOLD_LOG:
                connection.schedule_resume(HOLD_LOG)

    def _tick(self) -> None:
        now = monotonic()
        self.state.now = judged_at = self.timers.beat()
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        # What has arrived by now is in time, so it is read before anybody is judged.
        after_reading(self.loop, partial(self.wheel.turn, judged_at))
        self.retained.expire(now, _EXPIRIES_MAX)
        self.holdings.tick()
        if self.access.epoch != self._access_epoch:
            self.enforce_access()
        self.cursors.tick()
        self.lane.flush()

    def restore(self) -> None:
        """Restore sessions and messages from storage, before the listeners open."""
        now = time()
        for stored in self.turn_writer.storage.retained.load():
            self.retained.put(stored.message, stored.user_name, stored.stored_at, is_on_disk=True)
        for stored in self.turn_writer.storage.delayed.load():
            self.delayed.restore(stored, now)
        count = self.session_storage.restore()
        self.enforce_access()  # rights may have been withdrawn meanwhile
        if count or len(self.retained) or len(self.delayed):
            log.info("%d sessions, %d retained and %d delayed messages restored", count, len(self.retained), len(self.delayed))

    async def stop(self) -> None:
        """Disconnect every client and release all resources."""
        for connection in list(self.connections):
            connection.close(Reason.SERVER_SHUTTING_DOWN, "the node is stopping", discard_will=True)
        self.lane.flush()
        if self.connections:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), _STOP_S)
            except TimeoutError:
                log.info("%d clients did not read their DISCONNECT in time", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        for session in self.sessions:
            session.cancel_timers()
        self.delayed.stop()
        for task in list(self._tasks):
            task.cancel()
        self.turn_writer.recorder.finish()
        self.cursors.stop()
        self.turn_writer.stop()

    # Sessions

    @property
    def has_users(self) -> bool:
        """Whether a client can log in: with a password, through a hook or by a certificate."""
        return self.access.has_users or bool(self.hooks.authenticates) or self._has_certificate_users

    def make_flow(self, client_id: str, *, is_durable: bool) -> LogFlow:
        """The flow of a session, which follows the log from now on."""
        limits = self.settings.session
        flow = LogFlow(client_id, self.state, limits.queue_messages_max, limits.queue_bytes_max, limits.queue_qos0, is_durable)
        flow.home = self.turn_writer.log.shard_of(client_id)
        return flow

    def subscription_count(self) -> int:
        """Subscriptions of all sessions; each member of a shared one counts."""
        return self.routes.count - len(self.groups) + self.groups.members

    def route(self, session: Session, topic_filter: bytes) -> None:
        """Something about the session's own subscriptions to this filter has changed: let the routes know."""
        self.subscriptions.route(session, topic_filter)

    def drop_subscription(self, session: Session, written: str, subscription: Subscription) -> None:
        """Take one subscription out of the session and of the routes."""
        if session.is_durable:
            self.session_storage.unsubscribed(session, written)
        self.subscriptions.remove(session, written, subscription)

    # Messages

    def publish(self, message: Message, publisher: Flow | None = None, user_name: str | None = None) -> int:
        """Publish a message that did not come on a connection; see ``Publisher``."""
        return self.publisher.publish(message, publisher, user_name)

    def _inspect(self, topic: bytes) -> int:
        flags = ASK_INNER if topic.startswith(b"$") else 0
        if self._is_history(topic):
            flags |= HISTORY
        if self.hooks.publishes or self.hooks.delivers or self.tracer.filters:
            name = topic.decode()
            if self.hooks.concerns(self.hooks.publishes, name):
                flags |= HOOK_PUBLISH
            if self.hooks.concerns(self.hooks.delivers, name):
                flags |= HOOK_DELIVER
            if self.tracer.concerns(name):
                flags |= TRACED
        return flags

    def _forget_retained_row(self, topic: bytes) -> None:
        if not topic.startswith(b"$") and not self.publisher.is_retaining(topic):
            self.turn_writer.write(self.turn_writer.storage.retained.remove(topic))

    def forget_retained(self, topic: bytes) -> bool:
        """Remove the retained message of a topic; False if there was none."""
        self._forget_retained_row(topic)
        return self.retained.remove(topic)

    def _is_history(self, topic: bytes) -> bool:
        topics = self.settings.history.topics
        if "#" in topics and not topic.startswith(b"$"):
            return True
        return bool(topics) and any(matches(topic_filter, topic.decode()) for topic_filter in topics)

    # Changes at run time

    def reconfigure(self, settings: Settings) -> None:
        """Take over settings that can change while clients are connected."""
        self.settings = settings
        self.connack_frames = ConnackFrames(settings.mqtt)
        self._has_certificate_users = _takes_names_from_certificates(settings)
        self.state.outbox_bytes_max = settings.limits.outbox_bytes_max
        self.state.held_bytes_max = settings.limits.held_bytes_max
        self.state.unread_bytes_max = settings.limits.outboxes_bytes_max
        self.parts.bytes_max = settings.limits.parts_bytes_max
        self.drops.writes = settings.log.drops
        self.groups.use(settings.shared.strategy)
        self.retained.messages_max = settings.retained.messages_max
        self.retained.bytes_max = settings.retained.bytes_max
        if settings.mqtt.topic_levels_max != self.routes.levels_max:
            self.routes.levels_max = settings.mqtt.topic_levels_max
            self.routes.refresh()
        if settings.limits.connections_per_s != self.accepts.rate:
            self.accepts = TokenBucket(settings.limits.connections_per_s, monotonic())
        for session in self.sessions:
            session.flow.queue_messages_max = settings.session.queue_messages_max
            session.flow.queue_bytes_max = settings.session.queue_bytes_max
            session.flow.queue_qos0 = settings.session.queue_qos0
        self.enforce_access()

    def enforce_access(self) -> None:
        """Rules, users or bans have changed: end only what is no longer allowed.

        While the file of the rules cannot be used nobody stays, so that nothing is delivered, and sessions keep what they have.
        """
        self._access_epoch = self.access.epoch
        for connection in list(self.connections):
            if not connection.is_open:
                continue
            if self.lets_stay(connection):
                connection.take_rules()
            else:
                connection.close(Reason.NOT_AUTHORIZED, "access was withdrawn")
        if self.access.has_rules:
            for session in list(self.sessions):
                withdraw_subscriptions(self, session)
            self.wills.publish_due()
            self.delayed.publish_overdue()
        self.lane.flush()

    def lets_stay(self, connection: Connection) -> bool:
        """Whether a connected client may stay; invalid rules allow no client."""
        return self.access.has_rules and connection.is_still_allowed()

    def _on_trace_change(self) -> None:
        self.routes.refresh()
        for connection in self.connections:
            connection.take_trace()


def _takes_names_from_certificates(settings: Settings) -> bool:
    listeners = settings.listeners
    kinds = (listeners.tcp, listeners.tls, listeners.ws, listeners.wss)  # without TLS it is the PROXY header that has the name
    return any(each.user_from_certificate for kind in kinds for each in kind.values())
