"""Rows about messages: rates, processor time and latency, each compared with one node in turn."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec

from benchmarks.cluster.nodes import Group, bare, dev_cluster, with_workers
from benchmarks.cluster.report import Cost, Row, median_ratio
from benchmarks.figures import show_rate
from benchmarks.measure import Run, build

RUN_TIMEOUT_S = 60
LATENCY_RATE = 20_000
Say = Callable[[str], None]


class Scale(msgspec.Struct, frozen=True):
    """Duration and size of the measurements."""

    rounds: int = 3
    seconds: int = 2
    clients: int = 8000
    sessions: int = 10_000
    filters: int = 100_000
    routes: int = 1_000_000


QUICK = Scale(rounds=1, seconds=1, clients=2000, sessions=500, filters=10_000, routes=100_000)


class Shape(msgspec.Struct, frozen=True):
    """A flow, and its targets: the least share of one node's rate, and the most processor time, in times of one node's."""

    name: str
    title: str
    words: str
    rate: float | None = None
    cpu: float | None = None
    is_recorded: bool = False
    is_local: bool = False


_WINDOW_200, _WINDOW_100, _ONE = "-P 10 -q 0 -w 200", "-P 10 -q 1 -w 100", "-P 500 -q 0 -w 1"
_LOCAL = "QoS 0 on one worker, 10 to 10, window 200, nobody else interested"
_RECORDED = "QoS 1 recorded with fsync through the core, 10 to 10, window 100"
FLOWS = (
    Shape("local-qos0", _LOCAL, _WINDOW_200, cpu=1.1, is_local=True),
    Shape("pair-qos0", "QoS 0 through the core, 10 to 10, window 200", _WINDOW_200, 0.25, 4.0),
    Shape("single-qos0", "QoS 0 through the core, 500 to 500, one in flight", _ONE, 0.6, 1.8),
    Shape("recorded-qos1", _RECORDED, _WINDOW_100, 0.5, is_recorded=True),
    Shape("pair-qos1", "QoS 1 not recorded through the core, 10 to 10, window 100", _WINDOW_100, 0.2),
)


class Loads:
    """The load generators, compiled once."""

    def __init__(self, folder: Path, scale: Scale, say: Say) -> None:
        self.folder = folder
        self.scale = scale
        self.say = say
        self._programs = {name: build(folder, name) for name in ("mqload", "flood", "keep")}
        self._count = 0

    def place(self) -> Path:
        """A new directory."""
        self._count += 1
        return self.folder / f"nodes{self._count}"

    def command(self, program: str, *words: str | int) -> list[str]:
        """A command line."""
        return [str(self._programs[program]), *map(str, words)]

    def run(self, program: str, *words: str | int) -> Run:
        """Run a generator; raises RuntimeError if it fails."""
        done = subprocess.run(
            self.command(program, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-200:])
        return msgspec.json.decode(done.stdout, type=Run)


def measure_flow(loads: Loads, shape: Shape) -> tuple[Row, Cost]:
    """Run a shape on one node and through the cluster, in turn."""
    rates: dict[str, list[float]] = {"one": [], "many": []}
    costs: dict[str, list[dict[str, float]]] = {"one": [], "many": []}
    faults = 0
    with ExitStack() as stack:
        one = stack.enter_context(dev_cluster(loads.place(), 0, is_recorded=shape.is_recorded))
        many = stack.enter_context(_group_of(loads, shape))
        publishers, subscribers = (many.nodes[1], many.nodes[-1])
        for _ in range(loads.scale.rounds):
            for name, group, ports in (
                ("one", one, (one.core.mqtt, one.core.mqtt)),
                ("many", many, (publishers.mqtt, subscribers.mqtt)),
            ):
                run, cost = _costed(loads, group, *ports, shape)
                rates[name].append(run.delivered_per_s)
                costs[name].append(cost)
                faults += run.lost + run.dup
                loads.say(f"{shape.name:14}{name:5}{run.delivered_per_s:14,.0f}/s {sum(cost.values()):8.3f} us")
    share = median_ratio(rates["many"], rates["one"])
    ratio = median_ratio([sum(cost.values()) for cost in costs["many"]], [sum(cost.values()) for cost in costs["one"]])
    medians = {name: statistics.median(cost[name] for cost in costs["many"]) for name in costs["many"][0]}
    one_us = statistics.median(sum(cost.values()) for cost in costs["one"])
    targets = [f"at least {shape.rate:.0%}"] if shape.rate else []
    targets += [f"CPU at most {shape.cpu:g} x"] if shape.cpu else []
    is_met = share >= (shape.rate or 0) and ratio <= (shape.cpu or ratio) and not faults
    lost = f", {faults:,} lost or repeated" if faults else ""
    return (
        Row(
            shape.title,
            show_rate(statistics.median(rates["one"])),
            f"{show_rate(statistics.median(rates['many']))}, {share:.0%}; CPU {ratio:.2f} x{lost}",
            ", ".join(targets),
            is_met,
        ),
        Cost(shape.title, one_us, medians),
    )


def _group_of(loads: Loads, shape: Shape) -> AbstractContextManager[Group]:
    if shape.is_local:
        return with_workers(loads.place(), 1, core_listens=False, is_recorded=shape.is_recorded)
    return dev_cluster(loads.place(), 2, is_recorded=shape.is_recorded)


def _costed(loads: Loads, group: Group, publish_to: int, subscribe_to: int, shape: Shape) -> tuple[Run, dict[str, float]]:
    """A run, and the microseconds of each process for a message; both count the second in which the generator warms up."""
    before = group.cpu_s()
    words = shape.words.split()
    run = loads.run("mqload", "flow", "-p", publish_to, "-r", subscribe_to, "-m", "pair", *words, "-d", loads.scale.seconds)
    messages = max(1.0, run.delivered_per_s * (loads.scale.seconds + 1))
    return run, {name: (used - before[name]) * 1e6 / messages for name, used in group.cpu_s().items()}


def measure_latency(loads: Loads) -> Row:
    """From a publish to its PUBACK, recorded, on one node and through a worker, in turn; and by bare processes, to compare."""
    found: dict[str, list[Run]] = {}
    with ExitStack() as stack:
        ports = {
            "one": stack.enter_context(dev_cluster(loads.place(), 0, is_recorded=True)).core.mqtt,
            "worker": stack.enter_context(with_workers(loads.place(), 1, core_listens=False, is_recorded=True)).core.mqtt,
            "bare one": stack.enter_context(bare(loads.place(), "one")),
            "bare two": stack.enter_context(bare(loads.place(), "two")),
        }
        for _ in range(loads.scale.rounds):
            for name, port in ports.items():
                words = ("-m", "alone", "-P", 10, "-q", 1, "-w", 1000, "-r", LATENCY_RATE, "-d", loads.scale.seconds)
                run = loads.run("flood", "flow", "-p", port, *words)
                found.setdefault(name, []).append(run)
                loads.say(f"latency       {name:9} p50 {run.p50_ms:.2f} ms, p99 {run.p99_ms:.2f} ms")
    ratio, least = (
        median_ratio([run.p99_ms for run in found[many]], [run.p99_ms for run in found[one]])
        for one, many in (("one", "worker"), ("bare one", "bare two"))
    )
    one, many, bare_one, bare_two = (
        f"p50 {statistics.median(run.p50_ms for run in runs):.2f} ms, p99 {statistics.median(run.p99_ms for run in runs):.2f} ms"
        for runs in found.values()
    )
    title = f"publish to PUBACK, recorded with fsync, {LATENCY_RATE:,}/s through a worker"
    why = f"a process that only syncs and acknowledges has {bare_one}, two that pass it on {bare_two}: {least:.2f} x."
    return Row(title, one, f"{many}: {ratio:.2f} x", "p99 at most 1.5 x", ratio <= 1.5, why)
