"""Rows of producers: the last sequence of each client that numbers its messages, and the keys of its recorded messages."""

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
from braidmq.storage.log import MessageLog
from braidmq.storage.rows.changes import Change, Delete, Put

# Other producers, such as links, have names of other forms.
_CLIENT: Final = b"mqtt/"
_USERS_CLIENT: Final = b"mqtt@"
# Of the user name, which may be longer than the name of a producer.
_DIGEST_BYTES: Final = 16


class LogProducers:
    """The rows of producers; fills `broker.ports.ProducerStore`."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._log.shards

    def name_of(self, client_id: str, user_name: str | None) -> bytes:
        """The name of a user's client as a producer: another user's with the same client id has another."""
        if user_name is None:
            return _CLIENT + client_id.encode()
        return _USERS_CLIENT + blake2b(user_name.encode(), digest_size=_DIGEST_BYTES).digest() + client_id.encode()

    def mark(self, client_id: str, user_name: str | None) -> tuple[int, int | None]:
        """The last sequence of a user's client and its check value, as of the last flush; 0 and None if it is not known."""
        shard = self._log.shard_of(client_id)
        mark = self._log.producer_mark(shard, self.name_of(client_id, user_name))
        # What was counted without a user, as earlier versions did for all, is where a user goes on who has nothing yet.
        return mark if mark.sequence else self._log.producer_mark(shard, self.name_of(client_id, None))

    def open_batch(self, name: str) -> tuple[int, int, int, str | None] | None:
        """The base of a name's open batch, that below which no keys are left, its parts and its owner; as of the last flush."""
        value = self._log.row(self._log.shard_of(name), batch_key(name.encode()))
        if value is None:
            return None
        row = decode_batch(value)
        return row.base, row.swept_below, row.parts, row.owner

    def put_batch(self, name: str, base: int, swept_below: int, parts: int, owner: str | None) -> Put:
        """Open a batch under a name, or say that it is still in use."""
        row = encode_batch(BatchRow(base, self._log.now(), swept_below, parts, owner))
        return Put(self._log.shard_of(name), batch_key(name.encode()), row)

    def has_key(self, keys: str, base: int, key: bytes) -> bool:
        """Whether a message of a batch is recorded, as of the last flush."""
        return self._log.row(self._log.shard_of(keys), message_key(keys.encode(), base, key)) is not None

    def put_key(self, keys: str, base: int, key: bytes) -> Put:
        """Note the key of a message; belongs into the batch of its record."""
        return Put(self._log.shard_of(keys), message_key(keys.encode(), base, key), KEY_VALUE)

    def old_keys(self, keys: str, first: int, end: int, after: Change | None, count_max: int) -> list[Change]:
        """Remove keys of batches with first <= base < end, some of them; ``after``: the last one of the last call."""
        shard = self._log.shard_of(keys)
        lower = message_key(keys.encode(), first, b"")
        if after is not None:
            assert isinstance(after, Delete)  # as this gives them out
            lower = after.key + b"\0"
        rows = self._log.rows(shard, lower, message_key(keys.encode(), end, b""))
        return [Delete(shard, key) for key, _ in islice(rows, count_max)]
