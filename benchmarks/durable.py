"""Benchmarks of the log: recorded flows, a restart with a large log, replay to clients, sessions that resume."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator

import msgspec

from benchmarks.brokers import ROOT, Broker, make_broker
from benchmarks.figures import Figure, show_rate
from benchmarks.measure import Bench, Series, build
from benchmarks.shapes import FIRST_TARGET_MS, RECORDED, REPLAY_TARGET_PER_S, RESTART_TARGET_S, RESUME_TARGET_S
from benchmarks.storage import dataset
from benchmarks.storage.dataset import DataSet
from benchmarks.storage.log import measure_append, measure_reads

DATA = ROOT / "build" / "log-data"
MESSAGES_EACH = 100
REPLAYED_MAX = 1_000_000
RUN_TIMEOUT_S = 180
ROUNDS = 3


class Kept(msgspec.Struct):
    """The output of the generator ``keep``; the fields depend on the command."""

    delivered_per_s: float = 0.0
    published_per_s: float = 0.0
    received: int = 0
    first_ms: float = 0.0
    seconds: float = 0.0
    lost: int = 0
    dup: int = 0


def recorded(bench: Bench) -> Series:
    """A flow through brokers that record it, and through mosquitto, which does not; rounds in turn."""
    series = Series(RECORDED.name, RECORDED.title, {}, RECORDED.target)
    wanted = [name for name in bench.brokers if name in ("braidmq", "mosquitto", "nats")]
    with contextlib.ExitStack() as stack:
        brokers = {name: stack.enter_context(running(bench, name, is_recorded=True)) for name in wanted}
        for _ in range(bench.scale.rounds):
            for name, broker in brokers.items():
                bench.run_flow(series, name, broker, RECORDED)
    return series


def log(bench: Bench) -> list[Figure]:
    """The log alone and inside a node, on a data set that is created once and kept in ``build``."""
    figures = [measure_append(bench.folder)]
    data = dataset.prepare(DATA, bench.scale.records, bench.scale.sessions, bench.say)
    figures += [*measure_reads(data), *_restart_and_replay(bench, data)]
    for figure in figures:
        bench.say(f"log        {figure.title}: {figure.found}")
    return figures


def resume(bench: Bench) -> list[Figure]:
    """Durable sessions that all reconnect at once: each with its own messages, and all with the same ones."""
    clients = bench.scale.resuming
    figures = []
    for topics, words in ((clients, "one topic per session"), (1, "one topic for all")):
        title = f"{clients:,} durable sessions reconnect at once, {MESSAGES_EACH} messages each, {words}"
        with running(bench, "braidmq", is_recorded=True) as broker:
            try:
                found, memory_mib = _resume(bench, broker, clients, topics)
            except RuntimeError as problem:
                figures.append(Figure(title, str(problem), f"within {RESUME_TARGET_S:g} s", False))
                continue
        is_clean = found.lost == found.dup == 0
        faults = "" if is_clean else f", lost {found.lost:,}, repeated {found.dup:,}"
        figures.append(
            Figure(
                title,
                f"{found.seconds:.1f} s, {show_rate(found.delivered_per_s)}, {memory_mib:.0f} MiB more than before{faults}",
                f"within {RESUME_TARGET_S:g} s",
                is_clean and found.seconds <= RESUME_TARGET_S,
            )
        )
        bench.say(f"resume     {title}: {figures[-1].found}")
    return figures


@contextlib.contextmanager
def running(bench: Bench, name: str, *, is_recorded: bool, data_dir: str | None = None) -> Iterator[Broker]:
    """A separate broker, with an empty log unless a directory is given."""
    place = bench.folder / f"recorded-{time.monotonic_ns()}"
    broker = make_broker(name, place, bench.certificate, is_recorded=is_recorded, data_dir=data_dir)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _restart_and_replay(bench: Bench, data: DataSet) -> list[Figure]:
    """Start a node on the data set; measures wall-clock time until its listeners answer."""
    began = time.perf_counter()
    with running(bench, "braidmq", is_recorded=True, data_dir=data.folder) as broker:
        serving_s = time.perf_counter() - began
        restart = Figure(
            f"restart with {data.sessions:,} durable sessions and {data.records:,} records",
            f"serves after {serving_s:.1f} s, {broker.cpu_s():.1f} s of CPU",
            f"under {RESTART_TARGET_S:g} s",
            serving_s < RESTART_TARGET_S,
        )
        return [restart, _first_to_client(bench, broker, data), _replay_to_client(bench, broker, data)]


def _first_to_client(bench: Bench, broker: Broker, data: DataSet) -> Figure:
    title, target = f"replay of one exact topic to an MQTT client, slowest of {ROUNDS}", f"under {FIRST_TARGET_MS:g} ms"
    topics = [dataset.topic_of(number * 90_001 % data.records, data.topics) for number in range(1, ROUNDS + 1)]
    try:
        slowest = max(_keep(bench, broker, "replay", "-f", f"$replay/earliest/{topic}", "-n", "1").first_ms for topic in topics)
    except RuntimeError as problem:
        return Figure(title, str(problem), target, False)
    return Figure(title, f"{slowest:.1f} ms to the first message", target, slowest < FIRST_TARGET_MS)


def _replay_to_client(bench: Bench, broker: Broker, data: DataSet) -> Figure:
    title, target = f"replay of `{dataset.TENTH}` to an MQTT client, QoS 0", show_rate(REPLAY_TARGET_PER_S)
    wanted = min(data.records // len(dataset.KINDS), REPLAYED_MAX)
    words = ("-f", f"$replay/earliest/{dataset.TENTH}", "-n", str(wanted))
    try:
        runs = [_keep(bench, broker, "replay", *words) for _ in range(ROUNDS)]
    except RuntimeError as problem:
        return Figure(title, str(problem), target, False)
    best = max(run.delivered_per_s for run in runs)
    least = min(run.received for run in runs)
    missing = "" if least >= wanted else f", only {least:,} of {wanted:,} messages"
    return Figure(title, show_rate(best) + missing, target, best >= REPLAY_TARGET_PER_S and not missing)


def _keep(bench: Bench, broker: Broker, command: str, *words: str) -> Kept:
    """Run the generator; raises RuntimeError with its error message if it fails."""
    program = str(build(bench.folder, "keep"))
    try:
        done = subprocess.run(
            [program, command, "-p", str(broker.ports["tcp"]), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RUN_TIMEOUT_S,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished within {RUN_TIMEOUT_S} s") from None
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return msgspec.json.decode(done.stdout, type=Kept)


def _resume(bench: Bench, broker: Broker, clients: int, topics: int) -> tuple[Kept, float]:
    """The result of the generator, and the peak growth of the broker in MiB while the sessions resumed."""
    words = ["resume", "-p", str(broker.ports["tcp"]), "-n", str(clients), "-g", str(topics), "-k", str(MESSAGES_EACH)]
    process = subprocess.Popen(
        [str(build(bench.folder, "keep")), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        if not process.stdout.readline():  # everything is published
            raise RuntimeError(process.stderr.read().strip())
        before = broker.memory_peak_kib()
        process.stdin.write("go\n")
        process.stdin.close()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(process.stderr.read().strip())
        grown_mib = (broker.memory_peak_kib() - before) / 1024
    return msgspec.json.decode(line, type=Kept), grown_mib
