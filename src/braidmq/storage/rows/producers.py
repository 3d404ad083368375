"""Rows of producers: the last sequence of each producer, and the keys of its recorded messages."""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import Final

from braidmq.storage.format.key_rows import (
    KEY_VALUE,
    BatchRow,
    batch_key,
    decode_batch,
    encode_batch,
    message_key,
)
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Change, Delete, Put

# Other producers, such as links, have names of other forms.
_CLIENT: Final = b"mqtt/"
_USERS_CLIENT: Final = b"mqtt@"
# The bytes of the digest of the user name, which may be longer than the name of a producer.
_DIGEST_BYTES: Final = 16


def producer_name(client_id: str, user_name: str | None) -> bytes:
    """The producer name of a user's client; clients of different users with the same client id have different names."""
    if user_name is None:
        return _CLIENT + client_id.encode()
    return _USERS_CLIENT + blake2b(user_name.encode(), digest_size=_DIGEST_BYTES).digest() + client_id.encode()


class LogProducers:
    """The rows of producers; implements `broker.ports.ProducerStore`."""

    def __init__(self, log: DurableLog) -> None:
        self._log = log

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._log.shards

    def name_of(self, client_id: str, user_name: str | None) -> bytes:
        """The producer name of a user's client."""
        return producer_name(client_id, user_name)

    def mark(self, client_id: str, user_name: str | None) -> tuple[int, int | None]:
        """The last sequence of a user's client and its check value, as of the last flush; 0 and None if unknown."""
        shard = self._log.shard_of(client_id)
        mark = self._log.producer_mark(shard, self.name_of(client_id, user_name))
        # A user without a row continues from the row without a user, which earlier versions wrote for all.
        return mark if mark.sequence else self._log.producer_mark(shard, self.name_of(client_id, None))

    def open_batch(self, name: str) -> tuple[int, int, int, str | None] | None:
        """A name's open batch as of the last flush: its base, the base below which no keys are left, its parts and its owner."""
        value = self._log.row(self._log.shard_of(name), batch_key(name.encode()))
        if value is None:
            return None
        row = decode_batch(value)
        return row.base, row.swept_below, row.parts, row.owner

    def put_batch(self, name: str, base: int, swept_below: int, parts: int, owner: str | None) -> Put:
        """Open a batch under a name, or note that it is still in use."""
        row = encode_batch(BatchRow(base, self._log.now(), swept_below, parts, owner))
        return Put(self._log.shard_of(name), batch_key(name.encode()), row)

    def has_key(self, keys: str, base: int, key: bytes) -> bool:
        """Whether a message of a batch is recorded, as of the last flush."""
        return self._log.row(self._log.shard_of(keys), message_key(keys.encode(), base, key)) is not None

    def put_key(self, keys: str, base: int, key: bytes) -> Put:
        """Store the key of a message; must be in the batch of its record."""
        return Put(self._log.shard_of(keys), message_key(keys.encode(), base, key), KEY_VALUE)

    def old_keys(self, keys: str, first: int, end: int, after: Change | None, count_max: int) -> list[Change]:
        """Changes that remove some keys of batches with first <= base < end; ``after``: the last change of the previous call."""
        shard = self._log.shard_of(keys)
        lower = message_key(keys.encode(), first, b"")
        if after is not None:
            assert isinstance(after, Delete)  # this method returns nothing else
            lower = after.key + b"\0"
        rows = self._log.rows(shard, lower, message_key(keys.encode(), end, b""))
        return [Delete(shard, key) for key, _ in islice(rows, count_max)]
