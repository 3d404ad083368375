"""Lets an authenticated client in: claims its client id, opens its session and sends CONNACK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

from braidmq.access.contract import Granted, Refused, Verdict
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.presence import Presence
from braidmq.broker.connection.table import ConnectionTable
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.producer_books import NotTaken, ProducerStart
from braidmq.broker.messages.producers import Producers, read_request
from braidmq.broker.packets.connack import ConnackWriter
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Refusal, StoredSession
from braidmq.broker.reading.recall import Recall
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.opening import Newcomer, Opening
from braidmq.broker.session.ports import AccessControl, Grant, GrantEnding, Registry
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.takeover_steps import TakeoverSteps
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.channel_reader import HOLD_BUSY
from braidmq.mqtt.packets import Connect
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")

_WITHDRAWN = Refused(Reason.NOT_AUTHORIZED, "access was withdrawn")


class Admission:
    """The steps from the verdict on a CONNECT to its CONNACK."""

    def __init__(
        self,
        access: AccessControl,
        hooks: Hooks,
        registry: Registry,
        sessions: SessionTable,
        takeover_steps: TakeoverSteps,
        lifecycle: Lifecycle,
        *,
        session_storage: SessionStorage,
        turn_writer: TurnWriter,
        producers: Producers,
        groups: Groups,
        connack: ConnackWriter,
        presence: Presence,
        connections: ConnectionTable,
        statistics: Statistics,
        live: LiveSettings,
        make_recall: Callable[[Session], Recall],
        restore: Callable[[StoredSession], Session],
        is_home: bool,
        claim_gate: Callable[[], Refused | None] | None,
    ) -> None:
        """``make_recall`` starts to read messages in flight that only the log has.

        ``restore`` makes a session of the rows that a grant has brought. ``is_home``: sessions wait, and are counted, here.
        ``claim_gate``: see `NodePorts`.
        """
        self._access = access
        self._hooks = hooks
        self._registry = registry
        self._sessions = sessions
        self._takeover_steps = takeover_steps
        self._lifecycle = lifecycle
        self._session_storage = session_storage
        self._turn_writer = turn_writer
        self._producers = producers
        self._groups = groups
        self._connack = connack
        self._presence = presence
        self._connections = connections
        self._statistics = statistics
        self._live = live
        self._make_recall = make_recall
        self._restore = restore
        self._is_home = is_home
        self._claim_gate = claim_gate

    def judge_place(self, client_id: str) -> Refused | None:
        """The reason why there is no room for a session of this client id; None if there is room."""
        sessions = self._sessions
        if not self._is_home:
            return None  # their homes count them
        if len(sessions) >= self._live.now.session.sessions_max and sessions.get(client_id) is None:
            return Refused(Reason.QUOTA_EXCEEDED, "too many sessions")
        return None

    def conclude(self, connection: Connection, packet: Connect, verdict: Verdict, data: bytes, *, is_fresh: bool = False) -> None:
        """The verdict is there: admit the client or reject it. Unless the registry takes time, nothing is awaited from here on.

        A verdict is *fresh* if nothing was awaited for it either, so that it need not be checked again. ``data``: what an
        authenticator has to say in CONNACK.
        """
        if connection.is_closed:
            return
        connection.pending_connect = None
        connection.exchange = None
        if isinstance(verdict, Granted) and not self._access.has_rules:
            verdict = Refused(Reason.SERVER_UNAVAILABLE, "the ACL file cannot be used")
        if isinstance(verdict, Refused):
            self._statistics.authentication_failure += 1
            log.info("%s %s refused: %s", connection.peer(), connection.client_id, verdict.detail)
            # The exact reason is for the log: the client learns the code only.
            connection.refuse(verdict.reason, "")
            return
        if verdict.user_name is None:
            self._statistics.anonymous += 1
        else:
            self._statistics.authentication_success += 1
        connection.user_name = verdict.user_name
        reason = self._hooks.connect(connection.describe()) if self._hooks.connects else 0
        if reason:
            connection.refuse(reason, "refused by a hook")
            return
        producer = read_request(packet)
        if isinstance(producer, NotTaken):
            self._refuse(connection, producer)
            return
        expiry_s = self._expiry(connection, packet)
        user_name, clean_start = connection.user_name, packet.clean_start
        stated = self._stated_time(packet)
        newcomer = Newcomer(connection.client_id, user_name, clean_start, expiry_s, packet.will, producer, connection, stated)
        if self._claim_gate is not None:
            refused = self._claim_gate()
            if refused is not None:
                self._refuse(connection, refused)
                return
            if not connection.is_established():
                _hold_busy(connection)
                self._connections.run(self._claim_if_there(newcomer, packet, data), connection)
                return
        self._claim(newcomer, packet, data, is_fresh)

    async def _claim_if_there(self, newcomer: Newcomer, packet: Connect, data: bytes) -> None:
        """Claim for a client that has closed its side, if it has sent anything behind its CONNECT.

        Otherwise it has given up waiting for CONNACK and is elsewhere by now: its claim, as the later one, would end that (R4).
        """
        connection = newcomer.connection
        await asyncio.sleep(0)  # what was read together with CONNECT can be seen now
        if connection.is_closed:
            return
        if connection.has_left():
            self._statistics.abandoned += 1
            connection.close(Reason.UNSPECIFIED_ERROR, "the client has left before its CONNECT was handled", say=False)
        else:
            self._claim(newcomer, packet, data, is_fresh=False)
        connection.lane.flush()

    def _claim(self, newcomer: Newcomer, packet: Connect, data: bytes, is_fresh: bool) -> None:
        connection = newcomer.connection
        grant = self._registry.claim(newcomer)
        if isinstance(grant, Grant):
            self._open(newcomer, packet, data, grant, is_fresh)
        elif isinstance(grant, Refused):
            self._refuse(connection, grant)
        else:
            _hold_busy(connection)
            self._connections.run(self._open_later(newcomer, packet, data, grant), connection)

    def _stated_time(self, packet: Connect) -> str | None:
        name = self._live.now.registry.version_property
        if not name:
            return None
        return next((value for key, value in packet.properties.user_properties if key == name), None)

    async def _open_later(self, newcomer: Newcomer, packet: Connect, data: bytes, asked: Awaitable[Grant | Refused]) -> None:
        """Open the session once the registry has answered, if the client is still connected."""
        connection = newcomer.connection
        connection.is_claiming = True
        grant = await asked
        connection.is_claiming = False
        if isinstance(grant, Refused):
            if not connection.is_closed:
                self._refuse(connection, grant)
        elif connection.is_closed:
            self._give_up(grant)
        else:
            self._open(newcomer, packet, data, grant, is_fresh=False)
        connection.lane.flush()

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        told = (self._producers.shards(), *refused.told) if isinstance(refused, NotTaken) else ()
        connection.refuse(refused.reason, refused.detail, user_properties=told)

    def _give_up(self, grant: Grant) -> None:
        """End a grant that was not committed."""
        keeps_session = grant.stored is not None or self._sessions.get(grant.client_id) is not None
        self._registry.end(grant, keeps_session=keeps_session, ending=GrantEnding.WITHDRAWN)

    def _take_in(self, grant: Grant) -> Session | None:
        """Restore the session that the grant has brought, in place of an older one that this node did not let go in time."""
        if grant.stored is None and self._is_home:
            return None  # what there is of the client id is here
        present = self._sessions.get(grant.client_id)
        if present is not None:
            if present.guard > grant.guard:
                return None  # ``open`` refuses this grant
            self._lifecycle.hand_over(present)
        return None if grant.stored is None else self._restore(grant.stored)

    def _open(self, newcomer: Newcomer, packet: Connect, data: bytes, grant: Grant, is_fresh: bool) -> None:
        """Make the client's session its own; CONNACK follows when a durable one is on disk.

        That of a producer waits, too: by then everything is settled that an earlier connection had under way.
        """
        connection = newcomer.connection
        if not is_fresh:  # others may have come, and access may have been withdrawn, while this one was waiting
            refusal = self.judge_place(connection.client_id)
            if refusal is None and not connection.is_still_allowed():
                refusal = _WITHDRAWN
            if refusal is not None:
                self._give_up(grant)
                connection.refuse(refusal.reason, refusal.detail)
                return
        producer = newcomer.producer
        refused = producer and self._producers.judge(producer, connection.client_id, connection.user_name)
        if refused:
            self._give_up(grant)
            self._refuse(connection, refused)
            return
        try:
            restored = self._take_in(grant)
        except BaseException:
            self._give_up(grant)  # what its home has sent cannot be used here; the client is disconnected
            raise
        opening = self._takeover_steps.open(newcomer, grant)
        if isinstance(opening, Refused):
            self._give_up(grant)
            if restored is not None:
                self._lifecycle.set_down(restored)
            connection.refuse(opening.reason, opening.detail)
            return
        session = connection.session = opening.session
        changes = self._session_storage.opened(opening) if session.is_durable else None
        rows = self._producers.opening(connection, producer) if producer is not None else None
        if changes is None and rows is None:
            self._greet(connection, packet, data, opening, grant.producer)
            return
        _hold_busy(connection)
        self._turn_writer.change(
            [*(changes or ()), *(rows or ())],
            partial(self._greet_kept, connection, packet, data, opening, grant.producer),
            partial(self._not_kept, connection, session),
        )

    def _expiry(self, connection: Connection, packet: Connect) -> int:
        """Seconds that the session outlives its connection: as requested, within the configured maximum."""
        settings = self._live.now.session
        if connection.is_v5:
            asked = packet.properties.session_expiry_interval or 0
        else:
            asked = 0 if packet.clean_start else int(settings.expiry_mqtt3)
        return min(asked, int(settings.expiry_max)) if settings.expiry_max else asked

    def _greet_kept(
        self, connection: Connection, packet: Connect, data: bytes, opening: Opening, start: ProducerStart | None
    ) -> None:
        """The session is on disk: accept the client if it is still connected and still allowed."""
        session = opening.session
        if connection.is_closed or session.connection is not connection:
            session.is_provisional = False  # it is there for the next connection, which may hold it already
            return
        if connection.is_still_allowed():
            self._greet(connection, packet, data, opening, start)
        else:
            self._turn_away(connection, session, _WITHDRAWN)
        connection.lane.flush()

    def _not_kept(self, connection: Connection, session: Session, refusal: Refusal) -> None:
        self._turn_away(connection, session, Refused(Reason.QUOTA_EXCEEDED, "the session cannot be stored"))
        connection.lane.flush()

    def _turn_away(self, connection: Connection, session: Session, refused: Refused) -> None:
        """Reject a client that already holds a session."""
        connection.session = None
        connection.refuse(refused.reason, refused.detail)
        self._lifecycle.turn_away(session, connection)

    def _greet(self, connection: Connection, packet: Connect, data: bytes, opening: Opening, start: ProducerStart | None) -> None:
        """Send CONNACK and let messages flow. ``Lane.flush`` must follow."""
        session = opening.session
        self._lifecycle.commit(opening)
        settings = self._live.now
        properties = packet.properties
        connection.flow = session.flow
        connection.frame_max = settings.mqtt.packet_bytes_max
        connection.is_strict_payload = settings.mqtt.check_payload_format
        connection.opened_at = monotonic()
        connection.order = session.grant.version
        connection.take_rules()
        connection.take_trace()
        connection.meter(settings.limits.messages_per_s, settings.limits.bytes_per_s)
        keep_alive = packet.keep_alive
        if settings.mqtt.keep_alive_max and (keep_alive == 0 or keep_alive > settings.mqtt.keep_alive_max):
            keep_alive = settings.mqtt.keep_alive_max
        connection.watch_keep_alive(keep_alive)
        window = settings.mqtt.inflight_max
        if connection.is_v5:
            connection.receive_maximum = settings.mqtt.receive_maximum
            connection.alias_in_max = settings.mqtt.topic_alias_maximum
            connection.allow_aliases(min(properties.topic_alias_maximum or 0, settings.mqtt.topic_alias_maximum_out))
            window = min(window, properties.receive_maximum or 65535)
        connection.window = window
        producer = opening.newcomer.producer
        told = self._producers.join(connection, producer, start) if producer is not None else ()
        is_told = self._connack.send(connection, packet, keep_alive, data, told, opening.is_present)
        connection.is_open = True
        self._attach(connection, session)
        self._groups.relieve_all(session.groups())
        connection.wants_room = session.wants_room
        if connection.wants_room:
            connection.on_room()
        self._presence.opened(connection, packet.clean_start)
        if not is_told:
            connection.close(Reason.PACKET_TOO_LARGE, "the CONNACK exceeds the client's maximum packet size", say=False)
        connection.resume(HOLD_BUSY)

    def _attach(self, connection: Connection, session: Session) -> None:
        flow = session.flow
        flow.make_all_ready()  # a durable session's cursor was written before this
        if not session.subscriptions:
            flow.follow()  # there is nothing to read
        flow.attach(connection, connection.window)
        if flow.has_unread():  # those messages are read before anything else, for they are sent first
            session.recall = self._make_recall(session)


def _hold_busy(connection: Connection) -> None:
    if not connection.hold_bits & HOLD_BUSY:
        connection.hold(HOLD_BUSY)
