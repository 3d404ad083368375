"""Records that are appended one by one, where the broker has blocks of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braidmq.lane.records.records import encode_record
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Change, WriteRefusal


class OneRecord:
    """A block of one record."""

    def __init__(
        self,
        shard: int,
        entry: tuple[bytes, bytes],
        on_commit: Callable[[int, int], None],
        on_refused: Callable[[WriteRefusal], None],
        changes: Sequence[Change] = (),
        producers: Sequence[tuple[int, bytes, int, int]] = (),
    ) -> None:
        self.entries = {shard: [entry]}
        self.changes = changes
        self.size_bytes = len(entry[1])
        self._shard = shard
        self._on_commit = on_commit
        self._on_refused = on_refused
        self._producers = producers

    def marks(self) -> Sequence[tuple[int, bytes, int, int]]:
        """Shard, name, last sequence and check value of producers."""
        return self._producers

    def committed(self, stamps: dict[int, list[int]]) -> None:
        """Tell shard and timestamp."""
        self._on_commit(self._shard, stamps[self._shard][0])

    def refused(self, refusal: WriteRefusal) -> None:
        """Tell why."""
        self._on_refused(refusal)


def append(
    log: DurableLog,
    client_id: str,
    topic: bytes,
    payload: bytes,
    *,
    retain: bool = False,
    on_commit: Callable[[int, int], None],
    on_refused: Callable[[WriteRefusal], None],
    changes: Sequence[Change] = (),
    producers: Sequence[tuple[int, bytes, int, int]] = (),
    **fields: Any,
) -> None:
    """Record a message of QoS 1 in its client's shard; ``fields`` are more of ``encode_record``."""
    value = encode_record(topic, payload, 1, retain, client_id, **fields)
    log.append_block(OneRecord(log.shard_of(client_id), (topic, value), on_commit, on_refused, changes, producers))
