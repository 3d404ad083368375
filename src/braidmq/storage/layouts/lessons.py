"""What a new generation of the `learned` layout would do better: which patterns are only there because some names came first.

The first names below a node are told apart, and each has patterns of its own; the names that came later share one. Once a level
is known to vary, the first names need not be told apart any more, where what is below them looks like what is below the others:

    devices/dev-1/temp, ... devices/dev-10/temp, devices/+/temp     ->     devices/+/temp

A filter with a wildcard visits each pattern with a seek in every epoch, so that fewer patterns are fewer seeks. Names with a
structure of their own below them stay told apart: to lose `temp` in the example would cost more than it gains.

A lesson can also be given: whoever has seen the whole history may know better which levels vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.lane.records.topic_trie import DEPTH_MAX, DOLLAR_ROOT, EXACT, NAME_BYTES_MAX, ROOT, TAIL, VARYING, Entry
from braidmq.mqtt.topics import check_filter

# Below this a new generation costs more than it gains.
_FEWER_MIN = 16
_TIMES_MIN = 2
# All of them are entered in one turn of the loop. Filters are planned for up to as many.
PATTERNS_MAX = 4096


class Place:
    """A node of the trie; `ends` is how many kinds of topics end here."""

    __slots__ = ("children", "ends", "varying")

    def __init__(self) -> None:
        self.children: dict[bytes, Place] = {}
        self.varying: Place | None = None
        self.ends: set[int] = set()

    def patterns(self) -> int:
        """The number of patterns at and below this place."""
        below = sum(child.patterns() for child in self.children.values())
        return len(self.ends) + below + (self.varying.patterns() if self.varying is not None else 0)

    def simplify(self) -> None:
        """Let names vary, from the deepest level up, whose structure the varying ones have too."""
        for child in self.children.values():
            child.simplify()
        if self.varying is None:
            return
        self.varying.simplify()
        for name, child in list(self.children.items()):
            if child.is_like(self.varying):
                child.end_in(self.varying)
                del self.children[name]

    def is_like(self, other: Place) -> bool:
        """Whether everything below has its place below the other one as well."""
        for name, child in self.children.items():
            place = other.children.get(name, other.varying)
            if place is None or not child.is_like(place):
                return False
        return self.varying is None or (other.varying is not None and self.varying.is_like(other.varying))

    def end_in(self, other: Place) -> None:
        """Let the topics of this place end where their like ends."""
        other.ends |= self.ends
        for name, child in self.children.items():
            place = other.children.get(name, other.varying)
            assert place is not None
            child.end_in(place)
        if self.varying is not None:
            assert other.varying is not None
            self.varying.end_in(other.varying)

    def has_wildcard(self) -> bool:
        """Whether a level varies here or below."""
        return self.varying is not None or any(child.has_wildcard() for child in self.children.values())


class Lesson(Struct, frozen=True):
    """Patterns before and after, and the entries that a trie begins with which knows it: kind, place of the parent, name.

    A parent is the place of an earlier entry in the list; ROOT and DOLLAR_ROOT are below zero, as `-1 - root`. Without thresholds
    they stay as they are.
    """

    before: int
    after: int
    entries: Sequence[tuple[int, int, bytes]]
    thresholds: tuple[int, ...] | None = None

    @property
    def is_worth_it(self) -> bool:
        """Whether a new generation would read a good deal better."""
        return self.before - self.after >= _FEWER_MIN and self.before >= self.after * _TIMES_MIN


def learn_from(entries: Iterable[Entry], entries_max: int) -> Lesson:
    """What the entries of a trie teach, in at most so many entries for the next one."""
    roots = _places(entries)
    before = sum(root.patterns() for root in roots.values())
    for root in roots.values():
        root.simplify()
    after = sum(root.patterns() for root in roots.values())
    return Lesson(before, after, _entries(roots, entries_max))


def lesson_of(patterns: Sequence[str], thresholds: Sequence[int] | None = None) -> Lesson:
    """The lesson that says which levels vary: the `+` of these topic filters. UsageError for what no trie can begin with."""
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise UsageError(f"{len(patterns)} patterns cannot be learned", f"give 1 to {PATTERNS_MAX} patterns")
    roots = {ROOT: Place(), DOLLAR_ROOT: Place()}
    for pattern in patterns:
        place = roots[DOLLAR_ROOT if pattern.startswith("$") else ROOT]
        for level in _levels(pattern):
            if level == b"+":
                place.varying = below = place.varying or Place()
            else:
                below = place.children.setdefault(level, Place())
            place = below
    entries = _entries(roots, PATTERNS_MAX * DEPTH_MAX, is_whole=True)
    return Lesson(0, len(patterns), entries, None if thresholds is None else tuple(thresholds))


def patterns_of(entries: Iterable[Entry]) -> list[str]:
    """The patterns of a trie as topic filters, in order; one that ends in `#` is of topics deeper than the trie."""
    found: list[str] = []
    todo = [(place, b"") for place in _places(entries).values()]
    while todo:
        place, above = todo.pop()
        found += [(above[:-1] if kind != TAIL else above + b"#").decode() for kind in place.ends]
        todo += [(child, above + name + b"/") for name, child in place.children.items()]
        if place.varying is not None:
            todo.append((place.varying, above + b"+/"))
    return sorted(found)


def _levels(pattern: str) -> list[bytes]:
    try:
        check_filter(pattern)
    except ProtocolViolation as problem:
        raise UsageError(f"the pattern {pattern!r} cannot be learned: {problem.detail}") from None
    levels = pattern.encode().split(b"/")
    if levels[-1] == b"#" or len(levels) > DEPTH_MAX or max(map(len, levels)) > NAME_BYTES_MAX:
        raise UsageError(
            f"the pattern {pattern!r} cannot be learned",
            f"use at most {DEPTH_MAX} levels, each of them + or a name of at most {NAME_BYTES_MAX} bytes",
        )
    return levels


def _places(entries: Iterable[Entry]) -> dict[int, Place]:
    """The roots of the tree that the entries make."""
    roots = {ROOT: Place(), DOLLAR_ROOT: Place()}
    places = dict(roots)
    for number, kind, parent, level in entries:
        above = places[parent]
        if kind == EXACT:
            places[number] = above.children[level] = Place()
        elif kind == VARYING:
            places[number] = above.varying = Place()
        else:
            above.ends.add(kind)
    return roots


def _entries(roots: dict[int, Place], entries_max: int, *, is_whole: bool = False) -> list[tuple[int, int, bytes]]:
    """The paths with varying levels (all of them if `is_whole`), nearest to the root first.

    Ends are not made, since nobody knows which are still used.
    """
    made: list[tuple[int, int, bytes]] = []
    todo = [(place, -1 - number, is_whole) for number, place in roots.items()]
    for place, parent, is_wanted in todo:
        below = [(EXACT, name, child) for name, child in place.children.items() if is_wanted or child.has_wildcard()]
        if place.varying is not None:
            below.insert(0, (VARYING, b"", place.varying))
        for kind, name, child in below:
            if len(made) >= entries_max:
                return made
            made.append((kind, parent, name))
            todo.append((child, len(made) - 1, is_wanted or kind == VARYING))
    return made
