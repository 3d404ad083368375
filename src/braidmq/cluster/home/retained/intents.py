"""The intents of one core for the home of their topics, from their commit until that home has them. Does no I/O.

    commit -> *open*, its publisher waits -> a batch -> taken: gone
                   |                          |
                   |                   no answer: all open ones are *late*, and no publisher waits; later the next batch

Batches go one after the other, so the home takes what a publisher has sent in its order. A late intent may come after a newer
message that another core has brought, so it replaces only what has a lower number. While the home is away, the newest intent of
a publisher's shard takes the place of an older one with the same topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

BATCH_BYTES: Final = 512 * 1024
_BATCH_COUNT: Final = 256

OnSettled = Callable[[], None]  # it is taken, or waiting has no use any longer


class OpenIntent(Struct, gc=False, eq=False):
    """A retained message on its way. ``value``: its row, if it is in memory."""

    source: int
    target: int
    number: int
    topic: bytes
    size: int
    value: bytes | None
    is_late: bool = False
    is_asked: bool = False  # the home may be taking it now
    waiters: list[OnSettled] | None = None  # None: settled

    def settle(self) -> None:
        """Tell who waits."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter()


class IntentQueue:
    """Those for the shards of one core."""

    def __init__(self) -> None:
        self.is_away = False  # the home did not answer when it was asked last
        self.size_bytes = 0
        self._open: dict[tuple[int, int], OpenIntent] = {}  # by publisher's shard and number, in the order of their commits
        self._newest: dict[tuple[int, bytes], OpenIntent] = {}  # by publisher's shard and topic

    def __len__(self) -> int:
        return len(self._open)

    @property
    def lowest(self) -> int:
        """The lowest number; 0 if there is none."""
        return min((intent.number for intent in self._open.values()), default=0)

    def add(self, intent: OpenIntent) -> OpenIntent | None:
        """An intent is on disk. Returns an older one that is not needed any more."""
        key = (intent.source, intent.topic)
        older = self._newest.get(key)
        self._open[intent.source, intent.number] = intent
        self._newest[key] = intent
        self.size_bytes += intent.size
        if self.is_away:
            intent.is_late = True
            intent.settle()
        if older is None or not older.is_late or older.is_asked:
            return None
        self._remove(older)
        older.settle()
        return older

    def newest(self, source: int, topic: bytes) -> OpenIntent | None:
        """The last one of a topic from a publisher's shard."""
        return self._newest.get((source, topic))

    def unsettled(self) -> list[OpenIntent]:
        """Those whose publishers wait."""
        return [intent for intent in self._open.values() if intent.waiters is not None]

    def batch(self) -> list[OpenIntent]:
        """The next ones to be sent, all of them late or none; ``taken`` or ``failed`` follows."""
        found: list[OpenIntent] = []
        size = 0
        for intent in self._open.values():
            size += intent.size
            if found and (size > BATCH_BYTES or len(found) == _BATCH_COUNT or intent.is_late != found[0].is_late):
                break
            intent.is_asked = True
            found.append(intent)
        return found

    def taken(self, batch: Sequence[OpenIntent]) -> None:
        """The home has them."""
        self.is_away = False
        for intent in batch:
            self._remove(intent)
            intent.settle()

    def failed(self, value_bytes_max: int) -> None:
        """The home has not answered, or cannot take anything now. Longer values than that are not kept in memory."""
        self.is_away = True
        for intent in self._open.values():
            intent.is_late = True
            intent.is_asked = False
            if intent.size > value_bytes_max:
                intent.value = None
        for intent in self.unsettled():
            intent.settle()

    def _remove(self, intent: OpenIntent) -> None:
        del self._open[intent.source, intent.number]
        self.size_bytes -= intent.size
        key = (intent.source, intent.topic)
        if self._newest.get(key) is intent:
            del self._newest[key]
