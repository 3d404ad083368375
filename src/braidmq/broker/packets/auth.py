"""AUTH: logins in several steps, and re-authentication on an open connection."""

from __future__ import annotations

import logging

from braidmq.access.contract import Granted, Refused, Verdict
from braidmq.base.errors import ProtocolViolation
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.table import ConnectionTable
from braidmq.broker.packets.admission import Admission
from braidmq.broker.session.ports import AccessControl
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.channel_reader import HOLD_BUSY
from braidmq.mqtt.packets import Auth, Connect
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")


class AuthHandler:
    """Enhanced authentication: passes data between a client and an authenticator until there is a verdict."""

    def __init__(self, access: AccessControl, admission: Admission, connections: ConnectionTable, statistics: Statistics) -> None:
        self._access = access
        self._admission = admission
        self._connections = connections
        self._statistics = statistics

    def begin(self, connection: Connection, packet: Connect, method: str) -> None:
        """Take the first step of a CONNECT that names an authentication method."""
        properties = packet.properties
        connection.hold(HOLD_BUSY)
        connection.exchange = self._access.begin(method, connection.credentials(packet.user_name, packet.password))
        self._connections.run(self._step(connection, properties.authentication_data or b""), connection)

    def on_auth(self, connection: Connection, packet: Auth) -> None:
        """Take the next step of a login, or start a re-authentication on an open connection."""
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
                connection.exchange = self._access.begin_again(expected, connection.credentials(connection.user_name))
            elif packet.reason != Reason.CONTINUE_AUTHENTICATION or connection.exchange is None:
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "AUTH out of turn")
        if properties.authentication_method != expected:  # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "the authentication method has changed")
        connection.hold(HOLD_BUSY)
        self._connections.run(self._step(connection, properties.authentication_data or b""), connection)

    async def _step(self, connection: Connection, data: bytes) -> None:
        packet = connection.pending_connect
        exchange = connection.exchange
        assert exchange is not None  # the callers have just set or checked it
        self._statistics.authenticating += 1
        try:
            answer, verdict = await exchange.step(data)
        except Exception:
            log.exception("authenticating %s failed", connection.client_id)
            answer, verdict = b"", Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")
        finally:
            self._statistics.authenticating -= 1
        if connection.is_closed:
            return
        if packet is not None:
            connection.method = packet.properties.authentication_method
        if verdict is None:
            _send_auth(connection, Reason.CONTINUE_AUTHENTICATION, answer)
            connection.resume(HOLD_BUSY)
        elif packet is not None:
            self._admission.conclude(connection, packet, verdict, answer)
        else:
            _conclude_again(connection, verdict, answer)
        connection.lane.flush()


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
