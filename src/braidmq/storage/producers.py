"""How far clients that number their messages have come, and the keys of what they have recorded, as rows of the log."""

from __future__ import annotations

from itertools import islice
from typing import Final

from braidmq.storage.changes import Delete, Put
from braidmq.storage.format.key_rows import (
    KEY_VALUE,
    BatchRow,
    batch_key,
    decode_batch,
    encode_batch,
    message_key,
)
from braidmq.storage.log import MessageLog

# Other producers, such as links, have names of other forms.
_CLIENT: Final = b"mqtt/"


class LogProducers:
    """The rows of producers; fills `broker.ports.ProducerStore`."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._log.shards

    def name_of(self, client_id: str) -> bytes:
        """The name of a client as a producer."""
        return _CLIENT + client_id.encode()

    def mark(self, client_id: str) -> tuple[int, int | None]:
        """The last sequence of a client and its check value, as of the last flush; 0 and None if it is not known."""
        return self._log.producer_mark(self._log.shard_of(client_id), self.name_of(client_id))

    def open_batch(self, name: str) -> tuple[int, int, int] | None:
        """The base of a name's open batch, that below which no keys are left, and its number of parts; as of the last flush."""
        value = self._log.row(self._log.shard_of(name), batch_key(name.encode()))
        if value is None:
            return None
        row = decode_batch(value)
        return row.base, row.swept_below, row.parts

    def put_batch(self, name: str, base: int, swept_below: int, parts: int) -> Put:
        """Open a batch under a name, or say that it is still in use."""
        row = encode_batch(BatchRow(base, self._log.now(), swept_below, parts))
        return Put(self._log.shard_of(name), batch_key(name.encode()), row)

    def has_key(self, keys: str, base: int, key: bytes) -> bool:
        """Whether a message of a batch is recorded, as of the last flush."""
        return self._log.row(self._log.shard_of(keys), message_key(keys.encode(), base, key)) is not None

    def put_key(self, keys: str, base: int, key: bytes) -> Put:
        """Note the key of a message; belongs into the batch of its record."""
        return Put(self._log.shard_of(keys), message_key(keys.encode(), base, key), KEY_VALUE)

    def old_keys(self, keys: str, first: int, end: int, after: Delete | None, count_max: int) -> list[Delete]:
        """Remove keys of batches with first <= base < end, some of them; ``after``: the last one of the last call."""
        shard = self._log.shard_of(keys)
        lower = message_key(keys.encode(), first, b"") if after is None else after.key + b"\0"
        rows = self._log.rows(shard, lower, message_key(keys.encode(), end, b""))
        return [Delete(shard, key) for key, _ in islice(rows, count_max)]
