"""CONNECT, AUTH, DISCONNECT and the end of a connection."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.base.errors import ProtocolViolation
from braidmq.broker.connection import presence
from braidmq.broker.packets.connack import send_connack
from braidmq.broker.ports import Refusal
from braidmq.broker.reading.recall import Recall
from braidmq.broker.session.opening import Newcomer, Opening
from braidmq.broker.session.ports import Claim
from braidmq.broker.session.session import Session, will_bytes
from braidmq.lane.path.channel import HOLD_BUSY
from braidmq.lane.path.scanner import topic_error
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Auth, Connect, Disconnect
from braidmq.mqtt.producer_protocol import Request
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection

log = logging.getLogger("braidmq.connection")

WILLS_PART = 4  # large wills of all sessions may take this part of `limits.held_bytes_max`
_WITHDRAWN = Refused(Reason.NOT_AUTHORIZED, "access was withdrawn")


def on_connect(connection: Connection, packet: Connect) -> None:
    """Process a CONNECT: reject it at once if possible, else wait for the authenticator."""
    connection.version = packet.version
    connection.is_v5 = packet.version == MQTT5
    properties = packet.properties
    if properties.maximum_packet_size is not None:
        connection.frame_max_out = properties.maximum_packet_size
    connection.wants_reasons = properties.request_problem_information != 0
    refusal = _judge(connection, packet)
    if refusal is not None:
        connection.refuse(refusal.reason, refusal.detail)
        return
    if packet.client_id:
        connection.client_id = packet.client_id
    else:
        connection.client_id = f"auto-{secrets.token_hex(12)}"
    connection.pending_connect = packet
    method = properties.authentication_method
    if method is not None and method not in connection.broker.access.methods:
        connection.refuse(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not offered")
        return
    shown = credentials(connection, packet.user_name, packet.password)
    if method is not None:
        connection.hold(HOLD_BUSY)
        connection.exchange = connection.broker.access.begin(method, shown)
        connection.broker.run(_step(connection, properties.authentication_data or b""), connection)
        return
    verdict = None if connection.broker.hooks.authenticates else _judge_at_once(connection, shown)
    if verdict is not None:
        # Most logins of a fleet that comes back: no task, no turn of the loop, and nothing can have changed meanwhile.
        _conclude(connection, packet, verdict, b"", is_fresh=True)
    else:
        connection.hold(HOLD_BUSY)
        connection.broker.run(_authenticate(connection, packet, shown), connection)


def _judge(connection: Connection, packet: Connect) -> Refused | None:
    """The rejection of a CONNECT that needs no authenticator to decide; None if there is none."""
    broker = connection.broker
    settings = broker.settings
    if packet.bridge and not settings.mqtt.allow_bridge_bit:
        return Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "bridges are not allowed; see mqtt.allow_bridge_bit")
    if not packet.client_id and (packet.version == MQTT31 or (packet.version == MQTT311 and not packet.clean_start)):
        # [MQTT-3.1.3-8] of 3.1.1; in 3.1 the server assigns none.
        return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs MQTT 3.1.1 and a clean session, or MQTT 5")
    if len(packet.client_id.encode()) > settings.mqtt.client_id_bytes_max:
        return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, f"the client id exceeds {settings.mqtt.client_id_bytes_max} bytes")
    if packet.will is not None and topic_error(packet.will.topic.encode(), settings.mqtt.topic_levels_max):
        return Refused(Reason.TOPIC_NAME_INVALID, "the will's topic is not a topic name")
    wills_bytes_max = settings.limits.held_bytes_max // WILLS_PART
    if (size := will_bytes(packet.will)) and broker.sessions.will_bytes + size > wills_bytes_max:
        return Refused(Reason.QUOTA_EXCEEDED, "too many large wills; one of up to 1 KiB is always accepted")
    return _judge_place(connection, packet.client_id)


def _judge_place(connection: Connection, client_id: str) -> Refused | None:
    sessions = connection.broker.sessions
    if len(sessions) >= connection.broker.settings.session.sessions_max and sessions.get(client_id) is None:
        return Refused(Reason.QUOTA_EXCEEDED, "too many sessions")
    return None


def credentials(connection: Connection, user_name: str | None, password: bytes | None = None) -> Credentials:
    """The credentials and address that the client presents."""
    origin = connection.origin
    assert origin is not None  # set when the connection was made
    return Credentials(
        client_id=connection.client_id,
        user_name=user_name,
        password=password,
        certificate_name=origin.certificate_name,
        peer_host=origin.peer_host,
        listener=origin.listener,
        anonymous_allowed=origin.anonymous_allowed,
    )


def _judge_at_once(connection: Connection, shown: Credentials) -> Verdict | None:
    try:
        return connection.broker.access.judge(shown)
    except Exception:
        log.exception("authenticating %s failed", connection.client_id)
        return Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")


async def _authenticate(connection: Connection, packet: Connect, shown: Credentials) -> None:
    broker = connection.broker
    broker.statistics.authenticating += 1
    try:
        verdict: Verdict | None = None
        if broker.hooks.authenticates:
            verdict = broker.access.refusal(shown) or await broker.hooks.authenticate(shown)
            if verdict is not None:
                broker.access.note_verdict(shown, verdict)
        connection.is_vouched = verdict is not None
        if verdict is None:
            verdict = await broker.access.authenticate(shown)
    except Exception:
        log.exception("authenticating %s failed", connection.client_id)
        verdict = Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")
    finally:
        broker.statistics.authenticating -= 1
    _conclude(connection, packet, verdict, b"")
    broker.lane.flush()


def _conclude(connection: Connection, packet: Connect, verdict: Verdict, data: bytes, *, is_fresh: bool = False) -> None:
    """The verdict is there: let the client in or not. Nothing is awaited from here on.

    A verdict is *fresh* if nothing was awaited for it either, so that it need not be checked again.
    """
    if connection.is_closed:
        return
    connection.pending_connect = None
    connection.exchange = None
    if isinstance(verdict, Granted) and not connection.broker.access.has_rules:
        verdict = Refused(Reason.SERVER_UNAVAILABLE, "the ACL file cannot be used")
    if isinstance(verdict, Refused):
        connection.broker.statistics.authentication_failure += 1
        log.info("%s %s refused: %s", connection.peer(), connection.client_id, verdict.detail)
        # What exactly was wrong is for the log: the client learns the code only.
        connection.refuse(verdict.reason, "")
        return
    if verdict.user_name is None:
        connection.broker.statistics.anonymous += 1
    else:
        connection.broker.statistics.authentication_success += 1
    connection.user_name = verdict.user_name
    reason = connection.broker.hooks.connect(connection.describe()) if connection.broker.hooks.connects else 0
    if reason:
        connection.refuse(reason, "refused by a hook")
        return
    claim = connection.broker.registry.begin(connection.client_id)
    if isinstance(claim, Claim):
        _open(connection, packet, data, claim, is_fresh)
    elif isinstance(claim, Refused):
        connection.refuse(claim.reason, claim.detail)
    else:
        if not connection.hold_bits & HOLD_BUSY:
            connection.hold(HOLD_BUSY)
        connection.broker.run(_open_later(connection, packet, data, claim), connection)


async def _open_later(connection: Connection, packet: Connect, data: bytes, asked: Awaitable[Claim | Refused]) -> None:
    """The registry takes its time: open the session when it has answered, if the client is still there."""
    broker = connection.broker
    claim = await asked
    if isinstance(claim, Refused):
        if not connection.is_closed:
            connection.refuse(claim.reason, claim.detail)
    elif connection.is_closed:
        _give_up(connection, claim)
    else:
        _open(connection, packet, data, claim, is_fresh=False)
    broker.lane.flush()


def _give_up(connection: Connection, claim: Claim) -> None:
    """End a claim that was not committed."""
    broker = connection.broker
    broker.registry.end(claim, keeps_session=broker.sessions.get(claim.client_id) is not None)


def _open(connection: Connection, packet: Connect, data: bytes, claim: Claim, is_fresh: bool) -> None:
    """Make the client's session its own; CONNACK follows when a durable one is on disk.

    A producer's waits for that, too: by then everything is settled that an earlier connection had under way.
    """
    broker = connection.broker
    if not is_fresh:  # others may have come, and access may have been withdrawn, while this one was waiting
        refusal = _judge_place(connection, connection.client_id)
        if refusal is None and not broker.lets_stay(connection):
            refusal = _WITHDRAWN
        if refusal is not None:
            _give_up(connection, claim)
            connection.refuse(refusal.reason, refusal.detail)
            return
    request = broker.producers.judge(packet, connection.user_name)
    if isinstance(request, Refused):
        _give_up(connection, claim)
        connection.refuse(request.reason, request.detail, user_properties=(broker.producers.shards(), *request.told))
        return
    newcomer = Newcomer(connection, connection.user_name, packet.clean_start, _expiry(connection, packet), packet.will)
    opening = broker.lifecycle.open(newcomer, claim)
    if isinstance(opening, Refused):
        _give_up(connection, claim)
        connection.refuse(opening.reason, opening.detail)
        return
    session = connection.session = opening.session
    changes = broker.session_storage.opened(opening) if session.is_durable else []
    if request is not None:
        changes = [*changes, *broker.producers.opening(connection, request)]
    elif not session.is_durable:
        _greet(connection, packet, data, opening, None)
        return
    if not connection.hold_bits & HOLD_BUSY:
        connection.hold(HOLD_BUSY)
    broker.turn_writer.change(
        changes,
        partial(_greet_kept, connection, packet, data, opening, request),
        partial(_not_kept, connection, session),
    )


def _greet_kept(connection: Connection, packet: Connect, data: bytes, opening: Opening, request: Request | None) -> None:
    """The session is on disk: tell the client, if it is still there and still allowed in."""
    session = opening.session
    if connection.is_closed or session.connection is not connection:
        session.is_provisional = False  # it is there for the next connection, which may hold it already
        return
    if connection.broker.lets_stay(connection):
        _greet(connection, packet, data, opening, request)
    else:
        _turn_away(connection, session, _WITHDRAWN)
    connection.lane.flush()


def _not_kept(connection: Connection, session: Session, refusal: Refusal) -> None:
    _turn_away(connection, session, Refused(Reason.QUOTA_EXCEEDED, "the session cannot be stored"))
    connection.lane.flush()


def _turn_away(connection: Connection, session: Session, refused: Refused) -> None:
    """Refuse a client that holds a session by now."""
    connection.session = None
    connection.refuse(refused.reason, refused.detail)
    connection.broker.lifecycle.turn_away(session, connection)


def _greet(connection: Connection, packet: Connect, data: bytes, opening: Opening, request: Request | None) -> None:
    """Send CONNACK and let messages flow. ``Lane.flush`` must follow."""
    broker = connection.broker
    session = opening.session
    broker.lifecycle.commit(opening)
    settings = broker.settings
    properties = packet.properties
    connection.flow = session.flow
    connection.frame_max = settings.mqtt.packet_bytes_max
    connection.is_strict_payload = settings.mqtt.check_payload_format
    connection.opened_at = monotonic()
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
    told = broker.producers.join(connection, request) if request is not None else ()
    is_told = send_connack(connection, packet, keep_alive, data, told, opening.is_present)
    connection.is_open = True
    _attach(connection, session)
    broker.groups.relieve_all(session.groups())
    connection.wants_room = session.wants_room
    if connection.wants_room:
        connection.on_room()
    presence.opened(connection, packet.clean_start)
    if not is_told:
        connection.close(Reason.PACKET_TOO_LARGE, "the CONNACK exceeds the client's maximum packet size", say=False)
    connection.resume(HOLD_BUSY)


def _attach(connection: Connection, session: Session) -> None:
    flow = session.flow
    flow.make_all_ready()  # a durable session's cursor was written before this
    if not session.subscriptions:
        flow.follow()  # there is nothing to read
    flow.attach(connection, connection.window)
    if flow.has_unread():  # those messages are read before anything else, for they go out first
        session.recall = Recall(connection.broker.reading, session)


def _expiry(connection: Connection, packet: Connect) -> int:
    """Seconds that the session outlives its connection: what was asked, within what is allowed."""
    settings = connection.broker.settings.session
    if connection.is_v5:
        asked = packet.properties.session_expiry_interval or 0
    else:
        asked = 0 if packet.clean_start else int(settings.expiry_mqtt3)
    return min(asked, int(settings.expiry_max)) if settings.expiry_max else asked


# Enhanced authentication


def on_auth(connection: Connection, packet: Auth) -> None:
    """AUTH: the next step of a login, or a login anew on an open connection."""
    properties = packet.properties
    if connection.pending_connect is not None:
        expected = connection.pending_connect.properties.authentication_method
        if packet.reason != Reason.CONTINUE_AUTHENTICATION or connection.exchange is None:
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "AUTH out of turn")
    else:
        expected = connection.method
        if expected is None:  # [MQTT-4.12.0-7]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
        if packet.reason == Reason.RE_AUTHENTICATE and connection.exchange is None:
            connection.exchange = connection.broker.access.begin_again(expected, credentials(connection, connection.user_name))
        elif packet.reason != Reason.CONTINUE_AUTHENTICATION or connection.exchange is None:
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "AUTH out of turn")
    if properties.authentication_method != expected:  # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
        raise ProtocolViolation(Reason.PROTOCOL_ERROR, "the authentication method has changed")
    connection.hold(HOLD_BUSY)
    connection.broker.run(_step(connection, properties.authentication_data or b""), connection)


async def _step(connection: Connection, data: bytes) -> None:
    broker = connection.broker
    packet = connection.pending_connect
    exchange = connection.exchange
    assert exchange is not None  # the callers have just set or checked it
    broker.statistics.authenticating += 1
    try:
        answer, verdict = await exchange.step(data)
    except Exception:
        log.exception("authenticating %s failed", connection.client_id)
        answer, verdict = b"", Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")
    finally:
        broker.statistics.authenticating -= 1
    if connection.is_closed:
        return
    if packet is not None:
        connection.method = packet.properties.authentication_method
    if verdict is None:
        _send_auth(connection, Reason.CONTINUE_AUTHENTICATION, answer)
        connection.resume(HOLD_BUSY)
    elif packet is not None:
        _conclude(connection, packet, verdict, answer)
    else:
        _conclude_again(connection, verdict, answer)
    broker.lane.flush()


def _conclude_again(connection: Connection, verdict: Verdict, answer: bytes) -> None:
    connection.exchange = None
    match verdict:
        case Granted(user_name=user_name) if user_name == connection.user_name:
            _send_auth(connection, Reason.SUCCESS, answer)
            connection.resume(HOLD_BUSY)
        case Granted():
            connection.close(Reason.NOT_AUTHORIZED, "re-authenticated as another user")
        case Refused():
            # [MQTT-4.12.1-2]; of all that an authenticator may answer, DISCONNECT has only this code.
            connection.close(Reason.NOT_AUTHORIZED, "")


def _send_auth(connection: Connection, reason: Reason, data: bytes) -> None:
    properties = Properties(authentication_method=connection.method, authentication_data=data or None)
    connection.send_packet(Auth(int(reason), properties))


# The end


def on_disconnect(connection: Connection, packet: Disconnect) -> None:
    """The client says goodbye: with 0x00 its will is not published [MQTT-3.14.4-3]."""
    session = connection.session
    asked = packet.properties.session_expiry_interval
    if session is not None and asked is not None:
        if session.expiry_s == 0 and asked > 0:
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "DISCONNECT cannot set a session expiry if CONNECT set none")
        expiry_max = int(connection.broker.settings.session.expiry_max)
        session.expiry_s = min(asked, expiry_max) if expiry_max else asked
    connection.close(packet.reason, "", say=False, discard_will=packet.reason == Reason.SUCCESS)


def on_closed(connection: Connection, session: Session, reason: int, detail: str, discard_will: bool) -> None:
    """An open connection has ended, by either side."""
    connection.session = None
    presence.count_closed(connection, reason, detail)
    connection.broker.lifecycle.leave(session, discard_will)
    presence.tell_closed(connection, reason)
