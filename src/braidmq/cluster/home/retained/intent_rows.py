"""Rows of retained messages on their way from the shard of their publisher to that of their topic. Integers are big-endian.

0xEF | 0x02 | topic's shard (2) | number (8)     an intent, in the publisher's shard; the value is a retained message's row
0xEF | 0x03                                      in the publisher's shard: the last number whose intent was removed
0xEF | 0x04 | publisher's shard (2)              in the topic's shard: the last number that was taken from there

The values of the last two: version (1) = 1, number (8). Numbers rise within a publisher's shard, over all restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packed
from struct import error as PackError
from typing import Final, NamedTuple

from braidmq.base.errors import Corruption, UsageError
from braidmq.cluster.home.blocks.block_marks import MarkRows
from braidmq.storage.rows.changes import Delete, Put

VERSION: Final = 1
_INTENT: Final = Packed(">2sHQ")
_INTENT_PREFIX: Final = b"\xef\x02"
_INTENTS_END: Final = b"\xef\x03"
_REMOVED_KEY: Final = b"\xef\x03"
_TAKEN: Final = Packed(">2sH")
_TAKEN_PREFIX: Final = b"\xef\x04"
_TAKEN_END: Final = b"\xef\x05"
_NUMBER: Final = Packed(">BQ")


class StoredIntent(NamedTuple):
    """An intent as it is on disk."""

    target: int
    number: int
    value: bytes


class IntentRows:
    """Makes and reads these rows."""

    def __init__(self, log: MarkRows) -> None:
        self._log = log

    def put(self, source: int, intent: StoredIntent) -> Put:
        """Store an intent; belongs into the batch of its record."""
        return Put(source, _INTENT.pack(_INTENT_PREFIX, intent.target, intent.number), intent.value)

    def remove(self, source: int, target: int, number: int) -> Delete:
        """Remove an intent that its topic's home has; ``removed`` belongs into the same batch."""
        return Delete(source, _INTENT.pack(_INTENT_PREFIX, target, number))

    def removed(self, source: int, number: int) -> Put:
        """Note the highest number of all intents that were removed: later ones are higher, whatever the clock says."""
        return Put(source, _REMOVED_KEY, _NUMBER.pack(VERSION, number))

    def taken(self, target: int, source: int, number: int) -> Put:
        """Note the last intent of a publisher's shard; belongs into the batch of what it sets."""
        return Put(target, _TAKEN.pack(_TAKEN_PREFIX, source), _NUMBER.pack(VERSION, number))

    def value(self, source: int, target: int, number: int) -> bytes | None:
        """The value of an intent."""
        return self._log.row(source, _INTENT.pack(_INTENT_PREFIX, target, number))

    def load(self, source: int) -> Iterator[StoredIntent]:
        """The intents of a publisher's shard, in the order of their numbers within each topic's shard."""
        for key, value in self._log.rows(source, _INTENT_PREFIX, _INTENTS_END):
            try:
                _, target, number = _INTENT.unpack(key)
            except PackError:
                raise Corruption(f"the key of a retained message on its way has {len(key)} bytes") from None
            yield StoredIntent(target, number, value)

    def load_removed(self, source: int) -> int:
        """The highest number of the intents that were removed; 0: none was."""
        value = self._log.row(source, _REMOVED_KEY)
        return 0 if value is None else _decode(value)

    def load_taken(self, target: int) -> dict[int, int]:
        """The last number that was taken from each publisher's shard."""
        rows = self._log.rows(target, _TAKEN_PREFIX, _TAKEN_END)
        return {int.from_bytes(key[len(_TAKEN_PREFIX) :], "big"): _decode(value) for key, value in rows}


def _decode(value: bytes) -> int:
    if value and value[0] > VERSION:
        raise UsageError(f"a row of retained messages has the format {value[0]}, newer than {VERSION}", "use the newer version")
    try:
        version, number = _NUMBER.unpack(value)
    except PackError:
        version = number = 0
    if version != VERSION:
        raise Corruption(f"a row of retained messages is not valid for version {VERSION}")
    return int(number)
