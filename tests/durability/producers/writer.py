"""Tasks that publish numbered or keyed rows, die now and then and are tried again; and what the log must have at the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence

import pyarrow as pa

from braidmq.lane.records.records import Record
from braidmq.spark.sink.options import parse_write_options
from braidmq.spark.sink.producer_client import ProducerClient
from braidmq.spark.sink.producer_part import ProducerPart
from braidmq.spark.sink.publisher import RowPublisher
from braidmq.spark.sink.rows import RowBatch, RowMaker

CHUNK = 200


class Writer(threading.Thread):
    """A task that publishes its rows; it dies now and then, and another attempt takes its place."""

    def __init__(
        self,
        servers: str,
        partition: int,
        qos: int,
        chance: random.Random,
        work: threading.Semaphore,
        *,
        keys: bool,
        rows: int = 30_000,
    ) -> None:
        """``servers``: addresses, any of which will do. ``work`` is released for each chunk."""
        super().__init__()
        self.rows = rows
        self.part = ProducerPart("kill", 1, partition, keys)
        self.problem: Exception | None = None
        self._work = work
        self._options = parse_write_options({"servers": servers, "retrytimeout": "100s", "timeout": "20s"})
        places = {"topic": 0, "payload": 1, "key": 2} if keys else {"topic": 0, "payload": 1}
        self._maker = RowMaker(places, qos)
        self._deaths = [chance.randrange(rows) for _ in range(3)]
        self._order = list(range(rows))
        self._chance = chance

    def run(self) -> None:
        try:
            for death in (*self._deaths, self.rows):
                self._attempt(death)
                if self.part.keys:
                    self._chance.shuffle(self._order)
            self._attempt(self.rows)
        except Exception as problem:
            self.problem = problem

    def _attempt(self, death: int) -> None:
        publisher = RowPublisher(self.part, self._options, self._maker, _unexpected)
        try:
            publisher.open()
            for first in range(0, self.rows, CHUNK):
                if first >= death:
                    return
                publisher.add(self._rows(first))
                self._work.release()
            publisher.finish()
        finally:
            publisher.close()

    def _rows(self, first: int) -> RowBatch:
        numbers = self._order[first : first + CHUNK]
        payloads = [f"{self.part.partition} {number}" for number in numbers]
        columns: dict[str, list[str]] = {"topic": [f"kill/{number % 13}" for number in numbers], "payload": payloads}
        if self.part.keys:
            columns["key"] = payloads
        return self._maker.take(pa.record_batch(columns))


def _unexpected(*refused: object) -> None:
    raise AssertionError(f"refused: {refused}")


def count_of(writer: Writer, servers: str) -> int:
    """What the broker says at the end that it has of a partition."""
    options = parse_write_options({"servers": servers})
    client = ProducerClient.dial(options.servers[0], options)
    joined = client.join(writer.part.client_id(4), {"producer-sequence": str(writer.part.base)}, options)
    client.leave()
    return joined.sequence - writer.part.base


def judge(writers: Sequence[Writer], records: Iterable[Record], counts: Sequence[int]) -> None:
    """Every row is recorded once, numbered ones in order, and the broker has counted them."""
    assert [writer.problem for writer in writers] == [None] * len(writers)
    found: dict[int, list[int]] = {writer.part.partition: [] for writer in writers}
    for record in records:
        partition, number = map(int, record.payload.split())
        found[partition].append(number)
    for writer, count in zip(writers, counts, strict=True):
        numbers = found[writer.part.partition]
        if writer.part.keys:
            assert sorted(numbers) == list(range(writer.rows))
        else:
            assert numbers == list(range(writer.rows))
            assert count == writer.rows
