"""How the beginning and the end of connections are counted and reported: statistics, the log, hooks and ``$SYS/.../clients``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from time import time

from braidmq.broker.connection.connection import Connection
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
    ) -> None:
        self._statistics = statistics
        self._hooks = hooks
        self._producers = producers
        self._routes = routes
        self._publish = publish
        self._live = live

    def opened(self, connection: Connection, clean_start: bool) -> None:
        """The client was told that it is connected."""
        statistics = self._statistics
        statistics.connected += 1
        statistics.live += 1
        statistics.connections_max = max(statistics.connections_max, statistics.live)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s connected", connection.peer(), connection.client_id)
        if self._live.now.sys.presence:
            self._report(connection, "connected", {"connected_at": int(time() * 1000), "clean_start": clean_start})

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
        if self._live.now.sys.presence:
            event = {"disconnected_at": int(time() * 1000), "reason": _reason_name(reason)}
            self._report(connection, "disconnected", event)

    def _report(self, connection: Connection, event: str, more: dict[str, object]) -> None:
        """Publish the event under ``$SYS/brokers/NODE/clients/ID/``, as JSON; only if there is a subscriber."""
        if not self._routes.system:
            return  # a storm of clients should not fill the cache of routes with topics that no filter can match
        # The client chooses its id: as a topic level it must be a single level without wildcards.
        level = connection.client_id.translate(_NOT_IN_A_LEVEL)
        topic = f"$SYS/brokers/{self._live.now.node.name}/clients/{level}/{event}"
        route = self._routes.resolve(topic.encode())
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
        self._publish(make_message(topic, payload))


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"
