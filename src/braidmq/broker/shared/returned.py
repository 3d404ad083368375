"""The returned messages of a shared group: leased to members that left without an acknowledgement.

They are handed out before anything else, in order of time. A few are in memory; the others are read from the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice

from braidmq.broker.reading.cursor import SLICE_S
from braidmq.broker.reading.fetch import Place, RecordFetch
from braidmq.lane.path.message import Message, from_record

_FETCH = 64  # messages looked for at a time


class ReturnedMessages:
    """The returned messages of one group, by place."""

    __slots__ = ("_fetch", "_order", "messages")

    def __init__(self) -> None:
        self.messages: dict[Place, Message | None] = {}  # without the message: to be read again
        self._order: list[Place] = []  # a heap of their places, timestamp first; some may be gone
        self._fetch: RecordFetch | None = None

    def put(self, place: Place, message: Message | None) -> None:
        """Add a message, which is read from the log when it is needed if it is not given."""
        if place not in self.messages:
            heappush(self._order, (place[1], place[0]))
        self.messages[place] = message

    def first(self) -> Place | None:
        """The place of the oldest message; None if there are no messages."""
        while self.messages:
            timestamp, shard = self._order[0]
            place = shard, timestamp
            if place in self.messages:
                return place
            heappop(self._order)
        return None

    def remove(self, place: Place) -> None:
        """Remove the message that was ``first``: a member has it, or it has expired."""
        del self.messages[place]
        if self._order[0] == (place[1], place[0]):  # else an older one has been returned meanwhile
            heappop(self._order)

    def clear(self) -> None:
        """Forget all messages."""
        self.messages.clear()
        self._order.clear()

    # Reading

    @property
    def is_blocked(self) -> bool:
        """Whether reading waits until the log is ready."""
        return self._fetch is not None and self._fetch.is_blocked

    def fetch(self, first: Place, start: Callable[[Sequence[Place]], RecordFetch]) -> int:
        """Read for a slice this message and some that are near it; returns how many retention has deleted.

        ``start`` begins to read the records at these places.
        """
        fetch = self._fetch
        if fetch is None:
            missing = (place for place, message in self.messages.items() if message is None and place[0] == first[0])
            fetch = self._fetch = start([first, *islice(missing, _FETCH)])
        lost = 0
        for place, record in fetch.run(SLICE_S).items():
            if record is None:
                del self.messages[place]
                lost += 1
            else:
                self.messages[place] = from_record(place[0], record)
        if fetch.is_over:
            self._fetch = None
        return lost

    def stop_reading(self) -> None:
        """Release the read-ahead."""
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            fetch.close()
