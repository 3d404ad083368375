"""One attempt of a Spark task to publish its partition, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from braidmq.spark.sink.options import parse_write_options
from braidmq.spark.sink.producer_part import ProducerPart
from braidmq.spark.sink.publisher import RowPublisher
from braidmq.spark.sink.rows import RowBatch, RowMaker

MAKER = RowMaker({"topic": 0, "payload": 1}, 1)


def table(maker: RowMaker = MAKER, **columns: list[Any]) -> RowBatch:
    return maker.take(pa.record_batch(columns))


class Refused(Exception):
    """A row was refused."""


class Attempt:
    """An attempt at a partition; notes what was refused, or fails for it."""

    def __init__(self, port: int, name: str, batch: int = 0, partition: int = 0, *, keys: bool = False, **options: str) -> None:
        self.refused: list[tuple[int, int]] = []
        self.is_failing = False
        parsed = parse_write_options({"servers": f"127.0.0.1:{port}", "retrytimeout": "20s", "timeout": "10s", **options})
        self.publisher = RowPublisher(ProducerPart(name, batch, partition, keys), parsed, MAKER, self._refuse)
        self.publisher.open()

    def _refuse(self, row: int, batch: RowBatch, place: int, reason: int, detail: str) -> None:
        if self.is_failing:
            raise Refused(row)
        self.refused.append((row, reason))

    def run(self, *batches: RowBatch) -> None:
        try:
            for batch in batches:
                self.publisher.add(batch)
            self.publisher.finish()
        finally:
            self.publisher.close()
