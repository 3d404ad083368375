"""The `learned` layout: topics are indexed by patterns that a trie learns while records are written.

`braidmq.lane.records.topic_trie` has the trie and its rules; this module stores it. An entry of the trie is a row, whose key ends
in the entry's number, so that a parent is always read before its children. Numbers are never reused in a shard (S8); those from a
`next_id` on were learned after it, so a follower can drop entries that its leader never sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.topic_index import EVERY_INDEX, IndexCache
from braidmq.lane.records.topic_trie import DEPTH_MAX, EXACT, OVERFLOW, Entry, PatternTrie
from braidmq.storage.layouts.contract import CACHED_TOPICS_MAX, Query, Row, check_version
from braidmq.storage.layouts.lessons import Lesson

# How many names below a node are distinguished before the level counts as varying: at the first level, and at all others.
THRESHOLDS: Final = (100, 10)

# An entry takes about 180 bytes with a short name, and a name has at most 255 bytes: 12 MiB for a full trie, 28 at worst.
ENTRIES_MAX: Final = 65_536

# With more, one walk over everything costs less than that many seeks in each epoch.
QUERIES_MAX: Final = 4096

# The number of queries in cached plans, where a filter counts as one and a long one as several; one plan may exceed it.
_PLANNED_MAX: Final = 8192

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BIB")  # version, entries at most, number of thresholds; they follow, two bytes each
_ROW_VERSION: Final = 1
_ROW_KEY: Final = struct.Struct(">I")  # the entry's number
_ROW: Final = struct.Struct(">BBI")  # version, kind, number of the parent; the name of an exact edge follows


class LearnedLayout:
    """Indexes topics by learned patterns, with the names at the varying levels as hashes."""

    name = "learned"

    def __init__(
        self,
        thresholds: Sequence[int] = THRESHOLDS,
        *,
        entries_max: int = ENTRIES_MAX,
        rows: Iterable[Row] = (),
        next_id: int = 0,
        cached_topics_max: int = CACHED_TOPICS_MAX,
    ) -> None:
        are_sound = 1 <= len(thresholds) <= DEPTH_MAX and all(0 <= each <= 0xFFFF for each in thresholds)
        if not are_sound or not 0 <= entries_max < 1 << 24:
            raise UsageError(
                f"the learned layout cannot have thresholds {list(thresholds)} and {entries_max} entries",
                f"use 1 to {DEPTH_MAX} thresholds of 0 to 65535, and fewer than 16777216 entries",
            )
        self._thresholds = tuple(thresholds)
        self._trie = PatternTrie(self._thresholds, entries_max, next_id)
        self._trie.restore(sorted(map(entry_of, rows)))
        self._returned: list[Row] = []
        # A reader plans again for each epoch. Plans stay valid until something is learned, which uses a number.
        self._plans: dict[str, list[Query]] = {}
        self._planned = 0
        self._planned_at = 0
        self.index = IndexCache(self._trie.index, cached_topics_max).index

    @classmethod
    def from_parameters(cls, parameters: bytes, rows: Iterable[Row] = (), next_id: int = 0) -> LearnedLayout:
        """The layout with these parameters and rows; with the default parameters if they are empty."""
        if not parameters:
            return cls(rows=rows, next_id=next_id)
        check_version(cls.name, parameters, _VERSION)
        _, entries_max, count = _HEAD.unpack_from(parameters) if len(parameters) >= _HEAD.size else (0, 0, 0)
        if count == 0 or len(parameters) != _HEAD.size + 2 * count:
            raise Corruption("the parameters of a learned layout cannot be read")
        return cls(struct.unpack_from(f">{count}H", parameters, _HEAD.size), entries_max=entries_max, rows=rows, next_id=next_id)

    @property
    def next_id(self) -> int:
        """The number that the next entry of the trie will get."""
        return self._trie.next_id

    @property
    def entries(self) -> int:
        """The number of entries learned, at most `entries_max`."""
        return self._trie.entries

    @property
    def entries_max(self) -> int:
        """The number of entries that can be learned."""
        return self._trie.entries_max

    def describe(self) -> str:
        """The parameters, and the number of entries learned."""
        names = ", ".join(map(str, self._thresholds))
        return f"{names} names per level, {self.entries} of {self.entries_max} entries"

    def parameters(self) -> bytes:
        """The thresholds and the bound of the trie."""
        count = len(self._thresholds)
        return _HEAD.pack(_VERSION, self._trie.entries_max, count) + struct.pack(f">{count}H", *self._thresholds)

    def take_rows(self) -> list[Row]:
        """The rows learned and returned since the last call."""
        if not self._trie.fresh and not self._returned:
            return []
        rows = [*self._returned, *map(_row, self._trie.fresh)]
        self._trie.fresh = []
        self._returned = []
        return rows

    def return_rows(self, rows: Iterable[Row]) -> None:
        """Keep the rows of a batch that was not written: the trie still has their entries, so the next batch needs them."""
        self._returned.extend(rows)

    def plan(self, topic_filter: str) -> list[Query]:
        """A query for each static part that may have topics of the filter; if there are too many, one for everything."""
        if self._planned_at != self.next_id or self._planned > _PLANNED_MAX:
            self._plans = {}
            self._planned = 0
            self._planned_at = self.next_id
        plan = self._plans.get(topic_filter)
        if plan is None:
            plan = self._plans[topic_filter] = self._make_plan(topic_filter)
            self._planned += 1 + len(plan) + len(topic_filter) // 64
        return plan

    def _make_plan(self, topic_filter: str) -> list[Query]:
        levels = topic_filter.encode().split(b"/")
        is_open = levels[-1] == b"#"
        if is_open:
            levels.pop()
            if levels in ([], [b"+"]):
                return [EVERY_INDEX]
        queries = self._trie.plan(levels, is_open, QUERIES_MAX)
        return [EVERY_INDEX] if queries is None else [*queries]

    def inherit(self, parameters: bytes = b"") -> LearnedLayout:
        """A layout that starts with the paths with varying levels, and nothing else."""
        heir = LearnedLayout.from_parameters(parameters or self.parameters(), next_id=self.next_id)
        self._trie.bequeath(heir._trie)
        return heir

    def inherit_lesson(self, lesson: Lesson) -> LearnedLayout:
        """A layout for a new generation that starts with a lesson; raises UsageError if its thresholds are invalid."""
        first = self.next_id
        rows = [
            _row((first + place, kind, -1 - parent if parent < 0 else first + parent, name))
            for place, (kind, parent, name) in enumerate(lesson.entries[: OVERFLOW - first])
        ]
        heir = LearnedLayout(lesson.thresholds or self._thresholds, entries_max=self.entries_max, rows=rows, next_id=first)
        heir._returned.extend(rows)
        return heir


def _row(entry: Entry) -> Row:
    number, kind, parent, level = entry
    return _ROW_KEY.pack(number), _ROW.pack(_ROW_VERSION, kind, parent) + level


def entry_of(row: Row) -> Entry:
    """The entry of the trie in a row; raises UsageError for a newer format, Corruption for an invalid row."""
    key, value = row
    check_version("row of the learned", value, _ROW_VERSION)
    if len(key) != _ROW_KEY.size or len(value) < _ROW.size:
        raise Corruption(f"a row of a topic trie cannot be read: {key.hex()} {value.hex()}")
    _, kind, parent = _ROW.unpack_from(value)
    level = value[_ROW.size :]
    if level and kind != EXACT:
        raise Corruption(f"a row of a topic trie has an unexpected name: {key.hex()} {value.hex()}")
    return _ROW_KEY.unpack(key)[0], kind, parent, level
