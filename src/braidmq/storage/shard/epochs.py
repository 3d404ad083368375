"""The in-memory directory of a shard's epochs: it tells which epochs a search can skip (S11)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec import structs

from braidmq.lane.records.records import STATIC_ID_BYTES
from braidmq.storage.format.rows import STATIC_IDS_MAX, EpochRow


def are_listable(static_ids: AbstractSet[bytes]) -> bool:
    """Whether an epoch can list exactly these ids: they are few, and all are ids (short indexes have none)."""
    return len(static_ids) <= STATIC_IDS_MAX and all(len(each) == STATIC_ID_BYTES for each in static_ids)


class OpenEpoch:
    """The epoch that records are appended to; `static_ids` is None if any may be in it."""

    __slots__ = ("start", "end", "count", "size_bytes", "static_ids")

    def __init__(self, start: int, end: int, count: int, size_bytes: int, static_ids: set[bytes] | None) -> None:
        self.start = start
        self.end = end
        self.count = count
        self.size_bytes = size_bytes
        self.static_ids = static_ids

    def add_static_ids(self, static_ids: set[bytes]) -> None:
        """Add the ids of new records; beyond a bound, any id may be in it."""
        if self.static_ids is not None:
            self.static_ids |= static_ids
            if not are_listable(self.static_ids):
                self.static_ids = None

    def row(self) -> EpochRow:
        """The row for its current contents."""
        return EpochRow(
            self.start,
            self.end,
            self.count,
            self.size_bytes,
            None if self.static_ids is None else frozenset(self.static_ids),
        )


class EpochDirectory:
    """The closed epochs, in order of time, and the open one after them."""

    def __init__(self, closed: Iterable[EpochRow] = ()) -> None:
        self._closed: list[EpochRow] = []
        self._starts: list[int] = []
        # There may be very many epochs, and the totals are read often.
        self._closed_count = self._closed_bytes = 0
        self.open: OpenEpoch | None = None
        for epoch in closed:
            self.close(epoch)

    def __len__(self) -> int:
        return len(self._closed) + (self.open is not None)

    @property
    def closed(self) -> Sequence[EpochRow]:
        """The closed epochs in order of time."""
        return self._closed

    def __iter__(self) -> Iterator[EpochRow]:
        yield from self._closed
        if self.open is not None:
            yield self.open.row()

    @property
    def size_bytes(self) -> int:
        """Bytes of all records, as they were appended."""
        return self._closed_bytes + (self.open.size_bytes if self.open is not None else 0)

    @property
    def count(self) -> int:
        """Number of all records."""
        return self._closed_count + (self.open.count if self.open is not None else 0)

    def close(self, epoch: EpochRow) -> None:
        """Add a closed epoch; it is later than all others."""
        # Consecutive epochs mostly have the same patterns and can share one set.
        if self._closed and epoch.static_ids == self._closed[-1].static_ids:
            epoch = structs.replace(epoch, static_ids=self._closed[-1].static_ids)
        self._closed.append(epoch)
        self._starts.append(epoch.start)
        self._closed_count += epoch.count
        self._closed_bytes += epoch.size_bytes

    def closed_between(self, first: int, end: int) -> Sequence[EpochRow]:
        """The closed epochs with first <= start < end."""
        return self._closed[bisect_left(self._starts, first) : bisect_left(self._starts, end)]

    def after(self, position: int) -> EpochRow | None:
        """The first epoch with a record after the position."""
        place = max(bisect_right(self._starts, position) - 1, 0)
        for epoch in self._closed[place : place + 2]:
            if epoch.end > position:
                return epoch
        if self.open is not None and self.open.end > position:
            return self.open.row()
        return None

    def forget_below(self, floor: int) -> None:
        """Drop the epochs that start below the floor."""
        place = bisect_left(self._starts, floor)
        self._closed_count -= sum(epoch.count for epoch in self._closed[:place])
        self._closed_bytes -= sum(epoch.size_bytes for epoch in self._closed[:place])
        del self._closed[:place]
        del self._starts[:place]
