"""Spark expressions over topics and payloads, shared by jobs. All are plain SQL functions: no Python runs per row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.flight.times import to_bound
from braidmq.spark.jobs.framework.patterns import OTHER, Patterns, varying_levels

STORED = "store_timestamp"
PUBLISHED = "publish_timestamp"
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def levels_of(topic: Column) -> Column:
    """The levels of a topic. As a separate column, they are split once per row instead of once per pattern."""
    return F.split(topic, "/", -1)


def pattern_of(levels: Column, patterns: Patterns) -> Column:
    """The pattern that a topic with these levels belongs to."""
    return _choose(patterns, levels, F.lit, F.lit(OTHER)).alias("pattern")


def device_of(topic: Column, patterns: Patterns, level: int | None = None) -> Column:
    """What distinguishes the topics of a pattern: the names at its varying levels, joined; or one level, counted from 1."""
    levels = levels_of(topic)
    if level is not None:
        return F.coalesce(F.get(levels, F.lit(level - 1)), F.lit("")).alias("device")

    def names(pattern: str) -> Column:
        chosen = [F.get(levels, F.lit(place)) for place in varying_levels(pattern)]
        return F.concat_ws("/", *chosen) if chosen else F.lit("")

    return _choose(patterns, levels, names, topic).alias("device")


def _choose(patterns: Patterns, levels: Column, value_of: Callable[[str], Column], otherwise: Column) -> Column:
    chosen: Column | None = None
    for each in patterns:
        condition, value = _matches(levels, each), value_of(each)
        chosen = F.when(condition, value) if chosen is None else chosen.when(condition, value)
    return otherwise if chosen is None else chosen.otherwise(otherwise)


def _matches(levels: Column, pattern: str) -> Column:
    wanted = pattern.split("/")
    is_open = wanted[-1] == "#"
    if is_open:
        wanted.pop()
    size = F.size(levels) >= len(wanted) if is_open else F.size(levels) == len(wanted)
    names = [F.get(levels, F.lit(place)) == F.lit(name) for place, name in enumerate(wanted) if name != "+"]
    # [MQTT-4.7.2-1]: a wildcard at the first level does not match names that begin with $.
    starts_wild = not wanted or wanted[0] == "+"
    dollar = [~F.startswith(F.get(levels, F.lit(0)), F.lit("$"))] if starts_wild else []
    return reduce(lambda one, other: one & other, [size, *names, *dollar])


def matches_filter(topic: Column, filters: Sequence[str]) -> Column:
    """Whether a topic matches one of some topic filters."""
    levels = levels_of(topic)
    return reduce(lambda one, other: one | other, [_matches(levels, each) for each in filters])


def moment(text: str) -> Column:
    """A time in the format of `--from` and `--to`: RFC 3339, milliseconds since 1970, or `-24h`. Raises UsageError."""
    bound = to_bound(text, lambda: time.time_ns() // 1000)
    if bound.time is None:
        raise UsageError(f"{text!r} is not a time", "write 2024-03-01T12:00:00Z, or -24h for that long ago")
    return F.timestamp_micros(F.lit(bound.time))


def event_time(chosen: str) -> Column:
    """The event time: `store_timestamp`, `publish_timestamp` (if unknown, the time it was stored), or a field of a JSON payload.

    A field is written `$.ts` for an ISO time, `$.ts:ms` (`:s`, `:us`) for a number since 1970. It is null if the field is
    missing.
    """
    if chosen == STORED:
        return F.col(STORED)
    if chosen == PUBLISHED:
        return F.coalesce(F.col(PUBLISHED), F.col(STORED))
    path, _, unit = chosen.partition(":")
    if not path.startswith("$.") or unit not in ("", *_UNITS):
        hint = f"write {STORED}, {PUBLISHED}, or a field of a JSON payload such as $.ts or $.ts:ms"
        raise UsageError(f"{chosen!r} is not an event time", hint)
    text = F.get_json_object(payload_text(), path)
    if not unit:
        return F.try_to_timestamp(text)
    return F.timestamp_micros((text.try_cast("decimal(30,6)") * F.lit(_UNITS[unit])).try_cast("bigint"))


def payload_text() -> Column:
    """The payload as text; null if it is not UTF-8."""
    return F.try_validate_utf8(F.col("payload").cast("string"))
