"""The memory of a home's table of owners."""

from __future__ import annotations

import tracemalloc

from benchmarks.registry.report import ModeRow
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import ClaimRequest

CLIENTS = 100_000
TARGET_BYTES = 250


def measure_memory() -> ModeRow:
    """What a client takes in the table, beside the bytes of its id, which the session has as well."""
    bytes_each = _bytes_each()
    return ModeRow(
        f"memory of the table, {CLIENTS:,} clients",
        f"{bytes_each:.0f} bytes a client",
        "the same table",
        f"at most {TARGET_BYTES} bytes a client beside its id",
        bytes_each <= TARGET_BYTES,
    )


def _bytes_each() -> float:
    claims: HomeClaims[str] = HomeClaims(1.0, lambda: 1_700_000_000_000_000)
    ids = [f"client-{number:08}" for number in range(CLIENTS)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, client_id in enumerate(ids, 1):
            ms = 1_700_000_000_000 + number
            claims.claim("node", ClaimRequest(number, client_id, number, ms, 5, ms), 0.0)
        return (tracemalloc.get_traced_memory()[0] - before) / CLIENTS
    finally:
        tracemalloc.stop()
