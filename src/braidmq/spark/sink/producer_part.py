"""The producer part of a partition: its client id, and the sequence numbers of its rows."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from braidmq.base.shards import shard_of

ROWS_BITS: Final = 32
ROWS_MAX: Final = (1 << ROWS_BITS) - 1
_SALTS: Final = 1000


class ProducerPart(Struct, frozen=True):
    """The producer, batch and partition of some rows; `keys` if rows are identified by keys."""

    producer: str
    batch: int
    partition: int
    keys: bool = False

    @property
    def base(self) -> int:
        """The sequence number before that of the first row."""
        return self.batch << ROWS_BITS

    def client_id(self, shards: int) -> str:
        """The producer's client id. Producers that share keys must map to the shard of their common name."""
        plain = f"{self.producer}-{self.partition}"
        if not self.keys:
            return plain
        home = shard_of(self.producer, shards)
        salted = (f"{plain}-{salt}" for salt in range(_SALTS))
        return next(each for each in salted if shard_of(each, shards) == home)
