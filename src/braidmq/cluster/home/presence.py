"""Sends the events of all clients that are at home here, wherever they are connected, in the order of the home's decisions (R8).

`PresenceOrder` decides; here are the clock, the broker, and what the home knows of a connection that was never announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time

from braidmq.broker.broker import Broker
from braidmq.broker.connection.presence_events import PresenceEvent, PresenceOrder, Version
from braidmq.cluster.home.sessions.held_session import NodeClaim
from braidmq.cluster.protocol.presence import event_of
from braidmq.cluster.registry.messages import Ending
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1 import PresenceEntry


class HomePresence:
    """Implements the broker's ``PresenceHome`` for the core's own clients; nodes' events come in blocks."""

    def __init__(self, wall_s: Callable[[], float] = time) -> None:
        self.order = PresenceOrder()
        self._wall_s = wall_s
        self._broker: Broker | None = None

    def serve(self, broker: Broker) -> None:
        """The broker is made."""
        self._broker = broker

    def wants_presence(self, client_id: str) -> bool:
        """This core knows of all subscribers."""
        return False

    def tell_presence(self, event: PresenceEvent) -> None:
        """A client of the core itself."""
        self._send(self.order.take(event))

    def take(self, node: str, entry: PresenceEntry) -> None:
        """A node's event; it counts as sent once its block is answered."""
        self._send(self.order.take(event_of(entry, node, self._now_ms)))

    def ended(self, client_id: str, node: str, ending: Ending, version: Version, claim: NodeClaim | None) -> None:
        """The home has decided that a node's channel is over; a node that lives says so itself, unless it was fenced.

        ``claim``: what is known of a connection that was not announced here.
        """
        if ending is Ending.TAKEN:
            self._send(self.order.ended(client_id, node, Reason.SESSION_TAKEN_OVER, self._now_ms))
        elif ending is Ending.DIED:
            self._send(self._died(client_id, node, version, claim))

    def _died(self, client_id: str, node: str, version: Version, claim: NodeClaim | None) -> list[PresenceEvent]:
        found = self.order.ended(client_id, node, Reason.UNSPECIFIED_ERROR, self._now_ms)
        if found or claim is None or self._broker is None or not self._broker.presence.is_followed:
            return found
        event = PresenceEvent(
            client_id,
            node,
            version,
            False,
            self._now_ms,
            claim.user_name,
            claim.peer_host or None,
            clean_start=claim.clean_start,
            reason=Reason.UNSPECIFIED_ERROR,
        )
        return self.order.take(event)

    @property
    def _now_ms(self) -> int:
        return int(self._wall_s() * 1000)

    def _send(self, events: Iterable[PresenceEvent]) -> None:
        assert self._broker is not None  # blocks and decisions come later
        for event in events:
            self._broker.presence.send(event)
