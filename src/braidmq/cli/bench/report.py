"""The output of a benchmark: progress lines while it runs; a table, a histogram or JSON at the end."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from braidmq.cli.bench.fleet import Fleet
from braidmq.cli.bench.histogram import Histogram
from braidmq.cli.bench.plan import BenchPlan
from braidmq.cli.bench.tally import Tally

_BAR: Final = 40
_INTERVAL_S: Final = 1.0
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
_LATENCY_OF: Final = {
    "conn": "CONNECT to CONNACK",
    "pub": "PUBLISH to acknowledgement",
    "sub": "publisher to subscriber",
    "flow": "publisher to subscriber",
}


async def show_progress(plan: BenchPlan, tally: Tally, fleet: Fleet) -> None:
    """Show progress on standard error once a second until cancelled; on a terminal in one changing line."""
    began = time.monotonic()
    console = Console(stderr=True)
    before = (tally.connected, tally.sent, tally.received)
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        while True:
            at = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)
            now = (tally.connected, tally.sent, tally.received)
            elapsed_s = time.monotonic() - at
            rates = [(new - old) / elapsed_s for new, old in zip(now, before, strict=True)]
            before = now
            line = f"{time.monotonic() - began:4.0f} s  " + _progress_line(plan, tally, rates, fleet.wanted)
            if live is not None:
                live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            else:
                click.echo(line, err=True)
    finally:
        if live is not None:
            live.stop()


def _progress_line(plan: BenchPlan, tally: Tally, rates: list[float], wanted: int) -> str:
    connecting, sending, receiving = rates
    parts = [f"{tally.connected - tally.disconnected}/{wanted} up"]  # the line fits into 80 columns
    if connecting and (plan.kind == "conn" or tally.connected < wanted):
        parts.append(f"{count_in_words(connecting)} connects/s")
    if plan.kind in ("pub", "flow"):
        parts.append(f"sent {count_in_words(sending)}/s")
    if plan.kind in ("sub", "flow"):
        parts.append(f"got {count_in_words(receiving)}/s")
    recent = tally.take_recent()
    if recent.count:
        parts.append(f"p50 {_ms(recent.quantile_ns(0.5))} p99 {_ms(recent.quantile_ns(0.99))} ms")
    if plan.kind in ("sub", "flow"):
        parts.append(f"lost {tally.lost}")
        if tally.duplicates:
            parts.append(f"duplicates {tally.duplicates}")
    if tally.refused:
        parts.append(f"rejected {tally.refused}")
    if tally.failures:
        parts.append(f"failed {sum(tally.failures.values())}")
    return "  ".join(parts)


def as_json(plan: BenchPlan, tally: Tally, wanted: int, connect_s: float, measured_s: float) -> dict[str, Any]:
    """The result as plain values; times in milliseconds, rates per second of the measured time."""
    latency = tally.latency
    return {
        "command": plan.kind,
        "target": str(plan.endpoint_for(0)),
        "mqtt": {3: "3.1", 4: "3.1.1", 5: "5"}[plan.version],
        "qos": plan.qos,
        "payload_bytes": len(plan.message) if plan.message is not None else plan.size,
        "clients": wanted,
        "connected": tally.connected,
        "disconnected": tally.disconnected,
        "connect_seconds": round(connect_s, 3),
        "connects_per_s": round(tally.connected / connect_s, 1) if connect_s else 0.0,
        "measured_seconds": round(measured_s, 3),
        "sent": tally.sent,
        "sent_per_s": round(tally.sent / measured_s, 1) if measured_s else 0.0,
        "acknowledged": tally.acknowledged,
        "refused": tally.refused,
        "received": tally.received,
        "received_per_s": round(tally.received / measured_s, 1) if measured_s else 0.0,
        "lost": tally.lost,
        "duplicates": tally.duplicates,
        "latency_of": _LATENCY_OF[plan.kind],
        "latency_ms": _latency_json(latency),
        "histogram": [{"from_ms": start / 1e6, "to_ms": end / 1e6, "count": count} for start, end, count in latency.by_octave()],
        "failures": dict(tally.failures.most_common(20)),
    }


def _latency_json(latency: Histogram) -> dict[str, float] | None:
    if not latency.count:
        return None
    quantiles = {name: round(latency.quantile_ns(share) / 1e6, 4) for name, share in _QUANTILES.items()}
    return {
        "min": round(latency.min_ns / 1e6, 4),
        "mean": round(latency.mean_ns / 1e6, 4),
        **quantiles,
        "max": round(latency.max_ns / 1e6, 4),
    }


def print_report(plan: BenchPlan, tally: Tally, result: dict[str, Any]) -> None:
    """Print the table and the histogram to standard output."""
    console = Console(file=sys.stdout)
    click.echo(f"bench {plan.kind}: {result['target']}, MQTT {result['mqtt']}, {result['measured_seconds']:g} s")
    table = Table()
    table.add_column("")
    table.add_column("total", justify="right")
    table.add_column("per second", justify="right")
    shown = f"{result['connected']}/{result['clients']}"
    table.add_row("connected", shown, count_in_words(result["connects_per_s"]))
    if tally.disconnected:
        table.add_row("connections lost", str(tally.disconnected), "")
    if plan.kind in ("pub", "flow"):
        table.add_row("sent", f"{tally.sent:,}", count_in_words(result["sent_per_s"]))
        if plan.qos:
            table.add_row("acknowledged", f"{tally.acknowledged:,}", "")
            table.add_row("refused", f"{tally.refused:,}", "")
    if plan.kind in ("sub", "flow"):
        table.add_row("received", f"{tally.received:,}", count_in_words(result["received_per_s"]))
        table.add_row("lost", f"{tally.lost:,}", "")
        table.add_row("duplicates", f"{tally.duplicates:,}", "")
    console.print(table)
    if tally.latency.count:
        figures = "  ".join(f"{name} {value:.3f}" for name, value in result["latency_ms"].items())
        click.echo(f"latency, {_LATENCY_OF[plan.kind]}, ms:\n  {figures}")
        for line in histogram_lines(tally.latency):
            click.echo(line)
    for failure, count in tally.failures.most_common(5):
        click.secho(f"{count} x {failure}", fg="red")


def histogram_lines(latency: Histogram) -> list[str]:
    """A bar for each power of two between the shortest and the longest latency."""
    octaves = latency.by_octave()
    highest = max((count for _, _, count in octaves), default=1)
    lines = []
    for start, end, count in octaves:
        bar = "#" * max(round(_BAR * count / highest), 1 if count else 0)
        lines.append(
            f"  {start / 1e6:>10.3f} - {end / 1e6:>10.3f} ms  {bar:<{_BAR}} {100 * count / latency.count:5.1f} %  {count:,}"
        )
    return lines


def count_in_words(number: float) -> str:
    """A number in short form: ``950``, ``12.3 k``, ``4.56 M``."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.3g}"


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.3g}"
