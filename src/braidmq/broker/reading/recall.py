"""Recall: reads messages in flight back from the log when their client returns, a few at a time.

They were in flight when the process ended, or were removed from memory (``holdings``). They are sent first and in their original
order, so they are read in that order: some are read and sent as far as the client accepts them, then the next ones. Messages that
were sent may leave memory again, so a client that accepts nothing costs the memory of a few messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.ports import LogScan
from braidmq.lane.path.delivery import Delivery
from braidmq.lane.path.message import from_record

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.session.session import Session

_SLICE_S = 0.0005  # of reading for one session, before others have their turn
_READ = 32  # records asked for at a time
_AHEAD = 256  # messages looked for at a time
_AHEAD_BYTES = 256 * 1024  # of them, after which those that were found are sent first
_RETRY_S = 0.05  # after which to look again whether there is memory for what is to be read
_ALL = ["#", "$SYS/#"]

Place = tuple[int, int]  # shard and timestamp
Entry = tuple[int, Delivery]  # with its packet id


class Recall:
    """Reads the messages that one session must resend; until then nothing else is sent."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self._session = session
        # By place: a replay may have sent what another subscription has sent too.
        self._missing: dict[Place, list[Entry]] = {}
        self._unmatched: dict[Place, list[Entry]] = {}  # not found by the filters that there are now
        self._next: Delivery | None = None  # what is sent next
        self._found_bytes = 0
        self._filters: list[str] = []
        self._replay: LogScan | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether it can read on at once; else it is woken, or the client must take something before."""
        if self._replay is not None:
            return not self._replay.is_waiting
        return bool(self._session.flow.next_unread(1))

    def run(self) -> bool:
        """Read for a slice and send what was found; True when nothing is left to be read."""
        flow = self._session.flow
        replay = self._replay or self._begin()
        if replay is not None:
            self._read(replay)
            if not self._is_over():
                if replay.is_waiting:
                    self._broker.loop.call_later(_RETRY_S, self._wake)
                return False
            self._replay = None
            flow.pump()
        return not flow.has_unread()

    def _wake(self) -> None:
        if self._session.connection is not None:
            self._session.connection.on_room()

    def _begin(self) -> LogScan | None:
        """Look for the next messages; None if the client takes none now."""
        entries = self._session.flow.next_unread(_AHEAD)
        if not entries:
            return None
        self._missing = {}
        self._unmatched = {}
        self._found_bytes = 0
        self._next = entries[0][1]
        for packet_id, delivery in entries:
            self._missing.setdefault(delivery.place(), []).append((packet_id, delivery))
        own = dict.fromkeys(each.topic_filter.decode() for each in self._session.subscriptions.values())
        self._filters = list(own) or _ALL
        return self._open()

    def _open(self) -> LogScan:
        """Read from the first that is missing, in each shard."""
        first = dict(enumerate(self._broker.state.marks))
        for shard, timestamp in self._missing:
            first[shard] = min(first[shard], timestamp - 1)
        self._replay = self._broker.turn_writer.log.replay(self._filters, first, with_session_only=True)
        return self._replay

    def _is_over(self) -> bool:
        """Whether everything was found or is gone; or enough to be sent, what is next being among it."""
        if not self._missing and not self._unmatched:
            return True
        return self._found_bytes >= _AHEAD_BYTES and self._next is not None and not self._next.is_unread()

    def _read(self, replay: LogScan) -> None:
        records = replay.next(_READ, slice_s=_SLICE_S)
        before = len(self._missing)
        for shard, record in records:
            for packet_id, delivery in self._missing.pop((shard, record.timestamp), ()):
                if self._found_bytes < _AHEAD_BYTES or delivery is self._next:
                    message = from_record(shard, record)
                    self._found_bytes += message.cost()
                    self._broker.redelivery.found(self._session, packet_id, delivery, message)
        is_in_vain = len(self._missing) == before
        self._give_up_passed(replay)
        if not self._missing and self._unmatched:
            # Their subscriptions are gone, but what was begun is to be finished [MQTT-3.10.4-3].
            self._missing, self._unmatched = self._unmatched, {}
            self._filters = _ALL
            self._open()
        elif self._missing and records and is_in_vain:
            self._open()  # what a replay has in flight may be days older than the rest: pass over those days

    def _give_up_passed(self, replay: LogScan) -> None:
        """What reading has passed without finding it is no longer there."""
        positions = {} if replay.is_caught_up else replay.positions()
        for shard, timestamp in list(self._missing):
            if shard not in positions or positions[shard] >= timestamp:
                entries = self._missing.pop((shard, timestamp))
                if self._filters != _ALL:
                    self._unmatched[shard, timestamp] = entries
                    continue
                for packet_id, delivery in entries:
                    self._broker.redelivery.lost(self._session, packet_id, delivery)
