"""A tree of topic filters: a query walks the tree once instead of checking every filter.

The results are those of ``braidmq.mqtt.topics`` for each filter in turn. A walk visits every node at most once.
"""

from __future__ import annotations


class _FilterNode:
    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[str, _FilterNode] = {}  # "+" and "#" are keys like the level names, which cannot contain them
        self.ends = False  # a filter ends here


class FilterTree:
    """A set of valid topic filters."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _FilterNode()

    def add(self, topic_filter: str) -> None:
        """Add a filter."""
        node = self._root
        for level in _levels(topic_filter):
            node = node.children.setdefault(level, _FilterNode())
        node.ends = True

    def matches(self, topic: str) -> bool:
        """Whether any filter matches this topic name."""
        # A topic name is a filter without wildcards; exactly the filters that cover it match it.
        return self.covers(topic)

    def covers(self, topic_filter: str) -> bool:
        """Whether one filter of the tree covers this filter completely."""
        return self._finds(topic_filter, is_part_enough=False)

    def overlaps(self, topic_filter: str) -> bool:
        """Whether this filter and a filter of the tree can match the same topic."""
        return self._finds(topic_filter, is_part_enough=True)

    def _finds(self, topic_filter: str, *, is_part_enough: bool) -> bool:
        """Whether a filter of the tree matches everything that this filter matches, or, if that is enough, a part of it."""
        if not self._root.children:
            return False
        levels = _levels(topic_filter)
        count = len(levels)
        stack = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            children = node.children
            # At any depth below the first, # matches the remaining levels, even if there are none.
            if "#" in children:
                return True
            if at == count:
                if node.ends:
                    return True
                continue
            level = levels[at]
            if level == "#":
                if is_part_enough:
                    return True  # at least one filter ends at or below each node
                continue
            if level == "+" and is_part_enough:
                stack.extend((child, at + 1) for name, child in children.items() if not _is_reserved(name, at))
                continue
            if (same := children.get(level)) is not None:
                stack.append((same, at + 1))
            if level != "+" and not _is_reserved(level, at) and (any_level := children.get("+")) is not None:
                stack.append((any_level, at + 1))
        return False


def _levels(topic_filter: str) -> list[str]:
    """The levels, with # never where it could match zero levels of an empty topic: topics are not empty."""
    if topic_filter in ("#", "/#"):
        return [*topic_filter.split("/")[:-1], "+", "#"]
    return topic_filter.split("/")


def _is_reserved(level: str, at: int) -> bool:
    # [MQTT-4.7.2-1]: a wildcard in the first level does not match topics that begin with $.
    return at == 0 and level.startswith("$")
