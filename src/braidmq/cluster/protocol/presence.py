"""Events of clients that connect and disconnect, on their way from their node to the home of the client id.

Clocks of nodes differ, so an event says how old it is when it is sent, and the home dates it by its own clock.
"""

from __future__ import annotations

from braidmq.broker.connection.presence_events import PresenceEvent
from braidmq.net.proto_v1 import PresenceEntry


def entry_of(event: PresenceEvent, age_ms: int) -> PresenceEntry:
    """The event for a block that is sent now."""
    return PresenceEntry(
        event.client_id,
        list(event.version),
        event.is_online,
        age_ms,
        event.user_name,
        event.peer_host,
        event.peer_port,
        event.listener,
        event.protocol,
        event.keep_alive,
        event.clean_start,
        event.reason,
    )


def event_of(entry: PresenceEntry, node: str, now_ms: int) -> PresenceEvent:
    """The event of a node, dated by the home's clock."""
    return PresenceEvent(
        entry.client_id,
        node,
        tuple(entry.version),
        entry.is_online,
        now_ms - entry.age_ms,
        entry.user_name,
        entry.peer_host,
        entry.peer_port,
        entry.listener,
        entry.protocol,
        entry.keep_alive,
        entry.clean_start,
        entry.reason,
    )
