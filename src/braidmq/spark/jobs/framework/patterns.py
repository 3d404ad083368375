"""Topic patterns: topic filters whose `+` are the levels that vary. They say which table partition a topic belongs to.

    plant/+/+/temperature
    plant/+/alarm
    $SYS/#

A topic belongs to the most specific pattern that matches it: at the first level where two patterns differ, a name wins over `+`,
and `+` over `#`. What matches none belongs to `#`. So the order in which patterns are given means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.topics import check_filter, matches

# What belongs to no pattern.
OTHER: Final = "#"
# Each becomes a directory for each day, and a branch of an expression that every row goes through.
PATTERNS_MAX: Final = 1000


class Patterns(msgspec.Struct, frozen=True):
    """Patterns, the most specific first; made by `make_patterns`."""

    filters: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.filters)

    def __iter__(self) -> Iterator[str]:
        return iter(self.filters)

    def of(self, topic: str) -> str:
        """The pattern that a topic belongs to."""
        return next((each for each in self.filters if matches(each, topic)), OTHER)

    def write(self, file: Path) -> None:
        """Write a file that `read_patterns` reads; it is there whole or not at all."""
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text("".join(f"{each}\n" for each in self.filters))
        partial.replace(file)


def make_patterns(filters: Iterable[str]) -> Patterns:
    """The patterns in their order, each once; raises UsageError for one that is no topic filter."""
    chosen = set()
    for each in filters:
        try:
            check_filter(each)
        except ProtocolViolation as problem:
            raise UsageError(
                f"the pattern {each!r} cannot be used: {problem.detail}", "a pattern is an MQTT topic filter"
            ) from None
        if each.startswith(("$share/", "$exclusive/", "$replay/")):
            raise UsageError(f"the pattern {each!r} is a special subscription", "use only the topic filter inside it")
        if each != OTHER:
            chosen.add(each)
    if len(chosen) > PATTERNS_MAX:
        raise UsageError(f"{len(chosen)} patterns are too many", f"give at most {PATTERNS_MAX}; other topics belong to {OTHER}")
    return Patterns(tuple(sorted(chosen, key=specificity)))


def read_patterns(file: Path) -> Patterns:
    """The patterns in a file: one on each line, empty lines and those that begin with `//` apart; raises UsageError."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except OSError as problem:
        raise UsageError(
            f"the patterns in {file} cannot be read: {problem.strerror}", "give a file with one pattern per line"
        ) from None
    return make_patterns(line for line in lines if line and not line.startswith("//"))


def specificity(pattern: str) -> list[tuple[int, str]]:
    """What patterns are sorted by."""
    return [({"+": 1, "#": 2}.get(level, 0), level) for level in pattern.split("/")]


def varying_levels(pattern: str) -> list[int]:
    """The places of the varying levels, counted from 0."""
    return [place for place, level in enumerate(pattern.split("/")) if level == "+"]
