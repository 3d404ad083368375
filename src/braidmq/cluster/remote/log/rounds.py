"""The rounds of blocks that are on their way to one core: what one flush sends in all its shards.

A round is over when all of its blocks are answered, in any order.
"""

from __future__ import annotations


class _Round:
    """Blocks that were sent together."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0  # blocks that are not answered


class Rounds:
    """Counts those that are not over."""

    def __init__(self) -> None:
        self.open = 0
        self._of_block: dict[tuple[int, int], _Round] = {}  # by shard and number

    def begin(self, shards: dict[int, range]) -> None:
        """These blocks were sent together: the numbers in each shard."""
        begun = _Round()
        for shard, numbers in shards.items():
            for number in numbers:
                self._of_block[shard, number] = begun
                begun.left += 1
        self.open += begun.left > 0

    def note_answer(self, shard: int, number: int) -> None:
        """A block is answered."""
        found = self._of_block.pop((shard, number), None)
        if found is not None:
            found.left -= 1
            self.open -= not found.left

    def forget(self) -> None:
        """The connection is gone."""
        self._of_block.clear()
        self.open = 0
