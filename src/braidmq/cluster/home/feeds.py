"""A node's feed: what the core sends a node of the log's commits.

To a core, a node is what a session is to a node. It *follows*: each record that one of its routes matches is sent at its commit.
When its outlet is full it falls *behind*, and the core reads the log for it from its positions until it follows again; nothing is
buffered for it. A feed starts once the core has the node's routes up to the sequence that the node names: without them it would
pass records that the node wants (C11).

Marks tell the node how far the feed has come in shards in which it had nothing to send. They are sent behind the records of a
turn, and only while the feed follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from braidmq.broker.bounds.turns import Turns
from braidmq.broker.broker import Broker
from braidmq.broker.reading.cursor import SLICE_S, LogCursor, RunEnd, TakePlain
from braidmq.broker.reading.slots import Slots
from braidmq.broker.reading.source import LogSource
from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import PeerFlow, PeerOutlet
from braidmq.lane.records.records import Record

_FILTERS_MAX = 64  # of a node; with more of them everything is read, since each costs time


class FeedServices(Protocol):
    """What a feed needs of the core's broker."""

    @property
    def source(self) -> LogSource:
        """Opens scans of the log."""

    @property
    def slots(self) -> Slots:
        """Decides which readers may keep what they have read."""

    @property
    def turns(self) -> Turns:
        """Gives each reader its turns."""

    @property
    def state(self) -> State:
        """The state of the lane, with the marks of the log."""

    def note_gap(self) -> None:
        """Retention deleted records before a node had them."""


class NodeFeed:
    """One node's feed over one connection; implements `broker.reading.cursor.ScanReader`."""

    def __init__(
        self, name: str, flow: PeerFlow, outlet: PeerOutlet, services: FeedServices, filters: Callable[[], Sequence[str]]
    ) -> None:
        """``filters``: those of the node's routes, as they are now."""
        self.name = name
        self.owner = ("node", name)
        self._flow = flow
        self._outlet = outlet
        self._services = services
        self._filters = filters
        self._is_scheduled = False
        self._is_open = False
        self._marks: list[int] = []  # as the node was told
        self._cursor = LogCursor(services.source, services.slots, self)
        flow.on_behind = self._on_behind

    @property
    def is_behind(self) -> bool:
        """Whether the core reads the log for the node."""
        return self._is_open and not self._flow.is_following

    @property
    def lag_us(self) -> int:
        """How much of the log the node still has to be sent, in microseconds of the shard that is furthest behind."""
        if not self.is_behind:
            return 0
        pairs = zip(self._services.state.marks, self._flow.positions, strict=False)
        return max((mark - position for mark, position in pairs if position), default=0)

    def start(self, positions: Sequence[int]) -> None:
        """The node's routes are known: send what is above these positions; without any, what is committed from now on."""
        self._is_open = True
        if positions:
            self._flow.is_following = False
            self._flow.positions = list(positions)
            self.wake()
        else:
            self._flow.follow()

    def close(self) -> None:
        """The connection has ended."""
        self._is_open = False
        self._flow.on_behind = None
        self._cursor.close()

    def take_marks(self) -> list[int] | None:
        """Positions that the node is to be told behind what it was sent; None: it knows them."""
        if not self._is_open or not self._flow.is_following:
            return None
        marks = self._flow.cursor()
        if marks == self._marks:
            return None
        self._marks = marks
        return marks

    def note_routes(self) -> None:
        """The node's routes have changed: what is read from now on is read for all of them."""
        if self.is_behind:
            self._cursor.close()
            self.wake()

    def note_room(self) -> None:
        """The connection takes more."""
        if self.is_behind:
            self.wake()

    def _on_behind(self) -> None:
        self.wake()

    def _run(self) -> None:
        self._is_scheduled = False
        if not self.is_behind or not self._outlet.has_room():
            return  # ``note_room`` follows
        end = self._cursor.run(monotonic() + SLICE_S)
        if end is RunEnd.CAUGHT_UP:
            self._cursor.close()
            self._flow.follow()
        elif end is RunEnd.MORE:
            self.wake()

    # What the cursor asks

    @property
    def positions(self) -> list[int]:
        """Where the feed is, by shard, while it is behind."""
        return self._flow.positions

    def filters(self) -> Sequence[str]:
        """What the node wants, or everything if that is much."""
        filters = self._filters()
        return filters if 0 < len(filters) <= _FILTERS_MAX else ("#",)

    def plain(self) -> TakePlain | None:
        """Each record is offered alone."""
        return None

    def offer_record(self, shard: int, record: Record) -> bool:
        """Send a record; False if there is no room."""
        return self._flow.take_record(shard, record.timestamp, record.value)

    def note_gap(self) -> None:
        """Retention deleted records before they were read."""
        self._services.note_gap()

    def pause(self) -> None:
        """Another reader needs the slot."""
        self._cursor.close()

    def wake(self) -> None:
        """Read on in another turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._services.turns.add(self.owner, self._run)


class FeedNeeds:
    """What feeds need of the core's broker; implements `FeedServices`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def source(self) -> LogSource:
        """Opens scans of the log."""
        return self._broker.sharing.source

    @property
    def slots(self) -> Slots:
        """Decides which readers may keep what they have read."""
        return self._broker.idle_readers

    @property
    def turns(self) -> Turns:
        """Gives each reader its turns."""
        return self._broker.turns

    @property
    def state(self) -> State:
        """The state of the lane, with the marks of the log."""
        return self._broker.state

    def note_gap(self) -> None:
        """Retention deleted records before a node had them."""
        self._broker.statistics.lost_to_retention += 1
