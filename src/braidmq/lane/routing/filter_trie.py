"""A trie of wildcard filters with the subscriptions of each; finds those that match a topic.

Matching walks down all paths that fit the topic. The cost is bounded by the number and the bytes of the different filters whose
beginning fits: levels on which filters neither end nor branch are compared as one piece, and a piece with too many levels to fit
is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from braidmq.lane.routing.subscription import Subscription

# Most nodes have one of few short labels; the shared ones stay in memory.
_SHARED_LABELS_MAX = 1000
_SHARED_LABEL_BYTES_MAX = 100
PLUS = 0x2B
SLASH = 0x2F


# The subscriptions of a filter: a single one itself, several in a dict by their flows.
Held: TypeAlias = "Subscription | dict[object, Subscription] | None"


class TrieNode:
    """A node where wildcard filters end or branch.

    Levels on which they do neither have no nodes of their own: the levels between a node and its parent, except the one that
    selects the node there, are its ``label``, with a slash before each. So there are at most twice as many nodes as filters.
    """

    __slots__ = ("children", "depth", "here", "label", "multi", "single")

    def __init__(self, label: bytes, depth: int) -> None:
        self.label = label
        self.depth = depth  # the number of levels up to here, including its own
        # Most nodes need only one of these, so they are created on first use.
        self.children: dict[bytes, TrieNode] | None = None
        self.single: TrieNode | None = None  # "+"
        self.here: Held = None  # of filters that end at this level
        self.multi: Held = None  # of filters that end in "#" below it

    def below(self, level: bytes) -> TrieNode | None:
        """The child for this level of a filter."""
        if level == b"+":
            return self.single
        return None if self.children is None else self.children.get(level)

    def put_below(self, level: bytes, node: TrieNode | None) -> None:
        """Set the child for a level; None removes it."""
        if level == b"+":
            self.single = node
        elif node is not None:
            if self.children is None:
                self.children = {}
            self.children[level] = node
        elif self.children is not None:
            del self.children[level]
            if not self.children:
                self.children = None

    def is_leaf(self) -> bool:
        """Whether it has no children."""
        return self.single is None and not self.children

    def only_below(self) -> bytes | None:
        """The level of its only child; None if filters end here, or it has several children."""
        count = 0 if self.children is None else len(self.children)
        if self.here is not None or self.multi is not None or count + (self.single is not None) != 1:
            return None
        if self.single is not None or self.children is None:
            return b"+"
        level: bytes = next(iter(self.children))
        return level

    def reaches(self, topic: bytes, ends: list[int], depth: int) -> bool:
        """Whether the topic continues from this depth as the label does; it has enough levels, which end at ``ends``."""
        label = self.label
        size = len(label)
        topic_size = len(topic)
        end: int = ends[depth]
        place = 0
        while place < size:
            char = label[place]
            if char == PLUS:  # always a whole level in a valid filter
                end = ends[depth]
            else:
                if end >= topic_size or topic[end] != char:
                    return False
                end += 1
                if char == SLASH:
                    depth += 1
            place += 1
        return end == topic_size or topic[end] == SLASH


def _path(topic_filter: bytes) -> tuple[bytes, bool]:
    """The levels of a filter with a slash before each, and whether "#" follows them."""
    path = b"/" + topic_filter
    return (path[:-2], True) if path[-2:] == b"/#" else (path, False)


def _common(label: bytes, path: bytes, start: int) -> int:
    """The length of the common prefix of the label and the path from ``start`` on, in whole levels."""
    size = min(len(label), len(path) - start)
    same = 0
    while same < size and label[same] == path[start + same]:
        same += 1
    if (same == len(label) or label[same] == SLASH) and (start + same == len(path) or path[start + same] == SLASH):
        return same
    return max(label.rfind(b"/", 0, same), 0)


def _ends(levels: list[bytes]) -> list[int]:
    """Where each level ends in the topic."""
    ends: list[int] = []
    end = -1
    for level in levels:
        end += 1 + len(level)
        ends.append(end)
    return ends


def _may_match(node: TrieNode, count: int) -> bool:
    """Whether a topic with this many levels may end at this node or below it."""
    if node.multi is not None or node.depth == count:
        return node.depth <= count
    return node.depth < count and not node.is_leaf()


def _collect(held: Subscription | dict[object, Subscription], found: list[Subscription]) -> None:
    """Append the subscriptions of a filter."""
    if isinstance(held, dict):
        found.extend(held.values())
    else:
        found.append(held)


class FilterTrie:
    """A trie of valid filters; ``visited`` counts the cost of matching, in visited nodes."""

    __slots__ = ("_labels", "_root", "visited")

    def __init__(self) -> None:
        self._labels: dict[bytes, bytes] = {}
        self._root = TrieNode(b"", 0)
        self.visited = 0

    def put(self, topic_filter: bytes, subscription: Subscription) -> int:
        """Add or replace the flow's subscription to a filter; returns how many other flows have one, or -1 if it was replaced.

        The filter may differ from the subscription's own: many filters can share one subscription.
        """
        node, is_multi = self._node(topic_filter)
        held = node.multi if is_multi else node.here
        owner = subscription.flow
        if isinstance(held, dict):
            others = -1 if owner in held else len(held)
            held[owner] = subscription
            return others
        if held is None or held.flow is owner:
            others = 0 if held is None else -1
            both: Held = subscription
        else:
            others = 1
            both = {held.flow: held, owner: subscription}
        if is_multi:
            node.multi = both
        else:
            node.here = both
        return others

    def _node(self, topic_filter: bytes) -> tuple[TrieNode, bool]:
        """The node at which a filter ends, created if necessary, and whether it ends in "#" below it."""
        path, multi = _path(topic_filter)
        node = self._root
        at = 0  # in the path: the part before it has led to the node
        while at < len(path):
            end = path.find(b"/", at + 1)
            if end < 0:
                end = len(path)
            level = path[at + 1 : end]
            below = node.below(level)
            if below is None:
                label = self._share(path[end:])
                below = TrieNode(label, node.depth + 1 + label.count(b"/"))
                node.put_below(level, below)
                return below, multi
            common = _common(below.label, path, end)
            if common < len(below.label):
                below = self._split(node, level, below, common)
            node = below
            at = end + common
        return node, multi

    def _share(self, label: bytes) -> bytes:
        """The label, as the object that other nodes with the same one have: many filters differ in one level only."""
        shared = self._labels.get(label)
        if shared is not None:
            return shared
        if len(self._labels) < _SHARED_LABELS_MAX and len(label) <= _SHARED_LABEL_BYTES_MAX:
            self._labels[label] = label
        return label

    def _split(self, above: TrieNode, level: bytes, node: TrieNode, common: int) -> TrieNode:
        """Create a node where this much of the label ends, with the old one as its child."""
        label = node.label
        end = label.find(b"/", common + 1)
        if end < 0:
            end = len(label)
        middle = TrieNode(label[:common], above.depth + 1 + label.count(b"/", 0, common))
        middle.put_below(label[common + 1 : end], node)
        node.label = label[end:]
        above.put_below(level, middle)
        return middle

    def remove(self, topic_filter: bytes, owner: object) -> int:
        """Remove the owner's entry of this filter; returns how many other owners have one, or -1 if there was none."""
        path, multi = _path(topic_filter)
        node = self._root
        nodes = [node]
        levels: list[bytes] = []
        at = 0
        while at < len(path):
            end = path.find(b"/", at + 1)
            if end < 0:
                end = len(path)
            levels.append(path[at + 1 : end])
            below = node.below(levels[-1])
            if below is None or path[end : end + len(below.label)] != below.label:
                return -1
            node = below
            nodes.append(node)
            at = end + len(node.label)
        held = node.multi if multi else node.here
        left = 0
        if isinstance(held, dict):
            if held.pop(owner, None) is None:
                return -1
            left = len(held)
            if left > 1:
                return left
            held = next(iter(held.values()))
        elif held is None or held.flow is not owner:
            return -1
        else:
            held = None
        if multi:
            node.multi = held
        else:
            node.here = held
        if held is None:
            self._tidy(nodes, levels)
        return left

    def _tidy(self, nodes: list[TrieNode], levels: list[bytes]) -> None:
        """No filter ends at the last of these nodes any more: remove it, and merge nodes at which filters no longer branch."""
        node = nodes.pop()
        if levels and node.is_leaf() and node.here is None and node.multi is None:
            node = nodes.pop()
            node.put_below(levels.pop(), None)
        only = node.only_below()
        if levels and only is not None:
            below = node.below(only)
            assert below is not None  # the walk came through it
            below.label = node.label + b"/" + only + below.label
            node = nodes.pop()
            node.put_below(levels.pop(), below)

    def match(self, topic: bytes) -> list[Subscription]:
        """The subscriptions of all filters that match the topic, in no particular order."""
        found: list[Subscription] = []
        levels = topic.split(b"/")
        count = len(levels)
        ends: list[int] | None = None  # where each level ends; most topics meet no label
        nodes = [self._root]
        is_dollar = topic[:1] == b"$"  # [MQTT-4.7.2-1]: a leading wildcard does not match these
        while nodes:
            node = nodes.pop()
            self.visited += 1
            depth = node.depth
            is_open = depth > 0 or not is_dollar
            if node.multi is not None and is_open:  # "a/#" matches "a" too
                _collect(node.multi, found)
            if depth == count:
                if node.here is not None:
                    _collect(node.here, found)
                continue
            below = node.single if is_open else None
            for is_named in (False, True):
                if is_named:
                    below = None if node.children is None else node.children.get(levels[depth])
                if below is None or not _may_match(below, count):
                    continue
                if below.label:
                    self.visited += len(below.label) >> 5
                    if ends is None:
                        ends = _ends(levels)
                    if not below.reaches(topic, ends, depth):
                        continue
                nodes.append(below)
        return found

    def values(self) -> Iterator[Subscription]:
        """All subscriptions; the trie must not change during the iteration."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            found: list[Subscription] = []
            for held in (node.here, node.multi):
                if held is not None:
                    _collect(held, found)
            yield from found
            nodes.extend((node.children or {}).values())
            if node.single is not None:
                nodes.append(node.single)
