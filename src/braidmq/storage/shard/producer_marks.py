"""The producer marks of a shard: the number of each producer's last recorded message, in rows and for many of them in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from braidmq.storage.format.rows import (
    PRODUCER_PREFIX,
    PRODUCERS_END,
    ProducerRow,
    decode_producer,
    encode_producer,
    producer_key,
)
from braidmq.storage.ports import Reads, StoreBatch

_CACHED_MAX: Final = 10_000


class ProducerMark(NamedTuple):
    """The last sequence of a producer, and the check value (crc32 of topic and payload) of that message, if known."""

    sequence: int
    check: int | None = None


NO_MARK: Final = ProducerMark(0)


class ProducerMarks:
    """The marks of one column family that are written; those of a draft are the draft's until it is adopted."""

    def __init__(self, store: Reads, family: str) -> None:
        self._store = store
        self._family = family
        self._cached: OrderedDict[bytes, ProducerMark] = OrderedDict()

    def get(self, producer: bytes) -> ProducerMark:
        """The mark of a producer; `NO_MARK` if it has none."""
        known = self._cached.get(producer)
        if known is None:
            value = self._store.get(self._family, producer_key(producer))
            row = decode_producer(value) if value is not None else None
            known = ProducerMark(row.sequence, row.check) if row is not None else NO_MARK
        self.adopt(producer, known)
        return known

    def adopt(self, producer: bytes, mark: ProducerMark) -> None:
        """Keep a written mark in memory."""
        self._cached[producer] = mark
        self._cached.move_to_end(producer)
        if len(self._cached) > _CACHED_MAX:
            self._cached.popitem(last=False)

    def write(self, batch: StoreBatch, marks: Mapping[bytes, ProducerMark], now: int) -> None:
        """Add the rows of these marks to the batch; `adopt` each of them once it is written."""
        for producer, mark in marks.items():
            batch.put(self._family, producer_key(producer), encode_producer(ProducerRow(mark.sequence, now, mark.check)))

    def expire(
        self, batch: StoreBatch, unused_since: int, after: bytes, count_max: int, used: Mapping[bytes, ProducerMark]
    ) -> bytes | None:
        """Remove rows of producers unused since then, examining some; returns where to continue, None at the end.

        Those in `used` stay: the batch has newer marks of them.
        """
        producer = after
        lower = PRODUCER_PREFIX + after + b"\0" if after else PRODUCER_PREFIX
        for number, (key, value) in enumerate(self._store.items(self._family, lower, PRODUCERS_END)):
            if number == count_max:
                return producer
            producer = key[len(PRODUCER_PREFIX) :]
            if decode_producer(value).used_at < unused_since and producer not in used:
                batch.delete(self._family, key)
                self._cached.pop(producer, None)
        return None
