"""Keeps copies of origins' rows by watching one server.

States: *disconnected*, *bootstrap* (a snapshot is being loaded), *replay* (the log is being caught up with), *normal*. A node
opens its listeners in *normal*. When the connection is lost the rows stay: they are as good as they were, and a new watch, of
this server or another one, goes on from the vector.

A replica believes only the server that it watches now, under the number of its latest watch; whatever else is pushed to it is
answered with a rejection (seed 002, zombie fencing). And it takes the rows of an origin only from a server that may have them:
on a core that is the origin's writer alone (C7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from braidmq.base.errors import BraidError
from braidmq.cluster.rlog.origin_log import Entry, wire_size
from braidmq.cluster.rlog.origins import written_with
from braidmq.cluster.rlog.tables import Loading, Tables
from braidmq.net.proto_v1 import Applied, CaughtUp, Entries, NotWatched, Position, RlogMessage, RlogWatch, Snapshot


class ReplicaState(Enum):
    """How far a replica is; see above."""

    DISCONNECTED = "disconnected"
    BOOTSTRAP = "bootstrap"
    REPLAY = "replay"
    NORMAL = "normal"


class ForeignRows(BraidError):
    """A server pushed rows of an origin that it does not write: the connection must be closed."""

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self.origin = origin

    def __str__(self) -> str:
        return f"a peer sent rows of {self.origin}, which it does not own"


class Replica:
    """The watching side. Replies are pairs of a watch's number and a message."""

    def __init__(self, tables: Tables, own: str, *, is_core: bool, accepts: Callable[[str], bool]) -> None:
        """``own``: the origin of the routes that this node writes itself. ``accepts``: which origins this server may send."""
        self.state = ReplicaState.DISCONNECTED
        self.watch = 0
        self._tables = tables
        self._own = own
        self._written = written_with(own)
        self._is_core = is_core
        self._accepts = accepts
        self._loads: dict[str, Loading] = {}
        self._is_live = False

    def connect(self) -> tuple[int, RlogWatch]:
        """Watch the server that the caller has connected to, from where the tables are."""
        self.disconnect()
        self.state = ReplicaState.REPLAY
        self.watch += 1
        vector = {origin: position for origin, position in self._tables.vector().items() if self._accepts(origin)}
        return self.watch, RlogWatch(self._own, self._is_core, vector)

    def disconnect(self) -> None:
        """The connection is gone."""
        for loading in self._loads.values():
            self._tables.abandon_load(loading)
        self._loads.clear()
        self._is_live = False
        self.state = ReplicaState.DISCONNECTED

    def receive(self, number: int, message: RlogMessage) -> Sequence[tuple[int, RlogMessage]]:
        """Apply what a server pushes; the replies. Raises ForeignRows."""
        if number != self.watch or self.state is ReplicaState.DISCONNECTED:
            return [(number, NotWatched())]
        reply: Applied | RlogWatch | None = None
        match message:
            case Entries():
                reply = self._apply(message)
            case Snapshot():
                reply = self._load(message)
            case CaughtUp():
                self._is_live = True
        self._judge()
        return [] if reply is None else [(self.watch, reply)]

    def _apply(self, message: Entries) -> Applied | RlogWatch:
        self._check(message.origin)
        entries = list(map(Entry, message.keys, message.values))
        position = self._tables.apply(message.origin, message.incarnation, message.first, entries)
        if position is None:
            return self.connect()[1]  # a gap: ask again, from where the rows are
        return Applied(message.origin, position, wire_size(message.keys, message.values))

    def _load(self, message: Snapshot) -> Applied:
        origin = message.origin
        self._check(origin)
        if message.is_first:
            self._loads.pop(origin, None)
            begun = self._tables.begin_load(origin, Position(message.incarnation, message.sequence))
            if begun is not None:
                self._loads[origin] = begun
        loading = self._loads.get(origin)
        if loading is not None:
            self._tables.load(loading, message.keys, message.values)
            if message.is_last:
                del self._loads[origin]
                self._tables.end_load(loading)
        log = self._tables.get(origin)
        position = log.position if log is not None else Position(0, 0)
        return Applied(origin, position, wire_size(message.keys, message.values))

    def _check(self, origin: str) -> None:
        if origin in self._written or not self._accepts(origin):
            raise ForeignRows(origin)

    def _judge(self) -> None:
        # A snapshot of a node that has died meanwhile has no end.
        self._loads = {origin: loading for origin, loading in self._loads.items() if not self._tables.is_over(loading)}
        if self._loads:
            self.state = ReplicaState.BOOTSTRAP
        else:
            self.state = ReplicaState.NORMAL if self._is_live else ReplicaState.REPLAY
