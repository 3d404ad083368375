"""The rounds of blocks that are on their way to one core: what one flush sends in all its shards.

A round is over when all of its blocks are answered, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Round:
    """Blocks that were sent together."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left  # blocks that are not answered


class Rounds:
    """Counts those that are not over."""

    def __init__(self) -> None:
        self.open = 0
        self._of_block: dict[tuple[int, int], _Round] = {}  # by shard and number

    def begin(self, blocks: Sequence[tuple[int, int]]) -> None:
        """These blocks were sent together: shard and number of each."""
        begun = _Round(len(blocks))
        for block in blocks:
            self._of_block[block] = begun
        self.open += 1

    def note_answer(self, shard: int, number: int) -> bool:
        """A block is answered; whether its round is over. One that was sent again is not of a round."""
        found = self._of_block.pop((shard, number), None)
        if found is None:
            return True
        found.left -= 1
        if found.left:
            return False
        self.open -= 1
        return True

    def forget(self) -> None:
        """The connection is gone."""
        self._of_block.clear()
        self.open = 0
