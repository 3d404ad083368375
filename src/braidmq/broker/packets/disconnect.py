"""DISCONNECT, and what happens to the session when a connection ends."""

from __future__ import annotations

from braidmq.base.errors import ProtocolViolation
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.presence import Presence
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.ports import GrantEnding
from braidmq.broker.session.session import Session
from braidmq.mqtt.packets import Disconnect
from braidmq.mqtt.reasons import Reason

# The client is expected to connect to another node, or to this one after its restart.
_MOVED = frozenset({Reason.SERVER_SHUTTING_DOWN, Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED})


class DisconnectHandler:
    """Ends connections on the client's request, and releases their sessions; implements `connection.context.SessionExit`."""

    def __init__(self, lifecycle: Lifecycle, presence: Presence, live: LiveSettings) -> None:
        self._lifecycle = lifecycle
        self._presence = presence
        self._live = live

    def on_disconnect(self, connection: Connection, packet: Disconnect) -> None:
        """The client disconnects: with 0x00 its will is not published [MQTT-3.14.4-3]."""
        session = connection.session
        asked = packet.properties.session_expiry_interval
        if session is not None and asked is not None:
            if session.expiry_s == 0 and asked > 0:
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "DISCONNECT cannot set a session expiry if CONNECT set none")
            expiry_max = int(self._live.now.session.expiry_max)
            session.expiry_s = min(asked, expiry_max) if expiry_max else asked
        connection.close(packet.reason, "", say=False, discard_will=packet.reason == Reason.SUCCESS)

    def on_closed(self, connection: Connection, session: Session, reason: int, detail: str, discard_will: bool) -> None:
        """An open connection has ended, by either side."""
        connection.session = None
        self._presence.count_closed(connection, reason, detail)
        self._lifecycle.leave(session, _ending(reason, discard_will))
        self._presence.tell_closed(connection, reason)

    def on_abandoned(self, session: Session) -> None:
        """A connection has ended before its client was told of its session."""
        self._lifecycle.abandon(session)


def _ending(reason: int, discard_will: bool) -> GrantEnding:
    if not discard_will:
        return GrantEnding.PUBLISH
    return GrantEnding.MOVED if reason in _MOVED else GrantEnding.DISCARD
