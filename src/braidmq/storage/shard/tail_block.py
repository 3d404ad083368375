"""A run of records of the tail with a topic index, so that many readers find their records without scanning all.

The first reader scans the records; the index is built for the second one, because it costs more than one pass. A filter is looked
up by its topic, or by the part before its first wildcard, among the sorted distinct topics of the block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from braidmq.lane.records.records import Record, TopicFilters, encode_record

# Indexing a block takes well under a millisecond.
BLOCK_RECORDS: Final = 2048

# The overhead in bytes of an indexed topic, and of an indexed record.
_TOPIC_COST: Final = 250
_PLACE_COST: Final = 8
# With more filters than this, scanning the records is as fast.
_FILTERS_MAX: Final = 64
# UTF-8 does not contain this byte: it sorts above everything with the same prefix.
_ABOVE: Final = b"\xff"
# Keeps the indexes of those that follow.
_FORGOTTEN: Final = Record(0, encode_record(b"", b"", 0, False, ""))


class TopicSearch:
    """Filters in the form for a search in the index."""

    __slots__ = ("exact", "matcher", "prefixes")

    def __init__(self, filters: Sequence[str], matcher: TopicFilters) -> None:
        """`matcher` must have the same filters."""
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
                self.exact.append(prefix[:-1])  # # also matches its parent level
            self.prefixes.append(prefix)

    @property
    def is_selective(self) -> bool:
        """Whether an index is faster than a pass over all records."""
        return all(self.prefixes) and len(self.exact) + len(self.prefixes) <= _FILTERS_MAX


def _first_wildcard(name: bytes) -> int:
    found = [place for place in (name.find(b"+"), name.find(b"#")) if place >= 0]
    return min(found, default=len(name))


class TailBlock:
    """Records in order of time, from `head` on; the earlier ones were dropped."""

    __slots__ = ("_indexed", "_is_wanted", "_places", "_topics", "head", "index_bytes", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.head = 0
        self.index_bytes = 0
        self._is_wanted = False  # a reader has scanned it before
        self._indexed = 0  # records in the index
        self._places: dict[bytes, list[int]] = {}
        self._topics: list[bytes] = []  # the topics of the index, sorted; rebuilt when it has grown

    def forget_first(self) -> Record:
        """Remove the earliest record and return it."""
        record = self.records[self.head]
        self.records[self.head] = _FORGOTTEN
        self.head += 1
        return record

    def later(self, position: int) -> int:
        """The index of the first record after the position."""
        return bisect_right(self.records, position, lo=self.head, key=timestamp_of)

    def find(self, search: TopicSearch, position: int) -> list[Record]:
        """The records after the position that may match, in order; all others do not."""
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
        """Whether the index shows without a scan that nothing matches."""
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
    """The sort key of records."""
    return record.timestamp
