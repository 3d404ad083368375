"""Every counter is exported by a metric, and every metric has a source that exists and that the code counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import braidmq
from braidmq.api.metric_names import METRICS
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.state import Counters

# Not metrics, and why.
ELSEWHERE = {
    "statistics.connections_max": "$SYS/broker/clients/maximum",
    "statistics.expired": "$SYS/broker/clients/expired",
    "statistics.drops": "the drop log has them by reason; the metrics have each reason's own counter",
    "statistics.disconnects": "a table by reason code, for tests and traces",
    "statistics.violations": "Figures.violations, by the name of the reason",
    "statistics.refusals": "Figures.refusals, by the name of the reason",
    "statistics.listener_refusals": "Figures.connections_refused",
    "statistics.packets_sent": "Figures.packets_sent",
    "counters.inflight_lost": "Figures.inflight",
}
COMPUTED = re.compile(r"puback|pubrec|pubrel|pubcomp|pingreq")  # Figures.packets_received and packets_sent

PACKAGE = Path(braidmq.__file__).parent
# Who counts: the last name before the attribute, as in ``self._broker.statistics.kicked += 1``.
OWNERS: Mapping[str, type[Statistics] | type[Counters]] = {"statistics": Statistics, "counters": Counters}


def sources() -> set[str]:
    return {path for metric in METRICS.values() for path in metric.source.split(" + ")}


def test_every_counter_is_exported() -> None:
    counted = {f"statistics.{name}" for name in vars(Statistics())}
    counted |= {f"counters.{name}" for name in dir(Counters()) if not name.startswith("_") and not COMPUTED.match(name)}
    exported = {".".join(path.split(".")[:2]) for path in sources()}

    assert counted - exported == ELSEWHERE.keys()


def test_every_source_names_a_counter_that_exists() -> None:
    named = {path for path in sources() if path.startswith(("statistics.", "counters."))}

    for path in named:
        owner, name, *_ = path.split(".")
        assert hasattr(Statistics() if owner == "statistics" else Counters(), name), path


def counts_in(module: str) -> Iterator[str]:
    """Every ``owner.name`` that a module adds to, or sets outside the class that declares it."""
    for top in ast.parse(module).body:
        declares = isinstance(top, ast.ClassDef) and top.name in {each.__name__ for each in OWNERS.values()}
        for node in ast.walk(top):
            if isinstance(node, ast.AugAssign):
                targets: list[ast.expr] = [node.target]
            elif isinstance(node, ast.Assign) and not declares:
                targets = node.targets
            else:
                continue
            for target in [each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]:
                counted = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(counted, ast.Attribute):
                    owner = ast.unparse(counted.value).rpartition(".")[2].lstrip("_")
                    yield f"{top.name.lower() if declares and owner == 'self' else owner}.{counted.attr}"  # type: ignore[attr-defined]


def counts() -> set[str]:
    """Every ``owner.name`` that the code counts; the compiled modules' plain twins stand for them."""
    return {each for file in PACKAGE.rglob("*.py") for each in counts_in(file.read_text())}


def declared() -> set[str]:
    """The counters of ``OWNERS``, each as ``owner.name``."""
    statistics = {f"statistics.{name}" for name in vars(Statistics())}
    return statistics | {f"counters.{name}" for name in dir(Counters()) if not name.startswith("_")}


def test_every_declared_counter_is_counted_somewhere() -> None:
    assert declared() - counts() == set()


def test_every_counter_that_another_part_keeps_is_counted_there() -> None:
    kept = {
        path
        for metric in METRICS.values()
        if metric.kind == "counter"
        for path in metric.source.split(" + ")
        if "." in path and path.partition(".")[0] in {"access", "api_room", "broker", "client_room", "cluster", "log", "service"}
    }
    kept = {path.rpartition(".")[0] if ".refusals." in path else path for path in kept}  # a table by reason
    counted = {each.rpartition(".")[2] for each in counts()}
    # The service's own process tells them with every report.
    reported = {"service.served.connections_refused"}

    assert {path for path in kept if path.rpartition(".")[2] not in counted} == reported


def test_a_counter_that_is_only_declared_or_read_does_not_pass_as_counted() -> None:
    module = """
class Statistics:
    def __init__(self):
        self.invented = self.refusals = 0
    def on_refused(self, reason):
        self.refusals[reason] += 1

def work(broker, other):
    if broker.statistics.invented:
        other.invented += 1
    broker._statistics.kicked += 1
"""

    assert set(counts_in(module)) == {"statistics.refusals", "other.invented", "statistics.kicked"}
