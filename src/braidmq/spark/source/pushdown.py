"""Filter pushdown: the service applies filters of a query, so fewer records leave the broker. Needs Spark 4.1.

Pushed down completely: `topic = `, `topic IN`, a prefix of whole levels, and comparisons of `store_timestamp` and `position`,
which are the same number. A prefix that ends within a level narrows the read, and Spark filters the rest. All other filters are
left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from braidmq.base.errors import ProtocolViolation
from braidmq.flight.times import to_microseconds
from braidmq.mqtt.topics import check_filter, check_topic_name, matches, overlaps

# The service searches for each topic separately; a longer list is better read once and filtered by Spark.
_TOPICS_MAX: Final = 100
_POSITIONS: Final = ("position", "store_timestamp")


class Pushed(msgspec.Struct, frozen=True):
    """The narrowed read: filters (empty: nothing), positions above `after` and up to `until`."""

    filters: list[str]
    after: int = 0
    until: int | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether positions are narrowed at all."""
        return self.after > 0 or self.until is not None


def push(filters: Sequence[str], offered: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """Narrow a read of these topic filters by the offered ones; also returns those that Spark must apply itself."""
    pushed, left = Pushed(list(filters)), []
    for each in offered:
        pushed, is_exact = _narrow(pushed, each)
        if not is_exact:
            left.append(each)
    return pushed, left


def _narrow(pushed: Pushed, offered: Filter) -> tuple[Pushed, bool]:
    match offered:
        case IsNotNull((name,)) if name in ("topic", *_POSITIONS):
            return pushed, True  # these columns are never null
        case EqualTo(("topic",), str() as topic) | EqualNullSafe(("topic",), str() as topic):
            return _to_topics(pushed, [topic]), True
        case In(("topic",), topics) if len(topics) <= _TOPICS_MAX and all(isinstance(each, str) for each in topics):
            return _to_topics(pushed, topics), True
        case StringStartsWith(("topic",), str() as prefix):
            return _to_prefix(pushed, prefix)
        case EqualTo((name,), value) | EqualNullSafe((name,), value) if (at := _position(name, value)) is not None:
            return _to_range(pushed, at - 1, at), True
        case GreaterThan((name,), value) if (at := _position(name, value)) is not None:
            return _to_range(pushed, at, None), True
        case GreaterThanOrEqual((name,), value) if (at := _position(name, value)) is not None:
            return _to_range(pushed, at - 1, None), True
        case LessThan((name,), value) if (at := _position(name, value)) is not None:
            return _to_range(pushed, 0, at - 1), True
        case LessThanOrEqual((name,), value) if (at := _position(name, value)) is not None:
            return _to_range(pushed, 0, at), True
    return pushed, False


def _position(name: str, value: Any) -> int | None:
    if name == "position" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if name == "store_timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return to_microseconds(value)
    return None


def _to_range(pushed: Pushed, after: int, until: int | None) -> Pushed:
    both = [each for each in (pushed.until, until) if each is not None]
    return msgspec.structs.replace(pushed, after=max(pushed.after, after), until=min(both, default=None))


def _to_topics(pushed: Pushed, topics: Iterable[str]) -> Pushed:
    kept = [topic for topic in dict.fromkeys(topics) if _is_topic(topic) and any(matches(each, topic) for each in pushed.filters)]
    return msgspec.structs.replace(pushed, filters=kept)


def _to_prefix(pushed: Pushed, prefix: str) -> tuple[Pushed, bool]:
    levels, slash, rest = prefix.rpartition("/")
    # `+/#` matches one or more levels, even empty ones: exactly what can follow a slash.
    narrower = f"{levels}/+/#"
    if not slash or not _is_filter(narrower) or "+" in levels or "#" in levels:
        return pushed, False
    both = [found for each in pushed.filters if (found := intersect(each, narrower)) is not None]
    if not all(map(_is_filter, both)):
        return pushed, False
    return msgspec.structs.replace(pushed, filters=list(dict.fromkeys(both))), not rest


def intersect(a: str, b: str) -> str | None:
    """The filter of the topics that both filters match; None if there are none."""
    if not overlaps(a, b):
        return None
    levels_a, levels_b = a.split("/"), b.split("/")
    found: list[str] = []
    for index in range(max(len(levels_a), len(levels_b))):
        # From its # on, a filter matches whatever the other one requires, including nothing.
        if levels_a[index : index + 1] == ["#"]:
            return "/".join([*found, *levels_b[index:]])
        if levels_b[index : index + 1] == ["#"]:
            return "/".join([*found, *levels_a[index:]])
        found.append(levels_b[index] if levels_a[index] == "+" else levels_a[index])
    return "/".join(found)


def _is_topic(text: str) -> bool:
    try:
        check_topic_name(text)
    except ProtocolViolation:
        return False
    return True


def _is_filter(text: str) -> bool:
    try:
        check_filter(text)
    except ProtocolViolation:
        return False
    return True
