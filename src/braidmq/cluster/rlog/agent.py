"""Pushes a server's entries to one replica.

States:
- *catchup*: the replica is far behind in some origins. The agent reads their logs batch by batch, and sends a snapshot where a
  log does not reach back to the replica's position.
- *switchover*: the replica is close in all of them. The next pump sends what is left.
- *normal*: the replica has everything up to the last round, and is sent each round's messages as they are.

An origin is *pending* while the replica lacks something of it from before the last round. All other origins follow the rounds,
whatever the state. Agents share a round's messages, so a thousand replicas cost one encoding; and a round costs an agent nothing
for origins that are silent.

No more than the credit is ever on the way. Without credit, origins with news become pending: nothing is buffered for a slow
replica, for the log is there to be read again.

Invariant: of each origin the replica has received, or will on this ordered stream, everything up to ``_sent``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from braidmq.cluster.rlog.bootstrapper import PART_ROWS, Bootstrapper
from braidmq.cluster.rlog.origin_log import Entry, OriginLog, wire_size
from braidmq.cluster.rlog.tables import Tables
from braidmq.net.proto_v1 import Applied, CaughtUp, Entries, Position, RlogMessage, Snapshot

SWITCHOVER_ENTRIES_MAX: Final = 1000


class AgentPace(NamedTuple):
    """How much an agent sends at a time."""

    switchover_entries_max: int = SWITCHOVER_ENTRIES_MAX  # `cluster.switchover_entries_max`
    credit_bytes: int = 1024 * 1024
    batch_bytes: int = 64 * 1024
    part_rows: int = PART_ROWS


PACE: Final = AgentPace()


class AgentState(Enum):
    """How far the replica is behind; see above."""

    CATCHUP = "catchup"
    SWITCHOVER = "switchover"
    NORMAL = "normal"


class Agent:
    """The server's side of one watch."""

    def __init__(
        self,
        number: int,
        tables: Tables,
        serves: Callable[[str], bool],
        vector: dict[str, Position],
        pace: AgentPace,
    ) -> None:
        """``serves``: which origins this replica gets here. ``vector``: what the replica says it has."""
        self.number = number
        self.state = AgentState.CATCHUP
        self._tables = tables
        self._serves = serves
        self._sent = dict(vector)
        self._pending: dict[str, None] = {origin: None for origin, _ in tables if serves(origin)}  # ordered, so that runs repeat
        self._snapshots: dict[str, Bootstrapper] = {}
        self._pace = pace
        self._credit = pace.credit_bytes
        self._has_caught_up = False

    @property
    def lag(self) -> int:
        """Entries that the replica still has to be sent; a snapshot counts its rows."""
        return sum(map(self._lag_of, self._pending))

    def _lag_of(self, origin: str) -> int:
        log = self._tables.get(origin)
        sent = self._sent.get(origin)
        if log is None or (sent is not None and sent.incarnation > log.incarnation):
            return 0
        if sent is None or sent.incarnation < log.incarnation:
            return 1 + len(log.rows)
        return max(0, log.sequence - sent.sequence)

    @property
    def can_send(self) -> bool:
        """Whether a pump would send something. Without credit it waits for the replica."""
        return bool(self._pending) and self._credit > 0

    @property
    def is_loading(self) -> bool:
        """Whether the replica gets a snapshot."""
        return bool(self._snapshots)

    # Reading logs

    def pump(self) -> Iterator[RlogMessage]:
        """Send a bounded piece of each pending origin, as far as the credit goes."""
        for origin in tuple(self._pending):
            log = self._tables.get(origin)
            if log is None:  # its node is dead
                self._snapshots.pop(origin, None)
                del self._pending[origin]
                continue
            yield from self._send_of(origin, log)
            if self._has_all_of(origin, log):
                del self._pending[origin]
        self._judge()
        if self.state is AgentState.NORMAL and not self._has_caught_up:
            self._has_caught_up = True
            yield CaughtUp()

    def _judge(self) -> None:
        if not self._pending:
            self.state = AgentState.NORMAL
        elif self._snapshots or self.lag > self._pace.switchover_entries_max:
            self.state = AgentState.CATCHUP
        else:
            self.state = AgentState.SWITCHOVER

    def _send_of(self, origin: str, log: OriginLog) -> Iterator[RlogMessage]:
        if origin not in self._sent and not log.sequence:
            self._sent[origin] = log.position  # nothing was ever written: there is nothing to know
        if self._needs_snapshot(origin, log):
            self._snapshots[origin] = Bootstrapper(origin, log, self._pace.part_rows)
            self._sent[origin] = log.position
        snapshot = self._snapshots.get(origin)
        if snapshot is not None and self._credit > 0:
            # Before the entries: a log that grows as fast as it can be sent must not starve it.
            yield self._part_of(origin, snapshot)
        sent = self._sent[origin]
        bytes_max = self._pace.credit_bytes if self.state is AgentState.SWITCHOVER else self._pace.batch_bytes
        if self._credit > 0 and sent.incarnation == log.incarnation and sent.sequence < log.sequence:
            yield self._charged(message_of(origin, log.incarnation, sent.sequence, log.after(sent.sequence, bytes_max)))

    def _needs_snapshot(self, origin: str, log: OriginLog) -> bool:
        snapshot = self._snapshots.get(origin)
        if snapshot is not None and not snapshot.is_of(log):
            del self._snapshots[origin]
            return True
        sent = self._sent.get(origin)
        if sent is None or sent.incarnation < log.incarnation:
            return True
        # A replica that is ahead has it from another server; this one goes on when it gets there.
        return sent.incarnation == log.incarnation and not log.reaches(sent.sequence)

    def _part_of(self, origin: str, snapshot: Bootstrapper) -> Snapshot:
        part, size = snapshot.part()
        self._credit -= size
        if snapshot.is_over:
            del self._snapshots[origin]
        return part

    def _charged(self, message: Entries) -> Entries:
        self._credit -= wire_size(message.keys, message.values)
        self._sent[message.origin] = Position(message.incarnation, message.first + len(message.keys) - 1)
        return message

    def _has_all_of(self, origin: str, log: OriginLog) -> bool:
        return origin not in self._snapshots and self._sent[origin] >= log.position

    # Following

    def follow(self, messages: Sequence[Entries], broken: Sequence[str]) -> Iterator[Entries]:
        """Send a round's messages. ``broken``: origins with news that no message of the round says."""
        for message in messages:
            origin = message.origin
            if not self._serves(origin) or origin in self._pending:
                continue
            sent = self._sent.get(origin)
            if self._credit > 0 and sent == Position(message.incarnation, message.first - 1):
                yield self._charged(message)
            elif sent is None or sent < Position(message.incarnation, message.first + len(message.keys) - 1):
                self._pending[origin] = None
        self._pending.update(dict.fromkeys(filter(self._serves, broken)))
        if self._pending:
            self._judge()

    def on_applied(self, applied: Applied) -> None:
        """The replica has applied something: it may be sent more."""
        self._credit = min(self._pace.credit_bytes, self._credit + applied.size)


def message_of(origin: str, incarnation: int, after: int, entries: Sequence[Entry]) -> Entries:
    """The message of the entries that come after this sequence."""
    return Entries(origin, incarnation, after + 1, [entry.key for entry in entries], [entry.value for entry in entries])
