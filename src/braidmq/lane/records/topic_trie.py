"""A trie that learns which levels of the topics vary, and gives each pattern of the others a number.

The first names seen below a node become *exact* edges. A node that has reached its threshold of them gets a *varying* edge,
which every new name takes from then on. The path of a topic, without the names at varying edges, is its static part, with an
id of four bytes; the names are in the index as hashes:

    static id (4) | hash of a varying level (4) ...

Rules, and why the index of a topic never changes:

- Edges are only added. An exact edge takes precedence over the varying one, and a node with a varying edge gets no further exact
  ones. So a name always takes the edge that it took when it was first seen.
- The end of a topic is an entry of its own, which has the static id; it is never a wildcard.
- Topics that begin with `$` have a root of their own: wildcards at the first level do not match them.
- Levels below the deepest one of the trie are joined and always vary: the *tail*.
- Names of more than 255 bytes always vary.
- The trie is bounded. From three quarters of the bound on, new names vary at once, regardless of the threshold. At the bound,
  nothing more is learned: topics that fit no pattern *overflow*, with reserved ids that only tell the number of levels, and all
  levels vary.

The state depends only on the entries, so a trie restored from the same entries is the same trie.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from braidmq.base.errors import Corruption
from braidmq.lane.records.topic_index import MaskQuery, level_key

# Kinds of entries, as stored on disk.
EXACT = 0
VARYING = 1
END = 2
TAIL = 3

# Numbers of the roots; entries have numbers from FIRST_ID up to the overflow ids, which end in the number of levels.
ROOT = 0
DOLLAR_ROOT = 1
FIRST_ID = 2
OVERFLOW = 0xFFFFFF00
DOLLAR_OVERFLOW = 0xFFFFFF80

DEPTH_MAX = 16
NAME_BYTES_MAX = 255

_FREE = b"\0\0\0\0"
_FIXED = b"\xff\xff\xff\xff"

# number, kind, number of the parent, name (exact edges only)
Entry = tuple[int, int, int, bytes]


class PatternNode:
    """A node of the trie. `end` and `tail` are static ids, empty until a topic needs one."""

    __slots__ = ("children", "end", "number", "tail", "varying")

    def __init__(self, number: int) -> None:
        self.number = number
        self.children: dict[bytes, PatternNode] = {}
        self.varying: PatternNode | None = None
        self.end = b""
        self.tail = b""


class PatternTrie:
    """Indexes topics by learned patterns. `fresh` has the entries added since its owner last emptied it."""

    __slots__ = ("_dollar_root", "_eager_from", "_root", "_thresholds", "entries", "entries_max", "fresh", "next_id")

    def __init__(self, thresholds: tuple[int, ...], entries_max: int, next_id: int) -> None:
        self._thresholds = thresholds
        self._root = PatternNode(ROOT)
        self._dollar_root = PatternNode(DOLLAR_ROOT)
        self._eager_from = entries_max - entries_max // 4
        self.entries = 0
        self.entries_max = entries_max
        self.next_id = max(next_id, FIRST_ID)
        self.fresh: list[Entry] = []

    def is_full(self) -> bool:
        """Whether nothing more can be learned; it never becomes False again."""
        return self.entries >= self.entries_max or self.next_id >= OVERFLOW

    def index(self, topic: bytes) -> bytes:
        """The index of a topic; learns its structure if it is new."""
        levels = topic.split(b"/", DEPTH_MAX)
        has_tail = len(levels) > DEPTH_MAX
        depth_end = DEPTH_MAX if has_tail else len(levels)
        node = self._dollar_root if topic.startswith(b"$") else self._root
        hashes = b""
        for depth in range(depth_end):
            level = levels[depth]
            below = node.children.get(level)
            if below is None:
                below = node.varying
                if below is None:
                    below = self._learn(node, level, depth)
                    if below is None:
                        return self._overflow(levels)
                if below is node.varying:
                    hashes += level_key(level)
            node = below
        static = node.tail if has_tail else node.end
        if not static:
            static = self._learn_end(node, has_tail)
            if not static:
                return self._overflow(levels)
        if has_tail:
            hashes += level_key(levels[DEPTH_MAX])
        return static + hashes if hashes else static

    def _learn(self, node: PatternNode, level: bytes, depth: int) -> PatternNode | None:
        if self.is_full():
            return None
        thresholds = self._thresholds
        room = thresholds[depth if depth < len(thresholds) else -1] if self.entries < self._eager_from else 0
        if len(node.children) >= room or len(level) > NAME_BYTES_MAX:
            below = node.varying = PatternNode(self._enter(VARYING, node, b""))
        else:
            below = node.children[level] = PatternNode(self._enter(EXACT, node, level))
        return below

    def _learn_end(self, node: PatternNode, has_tail: bool) -> bytes:
        if self.is_full():
            return b""
        if has_tail:
            node.tail = self._enter(TAIL, node, b"").to_bytes(4, "big")
            return node.tail
        node.end = self._enter(END, node, b"").to_bytes(4, "big")
        return node.end

    def _enter(self, kind: int, parent: PatternNode, level: bytes) -> int:
        number = self.next_id
        self.next_id = number + 1
        self.entries += 1
        self.fresh.append((number, kind, parent.number, level))
        return number

    def _overflow(self, levels: list[bytes]) -> bytes:
        static = (DOLLAR_OVERFLOW if levels[0].startswith(b"$") else OVERFLOW) + len(levels)
        return static.to_bytes(4, "big") + b"".join([level_key(level) for level in levels])

    def plan(self, levels: list[bytes], is_open: bool, queries_max: int) -> list[MaskQuery] | None:
        """The queries of a filter, one for each static id; None if they would be more than `queries_max`.

        `levels` are those of the filter, `is_open` means that a `#` followed them; there is at least one.
        """
        root = self._dollar_root if levels[0].startswith(b"$") else self._root
        # The walk proceeds with groups of nodes that share the pattern and the mask of the varying levels above them.
        groups = [([root], b"", b"")]
        for level in levels[:DEPTH_MAX]:
            reached: list[tuple[list[PatternNode], bytes, bytes]] = []
            is_any = level == b"+"
            key, bits = (_FREE, _FREE) if is_any else (level_key(level), _FIXED)
            for nodes, pattern, mask in groups:
                exact, varying = _below(nodes, is_any, level)
                if exact:
                    reached.append((exact, pattern, mask))
                if varying:
                    reached.append((varying, pattern + key, mask + bits))
            groups = reached
        found: list[MaskQuery] = []
        tail_key, tail_bits = _tail(levels, is_open)
        has_end, has_tail = len(levels) <= DEPTH_MAX, is_open or len(levels) > DEPTH_MAX
        while groups:
            nodes, pattern, mask = groups.pop()
            for node in nodes:
                if node.end and has_end:
                    found.append(MaskQuery(node.end + pattern, _FIXED + mask))
                if node.tail and has_tail:
                    found.append(MaskQuery(node.tail + pattern + tail_key, _FIXED + mask + tail_bits))
                if len(found) > queries_max:
                    return None
            if is_open:
                exact, varying = _below(nodes, True, b"")
                if exact:
                    groups.append((exact, pattern, mask))
                if varying:
                    groups.append((varying, pattern + _FREE, mask + _FREE))
        if self.is_full():
            found.extend(_overflow_queries(levels, is_open))
        found.sort(key=attrgetter("pattern"))
        return found if len(found) <= queries_max else None

    def restore(self, entries: Iterable[Entry]) -> None:
        """Add entries that were `fresh` in another trie with the same thresholds and bound, in the order of their numbers."""
        # Each with its depth: corrupt rows must not create a trie deeper than walks expect.
        nodes = {ROOT: (self._root, 0), DOLLAR_ROOT: (self._dollar_root, 0)}
        for number, kind, parent_number, level in entries:
            if parent_number not in nodes or number in nodes or not FIRST_ID <= number < OVERFLOW:
                raise Corruption(f"entry {number} of a topic trie cannot be below {parent_number}")
            parent, depth = nodes[parent_number]
            node = PatternNode(number)
            if kind == EXACT and depth < DEPTH_MAX and level not in parent.children:
                parent.children[level] = node
                nodes[number] = node, depth + 1
            elif kind == VARYING and depth < DEPTH_MAX and parent.varying is None:
                parent.varying = node
                nodes[number] = node, depth + 1
            elif kind == END and not parent.end:
                parent.end = number.to_bytes(4, "big")
            elif kind == TAIL and not parent.tail:
                parent.tail = number.to_bytes(4, "big")
            else:
                raise Corruption(f"entry {number} of a topic trie is too deep, a duplicate or of an unknown kind ({kind})")
            self.entries += 1
            self.next_id = max(self.next_id, number + 1)

    def bequeath(self, heir: PatternTrie) -> None:
        """Copy the paths with a varying edge to an empty trie, nearest to the root first, up to half of its bound.

        Ends are not copied: patterns that are no longer used cost the heir's readers nothing.
        """
        wild: set[int] = set()
        for root in (self._root, self._dollar_root):
            _find_wild(root, False, wild)
        pairs = [(self._root, heir._root), (self._dollar_root, heir._dollar_root)]
        for node, copy in pairs:
            if heir.entries >= heir.entries_max // 2 or heir.is_full():
                return
            if node.varying is not None:
                copy.varying = PatternNode(heir._enter(VARYING, copy, b""))
                pairs.append((node.varying, copy.varying))
            for level, child in node.children.items():
                if child.number in wild and heir.entries < heir.entries_max // 2:
                    twin = copy.children[level] = PatternNode(heir._enter(EXACT, copy, level))
                    pairs.append((child, twin))


def _below(nodes: list[PatternNode], is_any: bool, level: bytes) -> tuple[list[PatternNode], list[PatternNode]]:
    """The nodes that exact and that varying edges lead to: for any name, or for the name of a level."""
    exact: list[PatternNode] = []
    varying: list[PatternNode] = []
    for node in nodes:
        if is_any:
            exact.extend(node.children.values())
        else:
            child = node.children.get(level)
            if child is not None:
                exact.append(child)
                continue
        if node.varying is not None:
            varying.append(node.varying)
    return exact, varying


def _find_wild(node: PatternNode, is_below_varying: bool, wild: set[int]) -> bool:
    # The recursion is as deep as the trie, at most DEPTH_MAX.
    is_wild = is_below_varying or node.varying is not None
    if node.varying is not None:
        _find_wild(node.varying, True, wild)
    for child in node.children.values():
        is_wild = _find_wild(child, is_below_varying, wild) or is_wild
    if is_wild:
        wild.add(node.number)
    return is_wild


def _tail(levels: list[bytes], is_open: bool) -> tuple[bytes, bytes]:
    tail = levels[DEPTH_MAX:]
    if is_open or not tail or b"+" in tail:
        return _FREE, _FREE
    return level_key(b"/".join(tail)), _FIXED


def _overflow_queries(levels: list[bytes], is_open: bool) -> list[MaskQuery]:
    named = min(len(levels), DEPTH_MAX + 1)
    base = DOLLAR_OVERFLOW if levels[0].startswith(b"$") else OVERFLOW
    pattern = mask = b""
    for level in levels[:DEPTH_MAX]:
        is_free = level == b"+"
        pattern += _FREE if is_free else level_key(level)
        mask += _FREE if is_free else _FIXED
    if named > DEPTH_MAX:
        tail_key, tail_bits = _tail(levels, is_open)
        pattern += tail_key
        mask += tail_bits
    depths = range(named, DEPTH_MAX + 2) if is_open else (named,)
    return [MaskQuery((base + depth).to_bytes(4, "big") + pattern, _FIXED + mask) for depth in depths]
