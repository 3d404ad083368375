"""Which positions may be served from a secondary: the rules of H2 as a state machine without I/O.

The node reports the watermark of each shard; a catch-up of the secondary reads what was written. Neither is enough alone:

- A catch-up reads the list of tables first and the write-ahead log files after it. If the primary finishes a table and deletes a
  log file in between, the catch-up sees neither, and later records are visible although earlier ones are not. It counts only if
  every log file that existed before it still exists after it: then it has read all of them.
- A catch-up also reads records that are not committed, and learns nothing about shards without traffic. So the positions served
  are the watermarks that the node reported *before* a catch-up that counts, and never those found in the log itself.

A range that was served once stays complete, whatever a later catch-up misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


class ServedPositions:
    """Watermarks by shard: `held` as the node reported them, `served` as readers may see them. Neither ever decreases."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.served: dict[int, int] = {}
        self._before: tuple[dict[int, int], frozenset[str]] | None = None

    def hear(self, watermarks: Mapping[int, int]) -> None:
        """Take the watermarks that the node reports."""
        for shard, watermark in watermarks.items():
            self.held[shard] = max(watermark, self.held.get(shard, 0))

    def begin(self, log_files: Set[str]) -> None:
        """Begin a catch-up; `log_files` are those that exist before it."""
        self._before = dict(self.held), frozenset(log_files)

    def end(self, log_files: Set[str]) -> bool:
        """End a successful catch-up; `log_files` are those that exist now. Returns whether it counts."""
        before, self._before = self._before, None
        if before is None or not before[1] <= log_files:
            return False
        self.served = before[0]
        return True
