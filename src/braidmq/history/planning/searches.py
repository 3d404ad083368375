"""Key ranges to search in an epoch, with filters, so that each record is found exactly once.

Records of an epoch are read in the order of their keys and not of time, and go out at once. Nothing remembers them, so that the
ranges of several filters must not find the same record twice. Filters that match only what another one matches are left out; of
those that are left, exact ones match different topics, and a wildcard leaves to the ones before it what they match too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from braidmq.lane.records.records import TopicFilters
from braidmq.mqtt.topics import covers, overlaps
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query

# A query costs a seek, about as much as this many steps. With more queries than that, looking at every record is cheaper.
SEEK_STEPS: Final = 32


class KeyRange(Struct, frozen=True):
    """Keys to look at (no query: all), filters of which a record must match one, and filters of which it must match none."""

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
        """Filters are valid ones, at least one."""
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
        """Where records of the epoch may be that match, by the plan of its layout; nowhere if the epoch has none for certain."""
        found: list[KeyRange] = []
        for search in self._each:
            queries = (query for each in search.filters for query in plan(each))
            for query in _once(query for query in queries if _may_hold(epoch, query)):
                # A query that begins with the empty index begins with the first record: `#` and its like.
                if len(found) * SEEK_STEPS > epoch.count or not query.first():
                    return [KeyRange(None, self._all, None)]
                found.append(KeyRange(query, search.wanted, search.excluded))
        return found


def _needed(filters: Iterable[str]) -> list[str]:
    """In order, without those that another one covers."""
    known = sorted(set(filters))
    wild = [each for each in known if _is_wild(each)]
    return [each for each in known if not any(covers(other, each) for other in wild if other != each)]


def _is_wild(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def _matcher(filters: Iterable[str]) -> TopicFilters:
    return TopicFilters([each.encode() for each in filters], False)


def _once(queries: Iterable[Query]) -> Iterable[Query]:
    """Those of one search begin at different keys, or are the same: two topics with one index have one query."""
    return {query.first(): query for query in queries}.values()


def _may_hold(epoch: EpochRow, query: Query) -> bool:
    return epoch.static_ids is None or query.static is None or query.static in epoch.static_ids
