"""A run of records of the tail with a topic index, so that many readers find their records without scanning all.

The first reader goes through the records; an index is made when a second one comes, because it costs more than one pass. A filter
is looked up by its topic, or by what it has before its first wildcard, among the distinct topics of the block in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from braidmq.lane.records.records import Record, TopicFilters, encode_record

# To index a block takes well under a millisecond.
BLOCK_RECORDS: Final = 2048

# What an indexed topic costs beside its bytes, and an indexed record.
_TOPIC_COST: Final = 250
_PLACE_COST: Final = 8
# With more filters than that, going through the records is as good.
_FILTERS_MAX: Final = 64
# Topics are UTF-8, which has no such byte: it is above everything that begins alike.
_ABOVE: Final = b"\xff"
# Keeps the places of those that follow.
_FORGOTTEN: Final = Record(0, encode_record(b"", b"", 0, False, ""))


class TopicSearch:
    """Filters in the form that an index can be asked with."""

    __slots__ = ("exact", "matcher", "prefixes")

    def __init__(self, filters: Sequence[str], matcher: TopicFilters) -> None:
        """`matcher` is made of the same filters."""
        self.matcher = matcher
        self.exact: list[bytes] = []
        self.prefixes: list[bytes] = []
        for topic_filter in filters:
            name = topic_filter.encode()
            prefix = name[: _first_wildcard(name)]
            if prefix == name:
                self.exact.append(name)
                continue
            if name == prefix + b"#" and prefix:
                self.exact.append(prefix[:-1])  # the level above # is matched too
            self.prefixes.append(prefix)

    @property
    def is_selective(self) -> bool:
        """Whether an index says more than a pass over all records would."""
        return all(self.prefixes) and len(self.exact) + len(self.prefixes) <= _FILTERS_MAX


def _first_wildcard(name: bytes) -> int:
    found = [place for place in (name.find(b"+"), name.find(b"#")) if place >= 0]
    return min(found, default=len(name))


class TailBlock:
    """Records in order of time, from `head` on; the earlier ones are forgotten."""

    __slots__ = ("_indexed", "_is_wanted", "_places", "_topics", "head", "index_bytes", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.head = 0
        self.index_bytes = 0
        self._is_wanted = False  # a reader went through it before
        self._indexed = 0  # records in the index
        self._places: dict[bytes, list[int]] = {}
        self._topics: list[bytes] = []  # those of the index in order; made again when it has grown

    def forget_first(self) -> Record:
        """Remove the earliest record and return it."""
        record = self.records[self.head]
        self.records[self.head] = _FORGOTTEN
        self.head += 1
        return record

    def later(self, position: int) -> int:
        """The place of the first record later than the position."""
        return bisect_right(self.records, position, lo=self.head, key=timestamp_of)

    def find(self, search: TopicSearch, position: int) -> list[Record]:
        """The records later than the position that may match, in order; all others do not."""
        begin = self.later(position)
        if not self._is_wanted:
            self._is_wanted = True
            return self.records[begin:]
        if self._indexed < len(self.records):
            self._index()
        places: list[int] = []
        for topic in self._find_topics(search):
            found = self._places[topic]
            places += found[bisect_left(found, begin) :]
        places.sort()
        records = self.records
        return [records[place] for place in places]

    def is_known_without(self, search: TopicSearch) -> bool:
        """Whether the index says at once that nothing matches."""
        return self._indexed == len(self.records) and not search.prefixes and self._places.keys().isdisjoint(search.exact)

    def _find_topics(self, search: TopicSearch) -> set[bytes]:
        found = {topic for topic in search.exact if topic in self._places}
        if search.prefixes:
            if len(self._topics) < len(self._places):
                self._topics = sorted(self._places)
            is_match = search.matcher.matches_topic
            for prefix in search.prefixes:
                low, high = bisect_left(self._topics, prefix), bisect_left(self._topics, prefix + _ABOVE)
                found.update(topic for topic in self._topics[low:high] if is_match(topic))
        return found

    def _index(self) -> None:
        places = self._places
        records = self.records
        for place in range(self._indexed, len(records)):
            topic = records[place].topic
            known = places.get(topic)
            if known is None:
                places[topic] = [place]
                self.index_bytes += _TOPIC_COST + len(topic)
            else:
                known.append(place)
        self.index_bytes += (len(records) - self._indexed) * _PLACE_COST
        self._indexed = len(records)


def timestamp_of(record: Record) -> int:
    """What records are in order of."""
    return record.timestamp
