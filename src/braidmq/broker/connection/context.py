"""What the connections of a node share: the services they use, and the handlers they pass packets and events to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from braidmq.broker.bounds.large import LargeMessages
from braidmq.broker.bounds.parts import Parts
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.deadlines import Wheel
from braidmq.broker.connection.trace import Tracer
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.ports import RowWriter, SessionStore
from braidmq.broker.session.ports import AccessControl
from braidmq.broker.session.session import Session
from braidmq.broker.statistics import Statistics
from braidmq.broker.timers import Timers
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.routing.routes import Route

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection


class ControlPackets(Protocol):
    """Acts on the packets that the lane does not handle itself."""

    def on_packet(self, connection: Connection, kind: int, flags: int, body: bytes) -> None:
        """Decode a packet and act on it."""
        ...


class SlowPath(Protocol):
    """Publishes messages that take the slow path."""

    def publish(self, connection: Connection, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        """Publish; returns the reason code for the acknowledgement, or -1 if it is sent elsewhere."""
        ...

    def deny(self, connection: Connection, topic: bytes) -> bool:
        """Handle a PUBLISH without permission; False if the connection was closed for it."""
        ...


class SessionExit(Protocol):
    """Handles the session of a connection that has ended."""

    def on_closed(self, connection: Connection, session: Session, reason: int, detail: str, discard_will: bool) -> None:
        """An open connection has ended, by either side."""
        ...

    def on_abandoned(self, session: Session) -> None:
        """A connection has ended before its client was told of its session."""
        ...


class BacklogTurns(Protocol):
    """Gives clients the messages that wait for them."""

    def give_soon(self, connection: Connection) -> None:
        """Give the client what waits for it, when it has its turn."""
        ...


class OpenConnections(Protocol):
    """The connections of the node."""

    def add(self, connection: Connection) -> None:
        """A client has connected."""
        ...

    def remove(self, connection: Connection) -> None:
        """A network connection is gone."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Made once by the broker; every connection has a reference to it."""

    loop: asyncio.AbstractEventLoop
    lane: Lane
    recorder: Recorder
    live: LiveSettings
    statistics: Statistics
    access: AccessControl
    timers: Timers
    wheel: Wheel
    parts: Parts
    large: LargeMessages
    turns: Turns
    tracer: Tracer
    rows: SessionStore
    writer: RowWriter
    connections: OpenConnections
    packets: ControlPackets
    publishing: SlowPath
    closing: SessionExit
    backlog: BacklogTurns
