"""Every attack at once, beside ordinary clients: they are served, nothing of theirs is lost, and memory keeps its bound."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
import tomli_w

from benchmarks.measure import build
from braidmq.base.config.sources import from_tables
from braidmq.base.file_descriptors import plan_files
from braidmq.mqtt.packets import MQTT5
from braidmq.operations.memory_bound import memory_bound
from tests.support.clients.wire import Wire
from tests.support.hostile import SPEAKING, attack
from tests.support.plain_writer import STEP_BYTES, plain_writer, written_bytes
from tests.support.started import COMMAND, Started

MIB = 1024 * 1024
FILES_MAX = 1000
ROUNDS = int(os.environ.get("BRAIDMQ_SOAK_ROUNDS", "3"))
CHOSEN = os.environ.get("BRAIDMQ_SOAK_ATTACKS", "").split()  # names of attackers; none: all of them
ROUND_S = 20
PAIRS = 20
CALM_MS = 2.0  # a p99 that is calm, even if it was less: below that the scheduler decides
RATE = 1000  # messages a second of all publishers together

LIMITED = ["sh", "-c", f'ulimit -n {FILES_MAX}; exec "$0" "$@"', *COMMAND]

TABLES: dict[str, dict[str, object]] = {
    "node": {"data_dir": "data"},
    "api": {"bind": ""},
    "limits": {"held_bytes_max": "128MiB", "outboxes_bytes_max": "64MiB", "parts_bytes_max": "64MiB"},
    "retained": {"bytes_max": "128MiB"},
    "delayed": {"bytes_max": "256MiB"},
    "session": {"sessions_max": 1000, "expiry_max": "30s"},
    # What is replayed must not grow for as long as the test runs.
    "history": {"retention_bytes": "512MiB"},
    "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
}


def bound() -> int:
    """The most that this node may come to need, by its configuration."""
    settings = from_tables(TABLES).settings
    speaking = SPEAKING + 2 * PAIRS + 1
    # 40,000 shared groups, 10,000 deep filters, 300 replays, and what is left of the last strike until it has gone.
    return memory_bound(
        settings,
        connections=speaking,
        silent=plan_files(FILES_MAX).clients - speaking,
        sessions=1000,
        subscriptions=2 * 50_300,
        filter_bytes=2 * (40_000 * 16 + 2 * settings.session.filter_bytes_max),
    )


def peak_bytes(pid: int) -> int:
    """The most memory that the process had at a time."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


@contextmanager
def ordinary_clients(flood: Path, port: int, seconds: int) -> Iterator[subprocess.Popen[str]]:
    """Publishers and subscribers of QoS 1 at a steady rate; the block begins when all of them are connected.

    They sleep between messages (``-z``): a generator that spins takes one of two processors from the node and its attackers,
    which would otherwise be other machines, and hides how busy the attacks keep the node.
    """
    with Wire("127.0.0.1", port, MQTT5).connect() as watcher:
        watcher.subscribe("$SYS/brokers/+/clients/+/connected")
        command = [str(flood), "flow", "-p", str(port), "-m", "pair", "-P", str(PAIRS), "-q", "1", "-w", "1000"]
        flow = subprocess.Popen([*command, "-r", str(RATE), "-z", "-d", str(seconds)], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(2 * PAIRS):
                watcher.receive_publish()
            yield flow
        finally:
            flow.kill()
            flow.wait()


def outcome(flow: subprocess.Popen[str]) -> dict[str, float]:
    """What the ordinary clients saw; nothing of theirs may be lost or come twice."""
    output, _ = flow.communicate(timeout=ROUND_S + 60)
    found: dict[str, float] = json.loads(output)
    assert (found["lost"], found["dup"]) == (0, 0)
    return found


@pytest.mark.soak
@pytest.mark.needs("gcc")
@pytest.mark.row("N1", "N2", "N3")
def test_every_attack_at_once_costs_ordinary_clients_no_message_and_memory_keeps_its_bound(tmp_path: Path) -> None:
    flood = build(tmp_path, "flood")
    file = tmp_path / "braidmq.toml"
    file.write_text(tomli_w.dumps(TABLES))
    calm, stormy, beside_writer = [], [], []
    with Started(file, command=LIMITED) as node:
        port = node.await_port()
        for number in range(ROUNDS):
            with ordinary_clients(flood, port, ROUND_S) as flow:
                calm.append(outcome(flow)["p99_ms"])
            before = written_bytes(node.pid)
            with ordinary_clients(flood, port, ROUND_S) as flow, attack(port, ROUND_S + 2, CHOSEN) as completed:
                stormy.append(outcome(flow)["p99_ms"])
                struck = completed()
            written = written_bytes(node.pid) - before
            if written >= STEP_BYTES:  # else the files are in memory
                with plain_writer(tmp_path, written, ROUND_S) as ended, ordinary_clients(flood, port, ROUND_S) as flow:
                    beside_writer.append(outcome(flow)["p99_ms"])
                    syncs = ended()
                print(
                    f"p99 {beside_writer[-1]:.1f} ms without attacks, while a plain process writes as many bytes "
                    f"({written / ROUND_S / MIB:.0f} MiB/s), whose syncs take {median(syncs) * 1000:.1f} ms, "
                    f"at most {max(syncs) * 1000:.0f} ms",
                    file=sys.stderr,
                )
            peak = peak_bytes(node.pid)
            print(
                f"round {number + 1}: p99 {calm[-1]:.1f} ms calm, {stormy[-1]:.1f} ms under attack; "
                f"{peak / MIB:.0f} MiB at most, bound {bound() / MIB:.0f} MiB; {struck}",
                file=sys.stderr,
            )
            assert struck, f"no attacker has one of the names {CHOSEN}"
            assert all(struck.values()), "an attack did not take place"
            assert peak < bound()

    print(f"p99 under attack: {median(stormy) / median(calm):.1f} x that of calm rounds", file=sys.stderr)
    # What the disk alone costs is not the broker's: without attacks, and as many bytes written by another process.
    assert median(stormy) <= 2 * max(median(calm), median(beside_writer or calm), CALM_MS)
