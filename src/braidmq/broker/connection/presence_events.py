"""What is told of clients that connect and disconnect, and in which order, without I/O.

Each event carries its connection's *version*; of two connections of a client id, the one that the home decided for later has the
higher one. An event is sent at least once, and a repeat may come late: receivers drop events whose version is below the last one.

The home of a client id sends its events, in the order of its decisions (R8):

- A connection that was announced is over before the next one is announced: if its node has not said so yet, because it is stuck
  or dead, the home says so itself.
- ``disconnected_at`` is never later than the next ``connected_at``, whatever the clocks of nodes say.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from braidmq.broker.messages.hooks import Client
from braidmq.mqtt.reasons import Reason

LEFT_MAX: Final = 10_000  # clients that have left lately; what they are kept for matters for seconds

Version = tuple[int, ...]
_NEVER: Final[tuple[Version, int]] = ((), 0)


class PresenceEvent(Struct, frozen=True, gc=False):
    """A client has connected, or its connection has ended. ``at_ms``: since 1970, by the wall clock of the node that sends it.

    ``node``: where the client is or was connected. ``reason``: why the connection has ended. ``clean_start``: of the CONNECT.
    """

    client_id: str
    node: str
    version: Version
    is_online: bool
    at_ms: int
    user_name: str | None = None
    peer_host: str | None = None
    peer_port: int = 0
    listener: str = ""
    protocol: int = 0
    keep_alive: int = 0
    clean_start: bool = True
    reason: int = 0

    @property
    def client(self) -> Client:
        """The client as hooks see it."""
        return Client(self.client_id, self.user_name, self.peer_host or "", self.listener, self.protocol)

    def over(self, reason: int, at_ms: int) -> PresenceEvent:
        """The end of this connection."""
        return replace(self, is_online=False, reason=reason, at_ms=at_ms)


class PresenceHome(Protocol):
    """Sends the events of clients in the order of its decisions; in a cluster, the homes of their client ids do."""

    def wants_presence(self, client_id: str) -> bool:
        """Whether the home of a client id wants events although this node knows of no subscriber."""
        ...

    def tell_presence(self, event: PresenceEvent) -> None:
        """A client of this node has connected, or its connection has ended."""
        ...


class PresenceOrder:
    """The home's part: which events to send when one has come, or when a connection has ended by the home's decision."""

    def __init__(self) -> None:
        self.repeats = 0  # events that were sent before
        self._online: dict[str, PresenceEvent] = {}  # announced, and not over
        self._left: OrderedDict[str, tuple[Version, int]] = OrderedDict()  # which connections have ended lately, and when

    def __len__(self) -> int:
        return len(self._online)

    def take(self, event: PresenceEvent) -> list[PresenceEvent]:
        """An event of the client's node: what to send now, in order."""
        shown = self._online.get(event.client_id)
        version = shown.version if shown is not None else self._left.get(event.client_id, _NEVER)[0]
        if event.version < version:
            return [event]  # late, and perhaps a repeat: its version says so
        if not event.is_online:
            return [self._leave(event)]
        if event.version == version:
            self.repeats += 1
            return []
        return self._announce(event, shown)

    def ended(self, client_id: str, node: str, reason: int, at_ms: int) -> list[PresenceEvent]:
        """The home has ended the connection of a client on a node, which may be unable to say so."""
        shown = self._online.get(client_id)
        if shown is None or shown.node != node:
            return []
        return [self._leave(shown.over(reason, at_ms))]

    def _announce(self, event: PresenceEvent, shown: PresenceEvent | None) -> list[PresenceEvent]:
        events = [] if shown is None else [self._leave(shown.over(Reason.SESSION_TAKEN_OVER, event.at_ms))]
        _, left_at_ms = self._left.pop(event.client_id, _NEVER)
        event = replace(event, at_ms=max(event.at_ms, left_at_ms))
        self._online[event.client_id] = event
        return [*events, event]

    def _leave(self, event: PresenceEvent) -> PresenceEvent:
        shown = self._online.pop(event.client_id, None)
        if shown is not None:
            event = replace(event, at_ms=max(event.at_ms, shown.at_ms))
        self._left[event.client_id] = event.version, event.at_ms
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)
        return event
