"""kill -9 under load: what was acknowledged is there, once and in order."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from tests.storage.message_log import Stage

ROUNDS = 10
ROOT = Path(__file__).parents[2]

# Appends without end and says what was acknowledged, one line for each commit. Every record has a row of its own beside it.
WRITER = """
import os, queue, sys
from braidmq.base.config.settings import HistorySettings
from braidmq.storage.rows.changes import Put
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions, DurableLog
from appending import append

log = DurableLog.open(sys.argv[1], HistorySettings(shards=3), options=LogOptions(limits=EpochLimits(count_max=50)))
calls = queue.SimpleQueue()
log.start(calls.put)
number = int(sys.argv[2])
acks = []

def refused(refusal):
    os._exit(3)

while True:
    for _ in range(20):
        client, topic = f"client-{number % 10}", f"t/{number % 3}"
        row = Put(log.shard_of(client), b"\\xea%d" % number, b"")
        append(
            log, client, topic.encode(), b"%d" % number, changes=[row], on_refused=refused,
            on_commit=lambda shard, timestamp, number=number: acks.append(f"{number}:{shard}:{timestamp}"),
        )
        number += 1
    log.flush()
    if number % 500 == 0:
        log.retain()
    if log.pending_bytes > 50_000:
        calls.get()()
    while not calls.empty():
        calls.get()()
    if acks:
        os.write(1, (" ".join(acks) + "\\n").encode())
        acks.clear()
"""


def run_and_kill(data_dir: Path, first: int, lines: int) -> list[tuple[int, int, int]]:
    """Let the writer run until so many lines were read, kill it, and return all it had acknowledged."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(data_dir), str(first)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": "src:tests/support"},
    )
    assert writer.stdout is not None
    with writer:
        text = b"".join(writer.stdout.readline() for _ in range(lines))
        writer.kill()
        text += writer.stdout.read()
    assert writer.returncode == -9
    # The last line may be cut off in the middle of a number.
    words = text[: text.rfind(b"\n") + 1].split()
    return [(int(number), int(shard), int(at)) for number, shard, at in (word.split(b":") for word in words)]


@pytest.mark.timeout(60)
def test_acknowledged_records_survive_kill_9(tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: list[tuple[int, int, int]] = []
    first = 0
    for _ in range(ROUNDS):
        acknowledged += run_and_kill(tmp_path, first, chance.randrange(1, 60))

        with Stage(tmp_path, options=LogOptions(limits=EpochLimits(count_max=50))) as stage:
            found = stage.read("#")
            numbers = [int(record.payload) for _, record in found]
            rows = {int(key[1:]) for shard in range(3) for key, _ in stage.log.rows(shard, b"\xea", b"\xeb")}
            by_topic = [stage.payloads(f"t/{topic}") for topic in range(3)]
        first = max(numbers) + 1

        assert len(numbers) == len(set(numbers))
        assert set(acknowledged) <= {(int(record.payload), shard, record.timestamp) for shard, record in found}
        assert rows == set(numbers)
        assert sorted(chain.from_iterable(by_topic)) == sorted(record.payload for _, record in found)
        for shard in range(3):
            stamps = [record.timestamp for number, record in found if number == shard]
            assert stamps == sorted(set(stamps))
        for client in range(10):
            own = [number for number in numbers if number % 10 == client]
            assert own == sorted(own)

    assert len(acknowledged) > 1000
