"""Which positions may be served from a secondary: the rules of H2 as a state machine without I/O.

The node says how far each shard is committed; a catch-up of the secondary brings what was written. Neither is enough alone:

- A catch-up reads the list of tables first and the write-ahead log files after it. If the primary finishes a table and deletes a
  log file in between, the catch-up has neither, and later records show although earlier ones do not. It counts only if every log
  file that was there before it is still there after it: then each of them was there to be read.
- It shows records that are not committed, and says nothing of shards without traffic. So what is served are the watermarks that
  the node had told *before* a catch-up that counts, and never what the log itself says.

What was served once stays complete, whatever a later catch-up misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


class ServedPositions:
    """Watermarks by shard: `held` as the node told them, `served` as readers may see them. Neither ever goes back."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.served: dict[int, int] = {}
        self._before: tuple[dict[int, int], frozenset[str]] | None = None

    def hear(self, watermarks: Mapping[int, int]) -> None:
        """The node says that each shard is committed up to here."""
        for shard, watermark in watermarks.items():
            self.held[shard] = max(watermark, self.held.get(shard, 0))

    def begin(self, log_files: Set[str]) -> None:
        """A catch-up is about to begin; these log files are there."""
        self._before = dict(self.held), frozenset(log_files)

    def end(self, log_files: Set[str]) -> bool:
        """The catch-up that was begun has succeeded, and these log files are there; whether it counts."""
        before, self._before = self._before, None
        if before is None or not before[1] <= log_files:
            return False
        self.served = before[0]
        return True
