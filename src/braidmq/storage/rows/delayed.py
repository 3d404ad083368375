"""Delayed messages as rows of the log, ordered by when they are due, each in the shard of its publisher."""

from __future__ import annotations

import heapq
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from braidmq.broker.ports import StoredMessage
from braidmq.lane.path.message import Message
from braidmq.storage.format.kept_messages import DELAYED_END, DELAYED_PREFIX, delayed_due_ms, delayed_key
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Delete, Put
from braidmq.storage.rows.messages import MessageRows

# Numbers begin at the microsecond of the start, with this many random bits below it: those of a later start are higher, which
# keeps messages that are due in the same millisecond in order, and a clock that was set back does not repeat a number.
_RANDOM_BITS: Final = 12


class LogDelayed:
    """The rows of delayed messages; implements `broker.ports.DelayedRows`."""

    def __init__(
        self, log: DurableLog, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._messages = MessageRows(wall, now)
        self._number = round(wall() * 1e6) << _RANDOM_BITS | int.from_bytes(os.urandom(2), "big") % (1 << _RANDOM_BITS)

    def put(self, message: Message, user_name: str | None, due: float) -> tuple[bytes, Put]:
        """A row for the message, and its id for `remove`; ``due`` is wall-clock seconds, rounded up to a millisecond.

        Raises UsageError if the message is too large to be stored, or ``due`` is before 1970.
        """
        self._number += 1
        row_id = delayed_key(math.ceil(due * 1000), self._number)
        return row_id, Put(self._log.shard_of(message.publisher), row_id, self._messages.row_of(message, user_name))

    def remove(self, publisher: str, row_id: bytes) -> Delete:
        """Remove the row of a message of this publisher, if it exists."""
        return Delete(self._log.shard_of(publisher), row_id)

    def load(self) -> Iterator[StoredMessage]:
        """Every delayed message as of the last flush, one at a time, in the order in which they are due.

        Raises UsageError if a newer version wrote a row, Corruption if a row is invalid.
        """
        shards = (self._log.rows(shard, DELAYED_PREFIX, DELAYED_END) for shard in range(self._log.shards))
        for key, value in heapq.merge(*shards):
            yield self._stored(key, value)

    def read(self, shard: int, row_id: bytes) -> StoredMessage | None:
        """The message of a row of this shard, as of the last flush; None if there is none. Raises as `load` does."""
        value = self._log.row(shard, row_id)
        return None if value is None else self._stored(row_id, value)

    def _stored(self, key: bytes, value: bytes) -> StoredMessage:
        due = delayed_due_ms(key) / 1000
        stored = self._messages.message_of(value, f"the delayed message {key.hex()}")
        stored.due = due
        stored.row_id = key
        return stored
