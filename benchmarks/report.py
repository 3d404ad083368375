"""The results as JSON, as a page with tables, and as a chart."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import matplotlib
import msgspec

from benchmarks.brokers import BROKERS, ROOT
from benchmarks.figures import Figure
from benchmarks.measure import Run, Series
from benchmarks.shapes import (
    CONNECT_TARGET,
    IDLE_TARGET,
    MEMORY_TARGET_KIB,
    RECORDED_NATS_TARGET,
    TABLE_TARGET,
    V5_TARGET,
    Scale,
)

matplotlib.use("svg")
from matplotlib import pyplot

COLOURS = {"braidmq": "#1f6feb", "mosquitto": "#8c959f", "nats": "#bc8cff", "amqtt": "#d29922"}


class Report(msgspec.Struct):
    """All measurements, and the machine."""

    date: str
    commit: str
    machine: str
    versions: dict[str, str]
    scale: Scale
    flows: list[Series]
    connect: Series | None = None
    memory_kib: dict[str, float] = {}
    idle_cpu: dict[str, float] = {}
    idle_clients: int = 0
    table: Series | None = None
    latency: dict[str, Run] = {}
    recorded: Series | None = None
    log: list[Figure] = []
    history: list[Figure] = []


def describe_machine() -> str:
    """Processor, memory, kernel and Python."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    name = model[1] if model else platform.machine()
    return f"{os.cpu_count()} x {name}, {memory_gib:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def describe_commit() -> str:
    """The commit measured; marked if the files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    if not shutil.which("git"):
        return "unknown"
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+changes" if git("status", "--porcelain") else "")


def today() -> str:
    """The date in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")


class DatedReport(Protocol):
    """What the reports of all benchmarks have."""

    @property
    def date(self) -> str: ...

    @property
    def commit(self) -> str: ...


def write_files(report: DatedReport, page: Path, text: str, results: Path, prefix: str = "") -> Path:
    """Write the JSON to ``results``, under a name that begins with ``prefix``, and the page; returns its path."""
    results.mkdir(parents=True, exist_ok=True)
    page.parent.mkdir(parents=True, exist_ok=True)
    stem = f"{prefix}{report.date.replace(' ', 'T').replace(':', '')}-{report.commit}"
    (results / f"{stem}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    page.write_text(text)
    return page


def write(report: Report, results: Path, pages: Path) -> Path:
    """Write the JSON to ``results``, and page and chart to ``pages``; returns the path of the page."""
    page = write_files(report, pages / "latest.md", render(report), results)
    _draw(report, pages / "latest.svg")
    return page


def render(report: Report) -> str:
    """The page."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    parts = [
        "# Benchmarks\n",
        f"Measured {report.date} UTC at commit {report.commit} by `make bench`.  ",
        f"Machine: {report.machine}.  ",
        f"Brokers: {versions}.\n",
        "The load generator in `benchmarks/load/` and the broker run on the same machine, one process each. Payloads have",
        "64 bytes, and there is no history except for the durable log. Brokers run in turn, with their default settings, in",
        f"{report.scale.rounds} rounds of {report.scale.seconds} s; nats and amqtt run once. Rates are medians; a ratio is",
        "the median of the ratios of all rounds.\n",
    ]
    if report.flows:
        parts += ["## Messages delivered per second\n", "![Messages per second](latest.svg)\n", _flow_table(report.flows)]
    if any("braidmq v5" in series.runs for series in report.flows):
        parts += ["## MQTT 5 compared with MQTT 3.1.1\n", _v5_table(report.flows)]
    if figures := _figures(report):
        header = "| | braidmq | mosquitto | nats | amqtt | target | met |\n|---|---|---|---|---|---|---|"
        parts += ["## Connections, memory, subscriptions\n", "\n".join([header, *figures]) + "\n"]
    if report.latency:
        parts += [
            "## Latency at half load\n",
            "Measured from the time a message was due; QoS 0, 500 to 500, at half of the rate sustained with one message in",
            "flight.\n",
            _latency_table(report.latency),
        ]
    if figures := _log_figures(report):
        parts += [
            "## The durable log\n",
            'Recorded messages are synced to disk before they are acknowledged or delivered (`durability = "fsync"`).',
            "Here nats uses its file store with `sync_interval: always`, and mosquitto stores nothing. *Bare* is rocksdict alone",
            "on the same bytes.\n",
            "\n".join(["| work | result | target | met |", "|---|---|---|---|", *figures]) + "\n",
        ]
    if report.history:
        parts += [
            "## History and Spark\n",
            f"{report.scale.history_records:,} records of 100 bytes in {report.scale.history_topics:,} topics, served by a node",
            "on this machine; Spark is `local[2]`, warmed up. *Bare* is rocksdict alone on the same files, without decoding;",
            "*from memory* is a Python data source that yields the same Arrow batches from mapped files. Both are measured in",
            "turn with braidmq.\n",
            "\n".join(["| work | result | target | met |", "|---|---|---|---|", *map(_row, report.history)]) + "\n",
        ]
    if faults := _faults([*report.flows, *([report.recorded] if report.recorded else [])]):
        parts += ["## Lost or duplicated messages, and failures\n", faults]
    return "\n".join(parts)


def missed(report: Report) -> list[str]:
    """The targets not met, by name."""
    return re.findall(r"^\| ([^|]+?) \|.*\| no \|$", render(report), re.M)


def _flow_table(flows: list[Series]) -> str:
    lines = [
        "| shape | braidmq | mosquitto | nats | amqtt | ratio to mosquitto | target | met |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for series in flows:
        ratio = series.ratio("braidmq", "mosquitto")
        rates = " | ".join(_rate(series, name) for name in BROKERS)
        shown = _ratio(ratio)
        target = f"{series.target:g}" if series.target else ""
        clean = series.faults("braidmq") == (0, 0)
        met = _met(series.target is not None, ratio is not None and ratio >= (series.target or 0) and clean)
        lines.append(f"| {series.title} | {rates} | {shown} | {target} | {met} |")
    return "\n".join(lines) + "\n"


def _v5_table(flows: list[Series]) -> str:
    lines = ["| shape | 3.1.1 | 5 | ratio | target | met |", "|---|---|---|---|---|---|"]
    for series in flows:
        ratio = series.ratio("braidmq v5", "braidmq")
        if ratio is not None:
            met = _met(True, ratio >= V5_TARGET and series.faults("braidmq v5") == (0, 0))
            rates = f"{_rate(series, 'braidmq')} | {_rate(series, 'braidmq v5')}"
            lines.append(f"| {series.title} (MQTT 5) | {rates} | {ratio:.2f} | {V5_TARGET:g} | {met} |")
    return "\n".join(lines) + "\n"


def _figures(report: Report) -> list[str]:
    lines = []
    if report.connect:
        ratio = report.connect.ratio("braidmq", "mosquitto")
        rates = " | ".join(_rate(report.connect, name) for name in BROKERS)
        met = _met(True, ratio is not None and ratio >= CONNECT_TARGET)
        shown = "-" if ratio is None else f"{ratio:.2g}"
        lines.append(
            f"| {report.connect.title}, per second | {rates} | {CONNECT_TARGET:g} x mosquitto, measured {shown} | {met} |"
        )
    if report.memory_kib:
        sizes = " | ".join(_figure(report.memory_kib.get(name), "{:.2f}") for name in BROKERS)
        met = _met(True, report.memory_kib.get("braidmq", 1e9) <= MEMORY_TARGET_KIB)
        lines.append(f"| KiB per idle subscribed client | {sizes} | at most {MEMORY_TARGET_KIB:g} | {met} |")
    if report.idle_cpu:
        shares = " | ".join(_figure(report.idle_cpu.get(name), "{:.1%}") for name in BROKERS)
        met = _met(True, report.idle_cpu.get("braidmq", 1) <= IDLE_TARGET)
        lines.append(f"| CPU with {report.idle_clients:,} idle connections | {shares} | at most {IDLE_TARGET:.0%} | {met} |")
    if report.table:
        ratio = report.table.ratio("full", "empty")
        rates = f"{_rate(report.table, 'empty')} empty, {_rate(report.table, 'full')} full"
        met = _met(True, ratio is not None and ratio >= TABLE_TARGET)
        shown = "-" if ratio is None else f"{ratio:.2f}"
        lines.append(f"| messages/s {report.table.title} | {rates} | | | | {TABLE_TARGET:g} x empty, measured {shown} | {met} |")
    return lines


def _log_figures(report: Report) -> list[str]:
    lines = [_recorded_figure(report.recorded)] if report.recorded else []
    return [*lines, *map(_row, report.log)]


def _row(figure: Figure) -> str:
    return f"| {figure.title} | {figure.found} | {figure.target} | {_met(bool(figure.target), figure.is_met)} |"


def _recorded_figure(series: Series) -> str:
    found = ", ".join(f"{name} {_rate(series, name)}" for name in series.runs)
    targets = {"mosquitto": series.target or 0.0, "nats": RECORDED_NATS_TARGET}
    ratios = {name: series.ratio("braidmq", name) for name in targets if name in series.runs}
    asked = "; ".join(f"{targets[name]:g} x {name}, measured {_ratio(ratio)}" for name, ratio in ratios.items())
    is_fast = bool(ratios) and all(ratio is not None and ratio >= targets[name] for name, ratio in ratios.items())
    return f"| {series.title} | {found} | {asked} | {_met(True, is_fast and series.faults('braidmq') == (0, 0))} |"


def _latency_table(latency: dict[str, Run]) -> str:
    lines = ["| broker (rate) | p50 ms | p99 ms | p99.9 ms |", "|---|---|---|---|"]
    for title, run in latency.items():
        figures = f"{run.error} | | " if run.error else f"{run.p50_ms:g} | {run.p99_ms:g} | {run.p999_ms:g} "
        lines.append(f"| {title} | {figures}|")
    return "\n".join(lines) + "\n"


def _faults(flows: list[Series]) -> str:
    lines = []
    for series in flows:
        for name in series.runs:
            lost, repeated = series.faults(name)
            errors = sorted({run.error for run in series.runs[name] if run.error})
            if lost or repeated or errors:
                counts = f"lost {lost:,}, duplicated {repeated:,}" if lost or repeated else ""
                lines.append(f"- {name}, {series.title}: {'; '.join([*([counts] if counts else []), *errors])}")
    return "\n".join(lines) + "\n" if lines else ""


def _rate(series: Series, name: str) -> str:
    rate = series.median(name)
    if rate is None:
        return "failed" if series.runs.get(name) else "-"
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" if rate >= 1e4 else f"{rate / 1e3:.1f} k"


def _ratio(ratio: float | None) -> str:
    return "-" if not ratio else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _met(has_target: bool, is_met: bool) -> str:
    return "" if not has_target else "yes" if is_met else "no"


def _draw(report: Report, file: Path) -> None:
    """Bars of messages per second for each shape, on a logarithmic scale."""
    if not report.flows:
        return
    # Plain text and fixed identifiers keep the file small and its changes readable.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "braidmq", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(9, 0.55 * len(report.flows) + 1.2))
        height = 0.8 / len(BROKERS)
        for place, name in enumerate(BROKERS):
            rows = [row for row, series in enumerate(report.flows) if series.median(name)]
            rates = [report.flows[row].median(name) or 0.0 for row in rows]
            axes.barh([row + place * height for row in rows], rates, height, label=name, color=COLOURS[name])
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(report.flows))], [series.title for series in report.flows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("messages delivered per second (logarithmic)")
        axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0))
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
