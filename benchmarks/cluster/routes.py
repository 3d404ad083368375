"""Rows about routes: how fast other nodes learn filters, and what a node that comes or returns costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cluster.flows import Loads
from benchmarks.cluster.nodes import Group, dev_cluster, memory_bytes, started
from benchmarks.cluster.probe import Probe, Proxy, until_heard
from benchmarks.cluster.report import Row
from benchmarks.measure import Run
from braidmq.base.config.sources import to_toml

OTHERS = 5
MISSED = 1000
FILTERS_PER_CLIENT = 5000
PUBACK_RATE = 2000
SEEN_TIMEOUT_S = 60.0


class Table(msgspec.Struct):
    """What the generator says of the subscriptions it has made."""

    subscriptions: int
    seconds: float
    p99_ms: float = 0.0


@contextlib.contextmanager
def _subscribed(loads: Loads, port: int, count: int, clients: int, kind: str = "-e") -> Iterator[Table]:
    """Filters, 100 to a packet, while the block runs; exact ones, or with ``-W`` such with wildcards."""
    words = ("table", "-p", port, kind, count, "-n", clients)
    process = subprocess.Popen(
        loads.command("flood", *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(process.stderr.read().strip())
        yield msgspec.json.decode(line, type=Table)
        assert process.stdin
        process.stdin.close()


def measure_spread(loads: Loads) -> Row:
    """Many filters on one node, until all other nodes know them."""
    count = loads.scale.filters
    with dev_cluster(loads.place(), OTHERS) as group:
        speakers = [Probe(node.mqtt, f"speaker-{node.name}") for node in group.nodes if node is not group.nodes[1]]
        with _subscribed(loads, group.nodes[1].mqtt, count, max(10, count // FILTERS_PER_CLIENT)) as table:
            # Entries of a node are applied in order: one that comes behind all others is known when they are.
            listener = Probe(group.nodes[1].mqtt, "listener")
            listener.subscribe("seen/last")
            seen_s = table.seconds + until_heard(listener, speakers, "seen/last", SEEN_TIMEOUT_S)
    loads.say(f"spread        {count:,} filters: seen after {seen_s:.2f} s, SUBACK p99 {table.p99_ms:.1f} ms")
    title = f"{count:,} filters, 100 a packet, seen by {OTHERS} other nodes"
    found = f"{seen_s:.2f} s, SUBACK p99 {table.p99_ms:.1f} ms"
    return Row(title, "", found, "3 s, SUBACK p99 50 ms", seen_s <= 3 and table.p99_ms <= 50)


def measure_loading(loads: Loads) -> list[Row]:
    """A replicant that comes to a core with many routes, and one that has missed a few."""
    count = loads.scale.routes
    with dev_cluster(loads.place(), 0) as group:
        with _replicant(loads, group, "bare", group.core.cluster) as (process, _, bare_s):
            bare_bytes = memory_bytes(process.pid)
        with _subscribed(loads, group.core.mqtt, count, max(10, count // FILTERS_PER_CLIENT)):
            return [_load(loads, group, count, bare_s, bare_bytes), _catch_up(loads, group, count)]


def _load(loads: Loads, group: Group, count: int, bare_s: float, bare_bytes: int) -> Row:
    normal = _pubacks(loads, group.core.mqtt, 3).communicate()[0]
    with _busy_process():
        beside = _pubacks(loads, group.core.mqtt, 3).communicate()[0]
    during = _pubacks(loads, group.core.mqtt, 6)
    time.sleep(0.5)
    with _replicant(loads, group, "empty", group.core.cluster) as (process, _, took_s):
        used = (memory_bytes(process.pid) - bare_bytes) / count
    p99, base, least = (_run_of(text).p99_ms for text in (during.communicate()[0], normal, beside))
    text = sum(len(f"table/{number}/t") for number in range(count)) / count
    load_s = took_s - bare_s
    loads.say(
        f"load          {load_s:.2f} s, PUBACK p99 {base:.2f} -> {p99:.2f} ms ({least:.2f} ms beside a busy process), "
        f"{used - text:.0f} bytes a route"
    )
    found = f"{load_s:.2f} s, PUBACK p99 {p99:.2f} ms ({p99 / base:.1f} x), {used - text:.0f} bytes a route"
    target = "10 s, PUBACK p99 at most 2 x, 200 bytes a route beside its text"
    title = f"an empty replicant loads {count:,} routes"
    is_met = load_s <= 10 and p99 <= 2 * base and used - text <= 200
    why = f"beside a process that only computes, PUBACK p99 is {least:.2f} ms, {least / base:.1f} x."
    return Row(title, f"PUBACK p99 {base:.2f} ms", found, target, is_met, why)


def _catch_up(loads: Loads, group: Group, count: int) -> Row:
    assert group.core.cluster is not None
    proxy = Proxy(group.core.cluster)
    with _replicant(loads, group, "returning", proxy.port) as (_, port, _):
        speaker = Probe(port, "speaker")
        proxy.cut()
        with _subscribed(loads, group.core.mqtt, MISSED, 10, "-W"):
            listener = Probe(group.core.mqtt, "listener")
            listener.subscribe("seen/last")
            proxy.restore()
            until_heard(listener, [speaker], "seen/last", SEEN_TIMEOUT_S)
            took_ms = (time.monotonic() - proxy.accepted_at) * 1000
            sent = proxy.bytes_to_node
    proxy.close()
    has_snapshot = sent > count * 5
    loads.say(f"catch-up      {took_ms:.0f} ms, {sent:,} bytes")
    found = f"{took_ms:.0f} ms, {sent:,} bytes from the core, {'a snapshot' if has_snapshot else 'no snapshot'}"
    title = f"a replicant that missed {MISSED:,} of {count:,} changes"
    return Row(title, "", found, "200 ms, no snapshot", took_ms <= 200 and not has_snapshot)


@contextlib.contextmanager
def _busy_process() -> Iterator[None]:
    """A process that takes a processor, and does nothing for anyone."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _pubacks(loads: Loads, port: int, seconds: int) -> subprocess.Popen[str]:
    words = ("-m", "alone", "-P", 10, "-q", 1, "-w", 100, "-r", PUBACK_RATE, "-d", seconds)
    command = loads.command("flood", "flow", "-p", port, *words)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _run_of(text: str) -> Run:
    return msgspec.json.decode(text, type=Run)


@contextlib.contextmanager
def _replicant(
    loads: Loads, group: Group, name: str, core_port: int | None
) -> Iterator[tuple[subprocess.Popen[Any], int, float]]:
    """One more replicant: its process, its port, and the seconds from its start until it was ready."""
    folder = loads.place()
    folder.mkdir()
    file = folder / "config.toml"
    values: dict[str, object] = {
        "node.name": name,
        "node.role": "replicant",
        "node.data_dir": str(folder / "data"),
        "listeners.tcp.default.bind": "127.0.0.1:0",
        "api.bind": "",
        "log.level": "error",
        "cluster.secret": _secret_of(group.folder),
        "cluster.core_nodes": [f"127.0.0.1:{core_port}"],
    }
    file.touch(0o600)
    file.write_text(to_toml(values))
    began = time.monotonic()
    with started(file, folder) as (process, port):
        yield process, port, time.monotonic() - began


def _secret_of(folder: Path) -> str:
    """The secret that ``dev-cluster`` has given its nodes."""
    text = next(line for line in (folder / "core1" / "braidmq.toml").read_text().splitlines() if line.startswith("secret"))
    return text.split('"')[1]
