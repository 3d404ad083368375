"""Carries the replication log over a node's connections: its server answers the peers that watch it, its replicas watch them.

A node writes into its tables during a turn of the loop; at the end of the turn ``run`` sends what is new to every peer, and more
to those that are behind, as long as there is something to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.rlog.agent import PACE, AgentPace
from braidmq.cluster.rlog.origins import written_with
from braidmq.cluster.rlog.replica import Replica, ReplicaState
from braidmq.cluster.rlog.server import RlogServer
from braidmq.cluster.rlog.tables import Tables
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import Position, RlogMessage

SendFrame = Callable[[FrameKind, int, bytes, int], None]  # kind, destination, body, flags

Later = Callable[[float, Callable[[], None]], object]  # calls back after this many seconds

# After a part of a snapshot a server that rests does so for this many times as long as the part took: a million rows take
# thousands of parts, and sent one after the other they would take every second turn of the loop.
_RESTS: Final = 3
# At least, because the loop's timers count milliseconds: a timer of less than half of one is no rest at all.
_REST_S_MIN: Final = 0.001

TO_SERVER: Final = 0  # the flags of what a replica says
TO_REPLICA: Final = 1  # and of what a server says

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(RlogMessage)


class BadRlogMessage(BraidError):
    """A peer sent a message of the replication log that cannot be read: its connection must be closed."""


class RlogLink:
    """The replication log between this node and one peer, for the life of one connection."""

    def __init__(self, exchange: RlogExchange, replica: Replica, send: SendFrame) -> None:
        self.replica = replica
        self._exchange = exchange
        self._send = send

    @property
    def state(self) -> ReplicaState:
        """How far this node's copy of the peer's rows is."""
        return self.replica.state

    def watch(self) -> None:
        """Watch the peer, from where this node's tables are."""
        number, message = self.replica.connect()
        self._send(FrameKind.RLOG, number, _encode(message), TO_SERVER)

    def unwatch(self) -> None:
        """Take nothing more from the peer; what it still sends is rejected, and then it sends no more."""
        self.replica.disconnect()

    def receive(self, destination: int, flags: int, body: bytes | memoryview) -> None:
        """Handle a frame of the peer. Raises BadRlogMessage and ForeignRows."""
        try:
            message = _decoder.decode(body)
        except msgspec.MsgspecError as problem:
            raise BadRlogMessage(f"a message of the replication log cannot be read: {problem}") from None
        if flags & TO_REPLICA:
            for number, reply in self.replica.receive(destination, message):
                self._send(FrameKind.RLOG, number, _encode(reply), TO_SERVER)
        else:
            self._exchange.server.receive(self, destination, message)
        self._exchange.ask()

    def push(self, number: int, body: bytes) -> None:
        """Send what this node's server has for the peer."""
        self._send(FrameKind.RLOG, number, body, TO_REPLICA)

    def close(self) -> None:
        """The connection is gone; the rows stay."""
        self.replica.disconnect()
        self._exchange.server.lost(self)


class RlogExchange:
    """The replication log of this node."""

    def __init__(
        self,
        tables: Tables,
        own: str,
        *,
        is_core: bool,
        ask: Callable[[], None],
        on_applied: Callable[[RlogLink, str, Position], None],
        pace: AgentPace = PACE,
        writes: Callable[[str], bool] | None = None,
    ) -> None:
        """``own``: the origin of the routes that this node writes. ``ask`` asks for ``run`` at the end of this turn of the loop.

        ``on_applied``: a peer has this much of an origin. ``writes``: the origins that other cores get here; None: ``own``.
        """
        self.tables = tables
        self.ask = ask
        self.server: RlogServer[RlogLink] = RlogServer(tables, writes or written_with(own).__contains__, on_applied, pace)
        self._own = own
        self._is_core = is_core
        self._later: Later | None = None
        self._now = monotonic
        self._is_resting = False

    def open(self, send: SendFrame, accepts: Callable[[str], bool]) -> RlogLink:
        """A peer has connected. ``accepts``: the origins whose rows it may send."""
        return RlogLink(self, Replica(self.tables, self._own, is_core=self._is_core, accepts=accepts), send)

    def rest_with(self, later: Later, now: Callable[[], float] = monotonic) -> None:
        """Leave most of the loop's time to other work while snapshots are sent.

        ``now``: not the loop's clock, which counts milliseconds, while a part takes a tenth of one.
        """
        self._later = later
        self._now = now

    def run(self) -> None:
        """Send what this turn has brought, and a bounded piece to each peer that is behind, unless it is time to rest."""
        self._push(self.server.round())
        if self._is_resting or not self.server.is_busy:
            return
        began = self._now()
        self._push(self.server.pump())
        if self._later is not None and self.server.is_loading:
            self._is_resting = True
            self._later(max(_REST_S_MIN, (self._now() - began) * _RESTS), self._go_on)
        elif self.server.is_busy:
            self.ask()

    def _go_on(self) -> None:
        self._is_resting = False
        self.ask()

    def _push(self, messages: Iterable[tuple[RlogLink, int, RlogMessage]]) -> None:
        encoded: dict[int, tuple[RlogMessage, bytes]] = {}  # peers that follow get the same messages
        for link, number, message in messages:
            found = encoded.get(id(message))
            if found is None:
                found = encoded[id(message)] = message, _encode(message)
            link.push(number, found[1])
