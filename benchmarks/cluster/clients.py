"""Rows about clients: connection storms, and sessions that return."""

from __future__ import annotations

import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec

from benchmarks.cluster.flows import Loads
from benchmarks.cluster.nodes import Group, Node, dev_cluster, with_workers
from benchmarks.cluster.report import Row, median_ratio
from benchmarks.durable import MESSAGES_EACH, Kept


def measure_connects(loads: Loads) -> Row:
    """Clients that connect and subscribe, on one node and on a core with one worker on the same port, in turn."""
    rates: dict[str, list[float]] = {"one": [], "workers": [], "apart": []}
    for _ in range(loads.scale.rounds):
        with ExitStack() as stack:  # fresh ones: clients of the last round are still leaving
            groups = {
                "one": stack.enter_context(dev_cluster(loads.place(), 0)),
                "workers": stack.enter_context(with_workers(loads.place(), 1, core_listens=True)),
            }
            for name, group in groups.items():
                run = loads.run("mqload", "connect", "-p", group.core.mqtt, "-n", loads.scale.clients, "-c", 200)
                rates[name].append(run.connects_per_s)
                loads.say(f"connect       {name:8}{run.connects_per_s:10,.0f}/s")
        with ExitStack() as stack:
            nodes = [stack.enter_context(dev_cluster(loads.place(), 0)).core for _ in range(2)]
            rates["apart"].append(_connect_apart(loads, nodes))
            loads.say(f"connect       apart   {rates['apart'][-1]:10,.0f}/s")
    ratio, most = (median_ratio(rates[name], rates["one"]) for name in ("workers", "apart"))
    one, many, apart = (f"{statistics.median(found):,.0f}/s" for found in rates.values())
    title = f"{loads.scale.clients:,} clients connect and subscribe, `--workers 1`"
    why = f"two nodes that know nothing of each other reach {apart} together, {most:.2f} x, with half of the clients each."
    return Row(title, one, f"{many}, {ratio:.2f} x", "at least 1.2 x", ratio >= 1.2, why)


def _connect_apart(loads: Loads, nodes: list[Node]) -> float:
    """Half of the clients connect to each of two nodes at the same time; the rate of both together."""
    count = loads.scale.clients // 2
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda node: loads.run("mqload", "connect", "-p", node.mqtt, "-n", count, "-c", 100), nodes))
    return 2 * count / max(count / run.connects_per_s for run in runs)


def measure_resume(loads: Loads) -> Row:
    """Durable sessions that return at once."""
    count = loads.scale.sessions
    with dev_cluster(loads.place(), 0, is_recorded=True) as group:
        one = _resume(loads, group, count)
    with with_workers(loads.place(), 1, core_listens=False, is_recorded=True) as group:
        many = _resume(loads, group, count)
    ratio = many.seconds / one.seconds if one.seconds else 0.0
    faults = many.lost + many.dup
    loads.say(f"resume        one {one.seconds:.2f} s, worker {many.seconds:.2f} s, {faults} lost or repeated")
    title = f"{count:,} durable sessions return through a worker, {MESSAGES_EACH} messages each"
    lost = f", lost {many.lost:,}, repeated {many.dup:,}" if faults else ""
    return Row(
        title, f"{one.seconds:.1f} s", f"{many.seconds:.1f} s, {ratio:.1f} x{lost}", "at most 2 x", ratio <= 2 and not faults
    )


def _resume(loads: Loads, group: Group, count: int) -> Kept:
    words = ("resume", "-p", group.core.mqtt, "-n", count, "-g", count, "-k", MESSAGES_EACH, "-d", 120)
    done = subprocess.run(loads.command("keep", *words), input="go\n", capture_output=True, text=True, timeout=400)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Kept)
