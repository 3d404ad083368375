"""Prints the memory of filters that another node wants, in bytes per filter beside its text.

python -m benchmarks.lane.route_memory [COUNT]
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import PeerFlow
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription

SHAPES: dict[str, Callable[[int], bytes]] = {
    "exact topic": lambda number: b"site/line%d/device%d/temperature" % (number % 100, number),
    "device/#": lambda number: b"site/line%d/device%d/#" % (number % 100, number),
    "+ within": lambda number: b"site/+/device%d/temperature" % number,
    "random/+/status": lambda number: b"%d/+/status" % number,
}


def resident_bytes() -> int:
    """The process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def measure(shape: str, count: int) -> float:
    """Bytes per filter; the texts exist before and after. Their copies in the table count."""
    state = State(1, 1)
    table = RouteTable(128)
    subscription = Subscription(PeerFlow("peer", state), b"#", 2, retain_as_published=True)
    filters = [SHAPES[shape](number) for number in range(count)]
    gc.collect()
    before = resident_bytes()
    table.apply_remote(filters, [], subscription)
    gc.collect()
    return (resident_bytes() - before) / count


def main() -> None:
    """Print the table; each shape is measured in a process of its own."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        print(measure(sys.argv[2], count))
        return
    print(f"{__doc__.splitlines()[0]}\n\n{'bytes per filter':24}{count:>12,} filters")
    for shape in SHAPES:
        command = [sys.executable, "-m", "benchmarks.lane.route_memory", str(count), shape]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        print(f"{shape:24}{float(done.stdout):12,.0f}")


if __name__ == "__main__":
    main()
