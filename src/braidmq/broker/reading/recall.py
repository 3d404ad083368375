"""Recall: reads messages in flight back from the log when their client returns, a few at a time.

They were in flight when the process ended, or were removed from memory (``holdings``). They are sent first and in their original
order, so they are read in that order: some are read and sent as far as the client accepts them, then the next ones. Messages that
were sent may leave memory again, so a client that accepts nothing costs the memory of a few messages, and a recall needs no slot:
it holds a scan only while it reads.
"""

from __future__ import annotations

from braidmq.broker.reading.context import ReadingContext
from braidmq.broker.reading.cursor import SLICE_S
from braidmq.broker.reading.fetch import Place, RecordFetch
from braidmq.broker.session.session import Session
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.path.message import from_record
from braidmq.lane.records.records import Record

_AHEAD = 256  # messages looked for at a time
_AHEAD_BYTES = 256 * 1024  # of them, after which those that were found are sent first
_ALL = ["#", "$SYS/#"]

Entry = tuple[int, Delivery]  # with its packet id


class Recall:
    """Reads the messages that one session must resend; until then nothing else is sent."""

    def __init__(self, context: ReadingContext, session: Session) -> None:
        self._context = context
        self._session = session
        # By place: a replay may have sent what another subscription has sent too.
        self._missing: dict[Place, list[Entry]] = {}
        self._unmatched: dict[Place, list[Entry]] = {}  # not found by the session's filters
        self._next: Delivery | None = None  # what is sent next
        self._found_bytes = 0
        self._filters: list[str] = []
        self._fetch: RecordFetch | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether it can read on at once; otherwise it is woken, or the client must accept something first."""
        if self._fetch is not None:
            return not self._fetch.is_blocked
        return bool(self._session.flow.next_unread(1))

    def run(self) -> bool:
        """Read for a slice and send what was found; True when nothing is left to read."""
        flow = self._session.flow
        fetch = self._fetch or self._begin()
        if fetch is not None:
            for place, record in fetch.run(SLICE_S).items():
                self._take_in(place, record)
            self._look_everywhere()
            if not self._is_over():
                return False
            self.close()
            flow.pump()
        return not flow.has_unread()

    def close(self) -> None:
        """Release the read-ahead; reading begins again at what is missing."""
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None

    def _wake(self) -> None:
        if self._session.connection is not None:
            self._session.connection.on_room()

    def _begin(self) -> RecordFetch | None:
        """Look for the next messages; None if the client accepts none now."""
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
        return self._look(list(own) or _ALL)

    def _look(self, filters: list[str]) -> RecordFetch:
        self._filters = filters
        self._fetch = RecordFetch(self._context.source, filters, self._missing, self._wake, self._session.client_id)
        return self._fetch

    def _look_everywhere(self) -> None:
        # The subscriptions of the rest are gone, but what was begun is to be finished [MQTT-3.10.4-3].
        if not self._missing and self._unmatched:
            self._missing, self._unmatched = self._unmatched, {}
            self._look(_ALL)

    def _is_over(self) -> bool:
        """Whether everything was found or is gone, or enough was found to send, including the next message."""
        if not self._missing and not self._unmatched:
            return True
        return self._found_bytes >= _AHEAD_BYTES and self._next is not None and not self._next.is_unread()

    def _take_in(self, place: Place, record: Record | None) -> None:
        entries = self._missing.pop(place)
        if record is None and self._filters != _ALL:
            self._unmatched[place] = entries
            return
        for packet_id, delivery in entries:
            if record is None:
                self._context.redelivery.lost(self._session, packet_id, delivery)
            elif self._found_bytes < _AHEAD_BYTES or delivery is self._next:
                message = from_record(place[0], record)
                self._found_bytes += message.cost()
                self._context.redelivery.found(self._session, packet_id, delivery, message)
