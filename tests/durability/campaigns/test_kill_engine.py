"""kill -9 while the storage engine writes a memtable out, or compacts tables: nothing that was acknowledged is gone."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from braidmq.mqtt.packets import Puback, Publish
from braidmq.storage.engine.store import Store
from tests.durability.campaigns import small
from tests.durability.campaigns.node import client, kill, log_dir, read_log, write_config
from tests.support.clients.wire import Closed
from tests.support.started import SOURCES, Started

FAMILY = "shard-00"
DEADLINE_S = 30.0
SMALL = [sys.executable, "-P", small.__file__]

# Writes numbered rows and tells which are committed; beside that it writes out and compacts, and tells that before it does it.
WRITER = r"""
import os, random, sys, threading, time
from braidmq.storage.engine.store import Store

def say(word):
    os.write(1, b"%s\n" % str(word).encode())

store = Store.open(sys.argv[1], ["shard-00"])
store.start(lambda call: call(), say)

def write():
    noise = random.Random(1)
    for number in range(1, 1_000_000):
        batch = store.batch()
        batch.put("shard-00", b"%08d" % number, noise.randbytes(2000))
        while True:
            try:
                store.write(batch)
                break
            except Exception:
                batch = store.batch()
                batch.put("shard-00", b"%08d" % number, noise.randbytes(2000))

threading.Thread(target=write, daemon=True).start()
while True:
    for _ in range(3):
        written = store.written
        while store.written < written + 500:
            time.sleep(0.001)
        say("flush")
        store._database.family("shard-00").flush(True)
    say("compaction")
    store.compact("shard-00", b"", b"\xff")
"""


@pytest.mark.row("D11")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("work", ["flush", "compaction"])
def test_killing_the_engine_at_its_work_loses_nothing_that_was_committed(tmp_path: Path, work: str, seed: int) -> None:
    chance = random.Random(seed)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert writer.stdout is not None
    committed = 0
    rounds = 1 + seed
    while rounds:
        word = writer.stdout.readline().strip()
        committed = int(word) if word.isdigit() else committed
        rounds -= word == work
    time.sleep(chance.uniform(0, 0.02))  # the moment of the kill is what is tried out
    writer.kill()
    rest, _ = writer.communicate(timeout=DEADLINE_S)
    committed = max([committed, *(int(word) for word in rest.split() if word.isdigit())])

    with Store.open(tmp_path / "log", [FAMILY]) as store:
        found = [int(key) for key, _ in store.items(FAMILY, b"", b"\xff")]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= committed > 0


@pytest.mark.row("D11")
def test_killing_a_node_whenever_a_table_appears_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    file = write_config(tmp_path, mqtt={"receive_maximum": 65535})
    noise = random.Random(7)
    acknowledged: list[bytes] = []
    for _ in range(2):
        with Started(file, command=SMALL) as node:
            acknowledged += publish_until_a_table_appears(node, log_dir(file), noise)

    found = [record.payload for record in read_log(file)]
    assert len(found) == len(set(found)), "a QoS 1 message that was sent once is there once"
    assert set(acknowledged) <= set(found)
    assert len(acknowledged) > 100


def publish_until_a_table_appears(node: Started, log: Path, noise: random.Random) -> list[bytes]:
    """Publish, and kill the node as soon as it makes its third table; what it had acknowledged by then."""
    wire = client(node.await_port())
    payloads: list[bytes] = []
    is_dead = threading.Event()

    def publish() -> None:
        with contextlib.suppress(OSError):
            while not is_dead.is_set() and len(payloads) < 60_000:
                payloads.append(noise.randbytes(2000))
                wire.send(Publish("t", payloads[-1], 1, packet_id=len(payloads)))

    known = set(log.glob("*.sst"))
    publisher = threading.Thread(target=publish)
    publisher.start()
    tables: set[Path] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(tables) < 3:
        assert time.monotonic() < deadline, node.log
        tables |= set(log.glob("*.sst")) - known
    kill(node)
    is_dead.set()
    publisher.join(DEADLINE_S)
    answered = []
    with contextlib.suppress(Closed):
        while True:
            answer = wire.receive(Puback)
            if answer.reason < 0x80:
                answered.append(payloads[answer.packet_id - 1])
    wire.close()
    return answered
