"""How a new generation of the `learned` layout could improve: which patterns exist only because some names came first.

The first names below a node are distinguished, and each has patterns of its own; later names share one. Once a level is known
to vary, the first names no longer need to be distinguished if the levels below them look like those below the others:

    devices/dev-1/temp, ... devices/dev-10/temp, devices/+/temp     ->     devices/+/temp

A filter with a wildcard visits each pattern with a seek in every epoch, so fewer patterns mean fewer seeks. Names with a
structure of their own below them stay distinguished: losing `temp` in the example would cost more than it gains.

A lesson can also come from outside: a job that has read the whole history may know better which levels vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.lane.records.topic_trie import DEPTH_MAX, DOLLAR_ROOT, EXACT, NAME_BYTES_MAX, ROOT, TAIL, VARYING, Entry
from braidmq.mqtt.topics import check_filter

# With a smaller gain, a new generation costs more than it saves.
_FEWER_MIN = 16
_TIMES_MIN = 2
# All of them are added in one turn of the loop, and filters are planned for at most this many.
PATTERNS_MAX = 4096


class LessonNode:
    """A node of the trie; `ends` is how many kinds of topics end here."""

    __slots__ = ("children", "ends", "varying")

    def __init__(self) -> None:
        self.children: dict[bytes, LessonNode] = {}
        self.varying: LessonNode | None = None
        self.ends: set[int] = set()

    def patterns(self) -> int:
        """The number of patterns at and below this place."""
        below = sum(child.patterns() for child in self.children.values())
        return len(self.ends) + below + (self.varying.patterns() if self.varying is not None else 0)

    def simplify(self) -> None:
        """Let names vary, from the deepest level up, if the varying ones have the same structure."""
        for child in self.children.values():
            child.simplify()
        if self.varying is None:
            return
        self.varying.simplify()
        for name, child in list(self.children.items()):
            if child.is_like(self.varying):
                child.end_in(self.varying)
                del self.children[name]

    def is_like(self, other: LessonNode) -> bool:
        """Whether the other node has everything that is below this one."""
        for name, child in self.children.items():
            place = other.children.get(name, other.varying)
            if place is None or not child.is_like(place):
                return False
        return self.varying is None or (other.varying is not None and self.varying.is_like(other.varying))

    def end_in(self, other: LessonNode) -> None:
        """Let the topics of this node end in the corresponding nodes of the other."""
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
    """Patterns before and after, and the entries of a trie that starts with the lesson: kind, index of the parent, name.

    A parent is the index of an earlier entry in the list; ROOT and DOLLAR_ROOT are negative, `-1 - root`. Without thresholds
    the current ones stay.
    """

    before: int
    after: int
    entries: Sequence[tuple[int, int, bytes]]
    thresholds: tuple[int, ...] | None = None

    @property
    def is_worth_it(self) -> bool:
        """Whether a new generation would read much faster."""
        return self.before - self.after >= _FEWER_MIN and self.before >= self.after * _TIMES_MIN


def learn_from(entries: Iterable[Entry], entries_max: int) -> Lesson:
    """The lesson from the entries of a trie, with at most ``entries_max`` entries for the next one."""
    roots = _places(entries)
    before = sum(root.patterns() for root in roots.values())
    for root in roots.values():
        root.simplify()
    after = sum(root.patterns() for root in roots.values())
    return Lesson(before, after, _entries(roots, entries_max))


def lesson_of(patterns: Sequence[str], thresholds: Sequence[int] | None = None) -> Lesson:
    """The lesson that the `+` levels of these topic filters vary. Raises UsageError for patterns that no trie can start with."""
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise UsageError(f"{len(patterns)} patterns cannot be learned", f"give 1 to {PATTERNS_MAX} patterns")
    roots = {ROOT: LessonNode(), DOLLAR_ROOT: LessonNode()}
    for pattern in patterns:
        place = roots[DOLLAR_ROOT if pattern.startswith("$") else ROOT]
        for level in _levels(pattern):
            if level == b"+":
                place.varying = below = place.varying or LessonNode()
            else:
                below = place.children.setdefault(level, LessonNode())
            place = below
    entries = _entries(roots, PATTERNS_MAX * DEPTH_MAX, is_whole=True)
    return Lesson(0, len(patterns), entries, None if thresholds is None else tuple(thresholds))


def patterns_of(entries: Iterable[Entry]) -> list[str]:
    """The patterns of a trie as topic filters, in order; one that ends in `#` stands for topics deeper than the trie."""
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


def _places(entries: Iterable[Entry]) -> dict[int, LessonNode]:
    """The roots of the tree of these entries."""
    roots = {ROOT: LessonNode(), DOLLAR_ROOT: LessonNode()}
    places = dict(roots)
    for number, kind, parent, level in entries:
        above = places[parent]
        if kind == EXACT:
            places[number] = above.children[level] = LessonNode()
        elif kind == VARYING:
            places[number] = above.varying = LessonNode()
        else:
            above.ends.add(kind)
    return roots


def _entries(roots: dict[int, LessonNode], entries_max: int, *, is_whole: bool = False) -> list[tuple[int, int, bytes]]:
    """The paths with varying levels (all of them if `is_whole`), nearest to the root first.

    Ends are omitted, since it is unknown which are still used.
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
