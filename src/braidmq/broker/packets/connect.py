"""CONNECT: rejects what needs no authenticator to decide, then asks one; ``admission`` opens the session."""

from __future__ import annotations

import logging
import secrets

from braidmq.access.contract import Credentials, Refused, Verdict
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.table import ConnectionTable
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.packets.admission import Admission
from braidmq.broker.packets.auth import AuthHandler
from braidmq.broker.session.ports import AccessControl
from braidmq.broker.session.session import SessionTable, will_bytes
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.channel_reader import HOLD_BUSY
from braidmq.lane.path.parser import topic_error
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Connect
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")

WILLS_PART = 4  # large wills of all sessions may take this part of `limits.held_bytes_max`


class ConnectHandler:
    """Decides about CONNECT packets."""

    def __init__(
        self,
        access: AccessControl,
        hooks: Hooks,
        admission: Admission,
        auth: AuthHandler,
        connections: ConnectionTable,
        sessions: SessionTable,
        statistics: Statistics,
        live: LiveSettings,
    ) -> None:
        self._access = access
        self._hooks = hooks
        self._admission = admission
        self._auth = auth
        self._connections = connections
        self._sessions = sessions
        self._statistics = statistics
        self._live = live

    def on_connect(self, connection: Connection, packet: Connect) -> None:
        """Process a CONNECT: reject it at once if possible, else wait for the authenticator."""
        connection.version = packet.version
        connection.is_v5 = packet.version == MQTT5
        properties = packet.properties
        if properties.maximum_packet_size is not None:
            connection.frame_max_out = properties.maximum_packet_size
        connection.wants_reasons = properties.request_problem_information != 0
        refusal = self._judge(packet)
        if refusal is not None:
            connection.refuse(refusal.reason, refusal.detail)
            return
        connection.client_id = packet.client_id or f"auto-{secrets.token_hex(12)}"
        connection.pending_connect = packet
        method = properties.authentication_method
        if method is not None:
            if method in self._access.methods:
                self._auth.begin(connection, packet, method)
            else:
                connection.refuse(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not offered")
            return
        shown = connection.credentials(packet.user_name, packet.password)
        verdict = None if self._hooks.authenticates else self._judge_at_once(shown)
        if verdict is not None:
            # Most logins of a fleet that reconnects: no task, no turn of the loop, and nothing can have changed meanwhile.
            self._admission.conclude(connection, packet, verdict, b"", is_fresh=True)
        else:
            connection.hold(HOLD_BUSY)
            self._connections.run(self._authenticate(connection, packet, shown), connection)

    def _judge(self, packet: Connect) -> Refused | None:
        """The rejection of a CONNECT that needs no authenticator to decide; None if there is none."""
        settings = self._live.now
        if packet.bridge and not settings.mqtt.allow_bridge_bit:
            return Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "bridges are not allowed; see mqtt.allow_bridge_bit")
        if not packet.client_id and (packet.version == MQTT31 or (packet.version == MQTT311 and not packet.clean_start)):
            # [MQTT-3.1.3-8] of 3.1.1; in 3.1 the server assigns none.
            detail = "an empty client id needs MQTT 3.1.1 and a clean session, or MQTT 5"
            return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, detail)
        if len(packet.client_id.encode()) > settings.mqtt.client_id_bytes_max:
            detail = f"the client id exceeds {settings.mqtt.client_id_bytes_max} bytes"
            return Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, detail)
        if packet.will is not None and topic_error(packet.will.topic.encode(), settings.mqtt.topic_levels_max):
            return Refused(Reason.TOPIC_NAME_INVALID, "the will's topic is not a topic name")
        if will_bytes(packet.will) > max(settings.limits.held_bytes_max // WILLS_PART - self._sessions.will_bytes, 0):  # small: 0
            return Refused(Reason.QUOTA_EXCEEDED, "too many large wills; one that takes up to 1 KiB of memory is always accepted")
        return self._admission.judge_place(packet.client_id)

    def _judge_at_once(self, shown: Credentials) -> Verdict | None:
        try:
            return self._access.judge(shown)
        except Exception:
            log.exception("authenticating %s failed", shown.client_id)
            return Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")

    async def _authenticate(self, connection: Connection, packet: Connect, shown: Credentials) -> None:
        self._statistics.authenticating += 1
        try:
            verdict: Verdict | None = None
            if self._hooks.authenticates:
                verdict = self._access.refusal(shown) or await self._hooks.authenticate(shown)
                if verdict is not None:
                    self._access.note_verdict(shown, verdict)
            connection.is_vouched = verdict is not None
            if verdict is None:
                verdict = await self._access.authenticate(shown)
        except Exception:
            log.exception("authenticating %s failed", connection.client_id)
            verdict = Refused(Reason.SERVER_UNAVAILABLE, "authentication failed")
        finally:
            self._statistics.authenticating -= 1
        self._admission.conclude(connection, packet, verdict, b"")
        connection.lane.flush()
