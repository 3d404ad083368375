"""How the beginning and the end of connections are counted and reported: statistics, the log, hooks and ``$SYS/.../clients``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from time import time

from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.presence_events import PresenceEvent, PresenceHome
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.message import make_message
from braidmq.broker.messages.producers import Producers
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.message import Message
from braidmq.lane.routing.routes import RouteTable
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")

_NOT_IN_A_LEVEL = str.maketrans("/+#", "___")


class Presence:
    """Reports clients that connect and disconnect."""

    def __init__(
        self,
        statistics: Statistics,
        hooks: Hooks,
        producers: Producers,
        routes: RouteTable,
        publish: Callable[[Message], int],
        live: LiveSettings,
        home: PresenceHome | None,
    ) -> None:
        """``home``: None on a node that is alone, which sends its events as they happen."""
        self._statistics = statistics
        self._hooks = hooks
        self._producers = producers
        self._routes = routes
        self._publish = publish
        self._live = live
        self._home = home

    def opened(self, connection: Connection, clean_start: bool) -> None:
        """The client was told that it is connected."""
        statistics = self._statistics
        statistics.connected += 1
        statistics.live += 1
        statistics.connections_max = max(statistics.connections_max, statistics.live)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s connected", connection.peer(), connection.client_id)
        if self._is_wanted(connection.client_id):
            self._tell(self._event(connection, is_online=True, clean_start=clean_start, reason=0))

    def count_closed(self, connection: Connection, reason: int, detail: str) -> None:
        """An open connection is over, whichever side ended it; ``tell_closed`` follows after its session was handled."""
        self._producers.leave(connection)
        self._statistics.disconnected += 1
        self._statistics.live -= 1
        self._statistics.disconnects[int(reason)] += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s disconnected: 0x%02X %s", connection.peer(), connection.client_id, reason, detail)

    def tell_closed(self, connection: Connection, reason: int) -> None:
        """Tell hooks and subscribers of presence topics that the connection is over."""
        self._hooks.tell("disconnect", connection.describe(), int(reason))
        if self._is_wanted(connection.client_id):
            self._tell(self._event(connection, is_online=False, clean_start=True, reason=int(reason)))

    @property
    def is_followed(self) -> bool:
        """Whether there may be a subscriber, or is a hook."""
        # A storm of clients should not fill the cache of routes with topics that no filter can match.
        return self._hooks.follows_presence or (self._live.now.sys.presence and bool(self._routes.system))

    def _is_wanted(self, client_id: str) -> bool:
        return self.is_followed or (self._home is not None and self._home.wants_presence(client_id))

    def _event(self, connection: Connection, *, is_online: bool, clean_start: bool, reason: int) -> PresenceEvent:
        origin = connection.origin
        return PresenceEvent(
            connection.client_id,
            self._live.now.node.name,
            connection.order,
            is_online,
            int(time() * 1000),
            connection.user_name,
            None if origin is None else origin.peer_host,
            0 if origin is None else int(origin.peer_port),
            "" if origin is None else origin.listener,
            connection.version,
            connection.keep_alive,
            clean_start,
            reason,
        )

    def _tell(self, event: PresenceEvent) -> None:
        if self._home is None:
            self.send(event)
        else:
            self._home.tell_presence(event)

    def send(self, event: PresenceEvent) -> None:
        """Tell hooks, and publish the event under ``$SYS/brokers/NODE/clients/ID/``, as JSON, if there is a subscriber."""
        version = list(event.version)
        if event.is_online:
            self._hooks.tell("client_online", event.client, event.node, version)
        else:
            self._hooks.tell("client_offline", event.client, event.node, version, event.reason)
        if not self._live.now.sys.presence or not self._routes.system:
            return
        # The client chooses its id: as a topic level it must be a single level without wildcards.
        level = event.client_id.translate(_NOT_IN_A_LEVEL)
        topic = f"$SYS/brokers/{event.node}/clients/{level}/{'connected' if event.is_online else 'disconnected'}"
        route = self._routes.resolve(topic.encode())
        if route is None or not route.targets:
            return
        more: dict[str, object]
        if event.is_online:
            more = {"connected_at": event.at_ms, "clean_start": event.clean_start}
        else:
            more = {"disconnected_at": event.at_ms, "reason": _reason_name(event.reason)}
        body: dict[str, object] = {
            "clientid": event.client_id,
            "username": event.user_name,
            "ipaddress": event.peer_host,
            "sockport": event.peer_port or None,
            "proto_ver": event.protocol,
            "keepalive": event.keep_alive,
            "ts": int(time() * 1000),
            **more,
            "version": version,
        }
        payload = json.dumps(body, separators=(",", ":")).encode()
        self._publish(make_message(topic, payload))


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"
