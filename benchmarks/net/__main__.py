"""`python -m benchmarks.net`."""

from __future__ import annotations

from benchmarks.net.throughput import main

main()
