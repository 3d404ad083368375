"""How far the log of each shard is, where retention has left it, and what time it is there: as the cores have announced it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from braidmq.net.frames import BadFrame
from braidmq.net.proto_v1 import Marks
from braidmq.storage.reading.positions import EARLIEST
from braidmq.storage.reading.reader import RetentionGap


class LogMarks:
    """Vectors over all shards; each shard is taken from the core that leads it, whatever other cores say."""

    def __init__(self, shards: int, now: Callable[[], float]) -> None:
        self.watermarks = [0] * shards
        self._floors = [0] * shards
        self._clocks: dict[object, tuple[int, float]] = {}  # what a core's clock was, and when that was
        self._now = now

    def note(self, core: object, led: Iterable[int], marks: Marks) -> None:
        """A core has announced how far the log is in the shards that it leads. Raises BadFrame."""
        if len(marks.positions) != len(self.watermarks) or len(marks.floors) not in (0, len(self.watermarks)):
            raise BadFrame("marks for another number of shards")
        for shard in led:
            self.watermarks[shard] = max(self.watermarks[shard], marks.positions[shard])
            if marks.floors:
                self._floors[shard] = marks.floors[shard]
        self._clocks[core] = marks.clock, self._now()

    def assume(self, led: Iterable[int], position: int) -> None:
        """Nothing is known of these shards: assume that their log ends here until their core says so."""
        for shard in led:
            self.watermarks[shard] = max(self.watermarks[shard], position)

    def now(self) -> int:
        """The log's clock, in microseconds since 1970: the latest of the cores', not this machine's (C39)."""
        now = self._now()
        clocks = self._clocks.values() or ((0, 0.0),)
        return max(clock + round((now - at) * 1_000_000) for clock, at in clocks)

    def gaps(self, start: Mapping[int, int] | int) -> dict[int, RetentionGap]:
        """What retention has taken of what is later than these positions."""
        wanted = {shard: start if isinstance(start, int) else start[shard] for shard in range(len(self.watermarks))}
        return {
            shard: RetentionGap(wanted[shard], floor)
            for shard, floor in enumerate(self._floors)
            if wanted[shard] != EARLIEST and wanted[shard] < floor - 1
        }
