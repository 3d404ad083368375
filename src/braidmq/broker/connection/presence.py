"""How the end and the beginning of connections are counted and told: statistics, the log, hooks and ``$SYS/.../clients``."""

from __future__ import annotations

import json
import logging
from time import time
from typing import TYPE_CHECKING

from braidmq.broker.messages.message import make_message
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection

log = logging.getLogger("braidmq.connection")

_NOT_IN_A_LEVEL = str.maketrans("/+#", "___")


def opened(connection: Connection, clean_start: bool) -> None:
    """The client was told that it is connected."""
    broker = connection.broker
    statistics = broker.statistics
    statistics.connected += 1
    statistics.live += 1
    statistics.connections_max = max(statistics.connections_max, statistics.live)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s connected", connection.peer(), connection.client_id)
    if broker.settings.sys.presence:
        _publish(connection, "connected", {"connected_at": int(time() * 1000), "clean_start": clean_start})


def count_closed(connection: Connection, reason: int, detail: str) -> None:
    """An open connection is over, whoever ended it; ``tell_closed`` follows when its session is dealt with."""
    broker = connection.broker
    broker.producers.leave(connection)
    broker.statistics.disconnected += 1
    broker.statistics.live -= 1
    broker.statistics.disconnects[int(reason)] += 1
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s disconnected: 0x%02X %s", connection.peer(), connection.client_id, reason, detail)


def tell_closed(connection: Connection, reason: int) -> None:
    """Tell hooks and subscribers of presence topics that the connection is over."""
    broker = connection.broker
    broker.hooks.tell("disconnect", connection.describe(), int(reason))
    if broker.settings.sys.presence:
        _publish(connection, "disconnected", {"disconnected_at": int(time() * 1000), "reason": _reason_name(reason)})


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"


def _publish(connection: Connection, event: str, more: dict[str, object]) -> None:
    """Publish the event under ``$SYS/brokers/NODE/clients/ID/``, as JSON; only if there is a subscriber."""
    broker = connection.broker
    if not broker.routes.system:
        return  # a storm of clients should not fill the cache of routes with topics that no filter can match
    # A client id is text of a client's choosing: as a topic level it must be one level and no wildcard.
    level = connection.client_id.translate(_NOT_IN_A_LEVEL)
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
