"""Key ranges to search in an epoch, with filters, so that each record is found exactly once.

The records of an epoch are read in the order of their keys, not of time, and are sent at once. No list of sent records is kept,
so the ranges of several filters must not find the same record twice. Filters covered by another filter are left out. Of the rest,
exact filters match different topics, and a wildcard filter excludes the topics that filters before it match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from braidmq.lane.records.records import TopicFilters
from braidmq.mqtt.topics import covers, overlaps
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query

# A query costs a seek, about as much as this many steps. With more queries than that, examining every record is cheaper.
SEEK_STEPS: Final = 32


class KeyRange(Struct, frozen=True):
    """Keys to examine (no query: all), filters of which a record must match one, and filters it must not match."""

    query: Query | None
    wanted: TopicFilters
    excluded: TopicFilters | None


class _Search(Struct, frozen=True):
    filters: tuple[str, ...]
    wanted: TopicFilters
    excluded: TopicFilters | None


class Searches:
    """The filters of one reader."""

    def __init__(self, filters: Sequence[str]) -> None:
        """Requires at least one filter; all must be valid."""
        needed = _needed(filters)
        self.filters = tuple(needed)
        self.is_everything = needed == ["#"]
        self._all = _matcher(needed)
        exact = tuple(each for each in needed if not _is_wild(each))
        wild = [each for each in needed if _is_wild(each)]
        self._each = [_Search(exact, _matcher(exact), None)] if exact else []
        for number, each in enumerate(wild):
            shared = [before for before in wild[:number] if overlaps(before, each)]
            self._each.append(_Search((each,), _matcher([each]), _matcher(shared) if shared else None))

    def ranges(self, epoch: EpochRow, plan: Callable[[str], list[Query]]) -> list[KeyRange]:
        """The key ranges that may contain matching records, by the plan of the epoch's layout; empty if none can match."""
        found: list[KeyRange] = []
        for search in self._each:
            queries = (query for each in search.filters for query in plan(each))
            for query in _once(query for query in queries if _may_hold(epoch, query)):
                # A query with an empty index, as for `#`, starts at the first record.
                if len(found) * SEEK_STEPS > epoch.count or not query.first():
                    return [KeyRange(None, self._all, None)]
                found.append(KeyRange(query, search.wanted, search.excluded))
        return found


def _needed(filters: Iterable[str]) -> list[str]:
    """The filters in order, without those that another one covers."""
    known = sorted(set(filters))
    wild = [each for each in known if _is_wild(each)]
    return [each for each in known if not any(covers(other, each) for other in wild if other != each)]


def _is_wild(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def _matcher(filters: Iterable[str]) -> TopicFilters:
    return TopicFilters([each.encode() for each in filters], False)


def _once(queries: Iterable[Query]) -> Iterable[Query]:
    """Remove duplicates: two topics with the same index have the same query; other queries start at different keys."""
    return {query.first(): query for query in queries}.values()


def _may_hold(epoch: EpochRow, query: Query) -> bool:
    return epoch.static_ids is None or query.static is None or query.static in epoch.static_ids
