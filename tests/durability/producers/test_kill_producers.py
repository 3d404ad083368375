"""A node that is killed again and again while producers publish: each row is recorded once, in order, and the CONNACK says it."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pytest

from tests.durability.campaigns.node import read_log, write_config
from tests.durability.producers.writer import Writer, count_of, judge
from tests.support.ports import free_port
from tests.support.started import Started


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("qos", "keys"), [(1, False), (2, False), (1, True)])
def test_rows_are_recorded_once_and_in_order_over_kills_of_the_node_and_of_the_tasks(
    tmp_path: Path, qos: int, keys: bool
) -> None:
    chance = random.Random(qos + 10 * keys)
    port = free_port()
    file = write_config(tmp_path, listeners={"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}}, history={"bind": ""})
    work = threading.Semaphore(0)
    writers = [Writer(f"127.0.0.1:{port}", partition, qos, chance, work, keys=keys) for partition in range(2)]
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
        counts = [count_of(writer, f"127.0.0.1:{port}") for writer in writers]
    finally:
        node.send(signal.SIGTERM)
        node.await_end()

    assert kills >= 2
    judge(writers, read_log(file), counts)
