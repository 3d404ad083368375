"""Topic patterns: topic filters in which `+` marks a level that varies. They determine the table partition of a topic.

    plant/+/+/temperature
    plant/+/alarm
    $SYS/#

A topic belongs to the most specific pattern that matches it: at the first level where two patterns differ, a name wins over `+`,
and `+` over `#`. A topic that matches no pattern belongs to `#`. The order in which patterns are given does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.topics import check_filter, matches

# For topics that match no other pattern.
OTHER: Final = "#"
# Each pattern means a directory per day, and a branch of an expression that is evaluated for every row.
PATTERNS_MAX: Final = 1000


class Patterns(msgspec.Struct, frozen=True):
    """Patterns, the most specific first; created by `make_patterns`."""

    filters: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.filters)

    def __iter__(self) -> Iterator[str]:
        return iter(self.filters)

    def of(self, topic: str) -> str:
        """The pattern that a topic belongs to."""
        return next((each for each in self.filters if matches(each, topic)), OTHER)

    def write(self, file: Path) -> None:
        """Write a file that `read_patterns` reads, atomically."""
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text("".join(f"{each}\n" for each in self.filters))
        partial.replace(file)


def make_patterns(filters: Iterable[str]) -> Patterns:
    """Sort patterns and remove duplicates; raises UsageError for an invalid topic filter."""
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
    """Read patterns from a file, one per line; empty lines and lines that begin with `//` are skipped. Raises UsageError."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except OSError as problem:
        raise UsageError(
            f"the patterns in {file} cannot be read: {problem.strerror}", "give a file with one pattern per line"
        ) from None
    return make_patterns(line for line in lines if line and not line.startswith("//"))


def specificity(pattern: str) -> list[tuple[int, str]]:
    """The sort key of patterns."""
    return [({"+": 1, "#": 2}.get(level, 0), level) for level in pattern.split("/")]


def varying_levels(pattern: str) -> list[int]:
    """The indexes of the varying levels."""
    return [place for place, level in enumerate(pattern.split("/")) if level == "+"]
