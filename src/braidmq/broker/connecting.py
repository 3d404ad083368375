"""How a client comes and goes: CONNECT, AUTH, DISCONNECT and the end of a connection."""

from __future__ import annotations

import json
import logging
import secrets
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.base.errors import ProtocolViolation
from braidmq.broker.catching_up import Recall
from braidmq.broker.messages import make_message
from braidmq.broker.ports import Refusal
from braidmq.broker.producers import Request
from braidmq.broker.sessions import Session
from braidmq.lane.channel import HOLD_BUSY
from braidmq.lane.scanner import topic_error
from braidmq.mqtt.packets import MQTT5, Auth, Connack, Connect, Disconnect
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection

log = logging.getLogger("braidmq.connection")


def on_connect(connection: Connection, packet: Connect) -> None:
    """Take up a CONNECT: what can be refused at once is, the rest waits for the authenticator."""
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
    connection.hold(HOLD_BUSY)
    if method is not None:
        connection.exchange = connection.broker.access.begin(method, credentials(connection, packet.user_name, packet.password))
        connection.broker.run(_step(connection, properties.authentication_data or b""), connection)
    else:
        connection.broker.run(_authenticate(connection, packet), connection)


def _judge(connection: Connection, packet: Connect) -> Refused | None:
    """What can be said against a CONNECT without asking anybody."""
    broker = connection.broker
    settings = broker.settings
    if packet.bridge and not settings.mqtt.allow_bridge_bit:
        return Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "bridges are not allowed here; see mqtt.allow_bridge_bit")
    if not packet.client_id and packet.version < MQTT5 and not packet.clean_start:
        # [MQTT-3.1.3-8] of 3.1.1
        return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
    if len(packet.client_id.encode()) > settings.mqtt.client_id_bytes_max:
        return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, f"the client id is above {settings.mqtt.client_id_bytes_max} bytes")
    if packet.will is not None and topic_error(packet.will.topic.encode(), settings.mqtt.topic_levels_max):
        return Refused(Reason.TOPIC_NAME_INVALID, "the will's topic is not a topic name")
    return _judge_place(connection, packet.client_id)


def _judge_place(connection: Connection, client_id: str) -> Refused | None:
    sessions = connection.broker.sessions
    if len(sessions) >= connection.broker.settings.session.sessions_max and sessions.get(client_id) is None:
        return Refused(Reason.QUOTA_EXCEEDED, "too many sessions")
    return None


def credentials(connection: Connection, user_name: str | None, password: bytes | None = None) -> Credentials:
    """Who the client says it is, and where it comes from."""
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


async def _authenticate(connection: Connection, packet: Connect) -> None:
    broker = connection.broker
    broker.statistics.authenticating += 1
    try:
        shown = credentials(connection, packet.user_name, packet.password)
        verdict: Verdict | None = None
        if broker.hooks.authenticates and broker.access.bans.check(shown) is None:
            verdict = await broker.hooks.authenticate(shown)
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


def _conclude(connection: Connection, packet: Connect, verdict: Verdict, data: bytes) -> None:
    """The verdict is there: let the client in or not. Nothing is awaited from here on."""
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
    refusal = _judge_place(connection, connection.client_id)  # others have come while this one was being authenticated
    if refusal is not None:
        connection.refuse(refusal.reason, refusal.detail)
        return
    request = connection.broker.producers.judge(packet, connection.user_name)
    if isinstance(request, Refused):
        connection.refuse(request.reason, request.detail, user_properties=(connection.broker.producers.shards(), *request.told))
        return
    _open(connection, packet, data, request)


def _open(connection: Connection, packet: Connect, data: bytes, request: Request | None) -> None:
    """Make the client's session its own; CONNACK follows when a durable one is on disk.

    A producer's waits for that, too: by then everything is settled that an earlier connection had under way.
    """
    broker = connection.broker
    expiry_s = _expiry(connection, packet)
    session, is_present = broker.open_session(connection.client_id, packet.clean_start, connection, expiry_s)
    session.expiry_s = expiry_s
    session.is_clean = packet.clean_start
    session.will = packet.will
    connection.session = session
    changes = broker.durable.opened(session) if session.is_durable else []
    if request is not None:
        changes = [*changes, *broker.producers.opening(connection, request)]
    elif not session.is_durable:
        _greet(connection, packet, data, session, is_present, None)
        return
    broker.keeper.change(
        changes,
        partial(_greet, connection, packet, data, session, is_present, request),
        partial(_not_kept, connection, session, is_present),
    )


def _not_kept(connection: Connection, session: Session, is_present: bool, refusal: Refusal) -> None:
    _turn_away(connection, session, is_present, Reason.QUOTA_EXCEEDED, "the session cannot be stored")


def _turn_away(connection: Connection, session: Session, is_present: bool, reason: Reason, detail: str) -> None:
    """Refuse who has a session by now: a client must not find one next time that it was refused now [MQTT-3.2.2-4]."""
    connection.refuse(reason, detail)
    if not is_present and connection.broker.sessions.get(session.client_id) is session:
        connection.broker.end_session(session)
    connection.lane.flush()


def _greet(
    connection: Connection, packet: Connect, data: bytes, session: Session, is_present: bool, request: Request | None
) -> None:
    """Send CONNACK and let messages flow."""
    if connection.is_closed or session.connection is not connection:
        return
    broker = connection.broker
    if not broker.lets_stay(connection):  # no longer, after its session was written
        _turn_away(connection, session, is_present, Reason.NOT_AUTHORIZED, "access was withdrawn")
        return
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
    is_told = connection.send_packet(Connack(0, is_present, _capabilities(connection, packet, keep_alive, data, told)))
    connection.is_open = True
    _attach(connection, session)
    broker.groups.relieve_all(session.groups())
    connection.wants_room = session.wants_room
    if connection.wants_room:
        connection.on_room()
    statistics = broker.statistics
    statistics.connected += 1
    statistics.live += 1
    statistics.connections_max = max(statistics.connections_max, statistics.live)
    log.debug("%s %s connected", connection.peer(), connection.client_id)
    if broker.settings.sys.presence:
        _tell_presence(connection, "connected", {"connected_at": int(time() * 1000), "clean_start": packet.clean_start})
    if not is_told:
        connection.close(Reason.PACKET_TOO_LARGE, "the client takes no packet as large as our CONNACK", say=False)
    connection.resume(HOLD_BUSY)
    broker.lane.flush()


def _attach(connection: Connection, session: Session) -> None:
    flow = session.flow
    flow.make_all_ready()  # a durable session's cursor was written before this
    if session.unread:
        # In flight before a restart: those messages are read first, for they go out first.
        session.recall = Recall(connection.broker, session, session.unread)
        return
    if not session.subscriptions:
        flow.follow()  # there is nothing to read
    flow.attach(connection, connection.window)


def _expiry(connection: Connection, packet: Connect) -> int:
    """Seconds that the session outlives its connection: what was asked, within what is allowed."""
    settings = connection.broker.settings.session
    if connection.is_v5:
        asked = packet.properties.session_expiry_interval or 0
    else:
        asked = 0 if packet.clean_start else int(settings.expiry_mqtt3)
    return min(asked, int(settings.expiry_max)) if settings.expiry_max else asked


def _capabilities(
    connection: Connection, packet: Connect, keep_alive: int, data: bytes, told: tuple[tuple[str, str], ...]
) -> Properties:
    """What CONNACK tells an MQTT 5 client; what is at the protocol's default is left out."""
    settings = connection.broker.settings
    asked = packet.properties
    expiry_s = connection.session.expiry_s if connection.session is not None else 0
    wants_response = asked.request_response_information == 1 and bool(settings.mqtt.response_topic_prefix)
    gap = connection.broker.durable.gap_of(connection.session) if connection.session is not None else ""
    return Properties(
        session_expiry_interval=expiry_s if expiry_s != (asked.session_expiry_interval or 0) else None,
        receive_maximum=settings.mqtt.receive_maximum,
        maximum_packet_size=settings.mqtt.packet_bytes_max,
        assigned_client_identifier=None if packet.client_id else connection.client_id,
        topic_alias_maximum=settings.mqtt.topic_alias_maximum or None,
        server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
        response_information=f"{settings.mqtt.response_topic_prefix}{connection.client_id}/" if wants_response else None,
        authentication_method=asked.authentication_method,
        authentication_data=data or None,
        user_properties=(("session-gap", gap), *told) if gap else told,
    )


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
            connection.exchange = connection.broker.access.begin(expected, credentials(connection, connection.user_name))
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
            connection.close(Reason.NOT_AUTHORIZED, "authenticated again as somebody else")
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
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "DISCONNECT cannot give a session an expiry that CONNECT did not")
        expiry_max = int(connection.broker.settings.session.expiry_max)
        session.expiry_s = min(asked, expiry_max) if expiry_max else asked
    connection.close(packet.reason, "", say=False, discard_will=packet.reason == Reason.SUCCESS)


def on_closed(connection: Connection, session: Session, reason: int, detail: str, discard_will: bool) -> None:
    """An open connection is over, whoever ended it."""
    broker = connection.broker
    connection.session = None
    broker.producers.leave(connection)
    broker.statistics.disconnected += 1
    broker.statistics.live -= 1
    broker.statistics.disconnects[int(reason)] += 1
    log.debug("%s %s disconnected: 0x%02X %s", connection.peer(), connection.client_id, reason, detail)
    broker.leave_session(session, discard_will)
    broker.hooks.tell("disconnect", connection.describe(), int(reason))
    if broker.settings.sys.presence:
        _tell_presence(connection, "disconnected", {"disconnected_at": int(time() * 1000), "reason": _reason_name(reason)})


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"


def _tell_presence(connection: Connection, event: str, more: dict[str, object]) -> None:
    """Publish the event under ``$SYS/brokers/NODE/clients/ID/``, as JSON; only if somebody listens."""
    broker = connection.broker
    # A client id is text of a client's choosing: as a topic level it must be one level and no wildcard.
    level = "".join("_" if char in "/+#" else char for char in connection.client_id)
    topic = f"$SYS/brokers/{broker.settings.node.name}/clients/{level}/{event}"
    route = broker.routes.resolve(topic.encode())
    if route is None or not route.targets:
        return
    origin = connection.origin
    body: dict[str, object] = {
        "clientid": connection.client_id,
        "username": connection.user_name,
        "ipaddress": origin.peer_host if origin is not None else None,
        "sockport": int(origin.peer_port) if origin is not None else None,
        "proto_ver": connection.version,
        "keepalive": connection.keep_alive,
        "ts": int(time() * 1000),
        **more,
    }
    payload = json.dumps(body, separators=(",", ":")).encode()
    broker.publish(make_message(topic, payload))
