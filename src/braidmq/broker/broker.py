"""One node's broker: it owns the lane, the sessions and the stores, and is what connections act upon.

Everything here runs on the event loop and nothing awaits between a check and the act that relies on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic, time

from msgspec.structs import replace

from braidmq.access.local import LocalAccess
from braidmq.base.settings import Settings
from braidmq.broker import look_back
from braidmq.broker.connection import Connection
from braidmq.broker.delayed import DelayedMessages
from braidmq.broker.drops import DropLog
from braidmq.broker.durable import DurableSessions
from braidmq.broker.feeding import Feeding
from braidmq.broker.flags import HOOK_DELIVER, HOOK_PUBLISH, TRACED
from braidmq.broker.hooks import Hooks
from braidmq.broker.keeping import Keeper
from braidmq.broker.limits import TokenBucket
from braidmq.broker.listeners.origin import ListenerInfo
from braidmq.broker.messages import make_message
from braidmq.broker.ports import Storage
from braidmq.broker.producers import Producers
from braidmq.broker.publisher import Publisher
from braidmq.broker.readers import Readers
from braidmq.broker.retained import RetainedStore
from braidmq.broker.sessions import NEVER, Session, SessionTable
from braidmq.broker.shared import Groups
from braidmq.broker.sharing import Sharing
from braidmq.broker.statistics import Statistics
from braidmq.broker.trace import Tracer
from braidmq.broker.wheel import TICK_S, Wheel
from braidmq.lane.channel import ASK_INNER
from braidmq.lane.flow import Delivery, Flow
from braidmq.lane.lane import Lane
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import Message
from braidmq.lane.routes import HISTORY, RouteTable, Subscription
from braidmq.lane.routes import NEVER as NEVER_RECORDED
from braidmq.lane.state import State
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX, matches

log = logging.getLogger("braidmq.broker")

_WORK_MAX = 20_000  # deliveries in one callback before others have their turn: about 3 ms
_EXPIRIES_MAX = 5000  # retained messages let go in one tick: about 5 ms
_STOP_S = 2.0  # how long clients have to take their DISCONNECT when the node stops


class Broker:
    """The state machine between connections. Made inside a running loop by ``node.py``, which passes the parts in."""

    def __init__(self, settings: Settings, access: LocalAccess, hooks: Hooks, storage: Storage) -> None:
        self.settings = settings
        self.access = access
        self.hooks = hooks
        self.loop = asyncio.get_running_loop()
        self.state = State(settings.limits.outbox_bytes_max, _WORK_MAX)
        self.state.now = monotonic()
        self.state.wall_offset = time() - self.state.now
        self.routes = RouteTable(settings.mqtt.topic_levels_max)
        self.routes.inspector = self._inspect
        self.routes.history_qos = settings.history.min_qos if settings.history.topics else NEVER_RECORDED
        self.lane = Lane(self.state, self.routes)
        self.publisher = Publisher(self)
        self.keeper = Keeper(self, storage)
        self.durable = DurableSessions(self, self.keeper)
        self.producers = Producers(self)
        self.feeding = Feeding(self.loop)
        self.readers = Readers(look_back.READERS_MAX)
        self.state.on_turn = self._ask_for_end_of_turn
        self.sharing = Sharing(self)
        self.groups = Groups(self.routes, settings.shared.strategy, self.sharing)
        self.sessions = SessionTable()
        self.retained = RetainedStore(settings.retained.messages_max)
        self.retained.on_expired = self._forget_retained_row
        self.delayed = DelayedMessages(self)
        self.tracer = Tracer(self._on_trace_change)
        self.statistics = Statistics()
        self.drops = DropLog(self.statistics, settings.log.drops)
        self.state.on_drop = self.drops
        self.connections: set[Connection] = set()
        self.exclusive: dict[bytes, Session] = {}  # $exclusive topics and who has them
        self.wheel = Wheel(self.state.now)
        self.accepts = TokenBucket(settings.limits.connections_per_s, self.state.now)
        self.started_at = monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()  # the last connection is gone
        self._ticker: asyncio.TimerHandle | None = None
        self._access_epoch = access.epoch
        self._wills_due: set[Session] = set()  # whose wills wait for rules; nobody comes in meanwhile, so there is a bound
        hooks.on_change = self.routes.refresh
        self._tick()

    # Connections

    def make_connection(self, listener: ListenerInfo) -> Connection:
        """The protocol object of a new connection."""
        connection = Connection(self, listener)
        connection.recorder = self.keeper.recorder
        return connection

    def admit(self) -> bool:
        """Whether the rate of new connections allows one more."""
        return self.accepts.admit(monotonic())

    def on_lost(self, connection: Connection) -> None:
        """A network connection is gone for good."""
        self.connections.discard(connection)
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

    def _tick(self) -> None:
        self.state.now = now = monotonic()
        self.state.wall_offset = time() - now
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        self.wheel.turn(now)
        self.retained.expire(now, _EXPIRIES_MAX)
        if self.access.epoch != self._access_epoch:
            self.enforce_access()
        self.keeper.tick()
        self.lane.flush()

    def restore(self) -> None:
        """Take up what the storage has, before clients are let in."""
        now = time()
        for stored in self.keeper.storage.retained.load():
            self.retained.put(stored.message, stored.user_name, stored.stored_at)
        for stored in self.keeper.storage.delayed.load():
            self.delayed.restore(stored, now)
        count = self.durable.restore()
        self.enforce_access()  # rights may have been withdrawn meanwhile
        if count or len(self.retained) or len(self.delayed):
            log.info("%d sessions, %d retained and %d delayed messages restored", count, len(self.retained), len(self.delayed))

    async def stop(self) -> None:
        """Say goodbye to every client and let go of everything."""
        for connection in list(self.connections):
            connection.close(Reason.SERVER_SHUTTING_DOWN, "the node is stopping", discard_will=True)
        self.lane.flush()
        if self.connections:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), _STOP_S)
            except TimeoutError:
                log.info("%d clients did not take their goodbye in time", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        for session in self.sessions:
            session.cancel_timers()
        self.delayed.stop()
        for task in list(self._tasks):
            task.cancel()
        self.keeper.stop()

    # Sessions

    def open_session(self, client_id: str, clean_start: bool, connection: Connection, expiry_s: int) -> tuple[Session, bool]:
        """The session for an accepted CONNECT, and whether it was there; its old connection and perhaps its old state end.

        A new one is durable if it is to outlive its connection.
        """
        session = self.sessions.get(client_id)
        # Its subscriptions and messages are for the user who made it, and not for everybody who knows its client id.
        is_ended = session is not None and (clean_start or session.user_name not in (None, connection.user_name))
        if session is not None and session.connection is not None:
            self.statistics.taken_over += 1
            # The client is back before the delay has passed, unless this very connection ends the session.
            is_back = not is_ended and session.expiry_s > 0 and session.will_delay_s > 0
            session.connection.close(Reason.SESSION_TAKEN_OVER, "another connection uses this client id", discard_will=is_back)
            session = self.sessions.get(client_id)  # gone, if its expiry was 0
        if session is not None and is_ended:
            self.statistics.discarded += 1
            self.end_session(session)
            session = None
        is_present = session is not None
        if session is not None and session.user_name != connection.user_name:
            # Nobody's, from before its client had a name: a fleet that is given passwords keeps its sessions.
            session.user_name = connection.user_name
            self._withdraw_subscriptions(session)
        if session is None:
            session = Session(client_id, self.make_flow(client_id, is_durable=expiry_s > 0), monotonic())
            session.user_name = connection.user_name
            self.sessions.add(session)
            self.statistics.created += 1
            self.hooks.tell("session_created", client_id)
        else:
            session.cancel_timers()  # [MQTT-3.1.3-9]: back in time, so no will
            session.will = None
            session.ended_at = 0.0
            self.statistics.resumed += 1
            self.hooks.tell("session_resumed", client_id)
        session.connection = connection
        # The owner's version: a later connection's is higher, whatever the clock does.
        session.guard = max(session.guard + 1, int(time() * 1_000_000))
        self.keeper.log.fences.fence(client_id, session.guard)
        return session, is_present

    def make_flow(self, client_id: str, *, is_durable: bool) -> LogFlow:
        """The flow of a session, which follows the log from now on."""
        limits = self.settings.session
        flow = LogFlow(client_id, self.state, limits.queue_messages_max, limits.queue_bytes_max, limits.queue_qos0, is_durable)
        flow.home = self.keeper.log.shard_of(client_id)
        return flow

    def leave_session(self, session: Session, discard_will: bool) -> None:
        """Its connection has ended: publish the will now or later, and end the session now or later."""
        session.connection = None
        session.catch_up = session.recall = None
        look_back.pause_all(session)
        session.flow.detach()
        if discard_will:
            session.will = None
        if session.expiry_s == 0:
            self.end_session(session)
            return
        self.groups.redispatch(session.flow, is_over=False)
        if session.is_durable:
            self.durable.left(session)
        if session.will_delay_s == 0:
            self._publish_will(session)
        self.wait_for_return(session, 0.0)

    def wait_for_return(self, session: Session, gone_s: float) -> None:
        """The session has been without a client for so long: let its will and its expiry happen when they are due."""
        session.ended_at = monotonic() - gone_s
        delay_s = session.will_delay_s
        if session.will is not None and (delay_s < session.expiry_s or session.expiry_s == NEVER):
            session.will_timer = self.loop.call_later(max(0.0, delay_s - gone_s), self._publish_will, session)
        if session.expiry_s != NEVER:
            session.expiry_timer = self.loop.call_later(max(0.0, session.expiry_s - gone_s), self._expire, session)

    def _expire(self, session: Session) -> None:
        self.statistics.expired += 1
        self.end_session(session)
        self.lane.flush()

    def end_session(self, session: Session) -> None:
        """Forget everything about it; a will that still waits is published, for the session ends [MQTT-3.1.2-8]."""
        session.cancel_timers()
        if session.will is not None:
            self._publish_will(session)
        session.feeds = None
        if session.is_durable:
            self.durable.ended(session)
        for written, subscription in list(session.subscriptions.items()):
            self.drop_subscription(session, written, subscription)
        self.groups.redispatch(session.flow, is_over=True)
        session.flow.discard()
        self.sessions.remove(session)
        self.keeper.log.fences.forget(session.client_id)
        self.statistics.ended += 1
        self.hooks.tell("session_ended", session.client_id)

    def subscription_count(self) -> int:
        """Subscriptions of all sessions; each member of a shared one counts."""
        return self.routes.count - len(self.groups) + self.groups.members

    def route(self, session: Session, topic_filter: bytes) -> None:
        """Something about the session's own subscriptions to this filter has changed: let the routes know."""
        united = session.united(topic_filter)
        if united is not None:
            self.routes.add(united)
        else:
            self.routes.remove(topic_filter, session.flow)

    def drop_subscription(self, session: Session, written: str, subscription: Subscription) -> None:
        """Take one subscription out of the session and of the routes."""
        session.let_go(written)
        if session.is_durable:
            self.durable.unsubscribed(session, written)
        if subscription.group is not None:
            other = session.membership(subscription.group)
            if other is not None:
                subscription.group.put(other)
            else:
                self.groups.leave(subscription.group, session.flow)
        else:
            self.route(session, subscription.topic_filter)
            if session.feeds is not None:
                session.feeds.pop(subscription.topic_filter, None)
        if written.startswith(EXCLUSIVE_PREFIX) and self.exclusive.get(subscription.topic_filter) is session:
            del self.exclusive[subscription.topic_filter]

    def _publish_will(self, session: Session) -> None:
        will = session.will
        session.will_timer = None
        if will is None:
            return
        if not self.access.has_rules:
            self._wills_due.add(session)
            return
        session.will = None
        if session.is_durable:
            self.durable.will_is_over(session)
        rules = self.access.rules_for(session.client_id, session.user_name)
        if will.topic.startswith("$") or not (rules.unrestricted or rules.may_publish(will.topic)):
            self.statistics.dropped_revoked += 1
            self.state.drop("not_authorized", session.client_id, will.topic.encode())
            return
        self.statistics.own_messages += 1
        properties = replace(will.properties, will_delay_interval=None)
        self.publish(
            make_message(will.topic, will.payload, will.qos, will.retain, properties, session.client_id),
            session.flow,
            session.user_name,
        )
        self.lane.flush()

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
            self.keeper.write(self.keeper.storage.retained.remove(topic))

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
        self.state.outbox_bytes_max = settings.limits.outbox_bytes_max
        self.drops.writes = settings.log.drops
        self.groups.use(settings.shared.strategy)
        self.retained.messages_max = settings.retained.messages_max
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
        """Rules, users or bans have changed: end what is no longer allowed, and nothing else.

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
                self._withdraw_subscriptions(session)
            wills_due, self._wills_due = self._wills_due, set()
            for session in wills_due:
                self._publish_will(session)
            self.delayed.publish_overdue()
        self.lane.flush()

    def lets_stay(self, connection: Connection) -> bool:
        """Whether a client that was let in may be connected now; rules that cannot be used are nobody's."""
        return self.access.has_rules and connection.is_still_allowed()

    def _withdraw_subscriptions(self, session: Session) -> None:
        """End those that its user has no right to."""
        rules = self.access.rules_for(session.client_id, session.user_name)
        if rules.unrestricted:
            return
        removed = False
        for written, subscription in list(session.subscriptions.items()):
            if not rules.may_subscribe(subscription.topic_filter.decode()):
                log.info("%s may no longer receive %s: subscription removed", session.client_id, written)
                self.drop_subscription(session, written, subscription)
                removed = True
        if removed:
            self.statistics.deliveries_withdrawn += session.flow.withdraw(_unwanted(session))

    def _on_trace_change(self) -> None:
        self.routes.refresh()
        for connection in self.connections:
            connection.take_trace()


def _unwanted(session: Session) -> Callable[[Delivery], bool]:
    """Tells whether a delivery no longer belongs to any subscription of the session and can still be taken back."""
    topic_filters = [subscription.topic_filter.decode() for subscription in session.subscriptions.values()]

    def is_unwanted(delivery: Delivery) -> bool:
        message = delivery.message
        if message is None or (delivery.is_live and session.is_connected):
            return False  # the client has it, and its packet id is in use until it is acknowledged
        topic = message.topic.decode()
        if any(matches(topic_filter, topic) for topic_filter in topic_filters):
            return False
        if delivery.qos == 2 and delivery.is_sent:
            # The client may know it by its packet id, which must not come back with another message: let it go by PUBREL.
            delivery.message = None
            delivery.is_released = True
            return False
        session.flow.state.drop("not_authorized", session.client_id, message.topic)
        return True

    return is_unwanted
