"""The topics that a client has set aliases for: they stay as long as its connection, within a bound in bytes."""

from __future__ import annotations

# One topic of any length, and as many of a usual length as there may be aliases.
_LONGEST_BYTES = 65535
_USUAL_BYTES = 512


class TopicAliases:
    """Topics by alias."""

    __slots__ = ("_left", "topics")

    def __init__(self, count_max: int) -> None:
        self.topics: dict[int, bytes] = {}
        self._left = aliases_bytes_max(count_max)

    def put(self, alias: int, topic: bytes) -> bool:
        """Set an alias, perhaps anew; False if the topics would be too long together."""
        before = self.topics.get(alias)
        left = self._left - len(topic) + (0 if before is None else len(before))
        if left < 0:
            return False
        self._left = left
        self.topics[alias] = topic
        return True


def aliases_bytes_max(count_max: int) -> int:
    """Maximum total bytes of the topics of `count_max` aliases."""
    return _LONGEST_BYTES + _USUAL_BYTES * count_max
