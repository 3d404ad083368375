"""A node that is killed again and again while producers publish: each row is recorded once, in order, and the CONNACK says it."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from braidmq.spark.sink.options import parse_write_options
from braidmq.spark.sink.producer_client import ProducerClient
from braidmq.spark.sink.producer_part import ProducerPart
from braidmq.spark.sink.publisher import RowPublisher
from braidmq.spark.sink.rows import RowBatch, RowMaker
from tests.durability.campaigns.node import read_log, write_config
from tests.support.ports import free_port
from tests.support.started import Started

ROWS = 30_000
CHUNK = 200


class Writer(threading.Thread):
    """A task that publishes its rows; it dies now and then, and another attempt takes its place."""

    def __init__(
        self, port: int, partition: int, qos: int, chance: random.Random, work: threading.Semaphore, *, keys: bool
    ) -> None:
        super().__init__()
        self.part = ProducerPart("kill", 1, partition, keys)
        self.problem: Exception | None = None
        self._work = work  # released for each chunk
        self._options = parse_write_options({"servers": f"127.0.0.1:{port}", "retrytimeout": "100s", "timeout": "20s"})
        places = {"topic": 0, "payload": 1, "key": 2} if keys else {"topic": 0, "payload": 1}
        self._maker = RowMaker(places, qos)
        self._deaths = [chance.randrange(ROWS) for _ in range(3)]
        self._order = list(range(ROWS))
        self._chance = chance

    def run(self) -> None:
        try:
            for death in (*self._deaths, ROWS):
                self._attempt(death)
                if self.part.keys:
                    self._chance.shuffle(self._order)
            self._attempt(ROWS)
        except Exception as problem:
            self.problem = problem

    def _attempt(self, death: int) -> None:
        publisher = RowPublisher(self.part, self._options, self._maker, _unexpected)
        try:
            publisher.open()
            for first in range(0, ROWS, CHUNK):
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


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("qos", "keys"), [(1, False), (2, False), (1, True)])
def test_rows_are_recorded_once_and_in_order_over_kills_of_the_node_and_of_the_tasks(
    tmp_path: Path, qos: int, keys: bool
) -> None:
    chance = random.Random(qos + 10 * keys)
    port = free_port()
    file = write_config(tmp_path, listeners={"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}}, history={"bind": ""})
    work = threading.Semaphore(0)
    writers = [Writer(port, partition, qos, chance, work, keys=keys) for partition in range(2)]
    kills = 0
    node = Started(file)
    try:
        node.await_port()
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers) and kills < 6:
            for _ in range(chance.randrange(1, 40)):
                while not work.acquire(timeout=0.1) and any(writer.is_alive() for writer in writers):
                    pass  # nothing is released any more when both are done
            node.send(signal.SIGKILL)
            node.await_end()
            kills += 1
            node = Started(file)
            node.await_port()
        for writer in writers:
            writer.join(120)
        counts = {writer.part.partition: _count(writer, port) for writer in writers}
    finally:
        node.send(signal.SIGTERM)
        node.await_end()

    assert [writer.problem for writer in writers] == [None, None]
    assert kills >= 2
    found: dict[int, list[int]] = {0: [], 1: []}
    for record in read_log(file):
        partition, number = map(int, record.payload.split())
        found[partition].append(number)
    for partition, numbers in found.items():
        if keys:
            assert sorted(numbers) == list(range(ROWS))
        else:
            assert numbers == list(range(ROWS))
            assert counts[partition] == ROWS


def _count(writer: Writer, port: int) -> int:
    """What the broker says at the end that it has of a partition."""
    options = parse_write_options({"servers": f"127.0.0.1:{port}"})
    client = ProducerClient.dial(options.servers[0], options)
    joined = client.join(writer.part.client_id(4), {"producer-sequence": str(writer.part.base)}, options)
    client.leave()
    return joined.sequence - writer.part.base
