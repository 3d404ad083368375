"""How far a streaming query is: rows, rate, lag and the time that is left, while it runs; a table of figures when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from braidmq.base.units import span

_LINE_EVERY_S: Final = 10.0


class Backlog(msgspec.Struct, frozen=True):
    """What is still to be read, at most, and how long ago the oldest of it was recorded."""

    rows: int
    seconds: float


class Meter:
    """Adds up the progress reports of a query. Reports may come again; each batch counts once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.last_batch = -1  # that was reported
        self.rows = 0
        self.batches = 0
        self.late_rows = 0
        self.end: Mapping[str, int] = {}
        self.latest: Mapping[str, int] = {}

    def see(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take in reports, oldest first."""
        for report in reports:
            batch, rows = report["batchId"], report["numInputRows"]
            source = (report.get("sources") or [{}])[0]
            self.end = (source.get("endOffset") or {}).get("shards") or self.end
            self.latest = (source.get("latestOffset") or {}).get("shards") or self.latest
            if batch > self.last_batch:
                self.last_batch = batch
                self.rows += rows
                self.batches += rows > 0
                self.late_rows += sum(each.get("numRowsDroppedByWatermark", 0) for each in report.get("stateOperators") or ())

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    @property
    def rate(self) -> float:
        """Rows a second, over all the time."""
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def time_left_s(self, backlog: Backlog | None) -> float | None:
        """How long the backlog takes at this rate; None if that is not known."""
        return backlog.rows / self.rate if backlog is not None and self.rate > 0 else None

    def words(self, backlog: Backlog | None) -> str:
        """One line for a person."""
        parts = [f"{self.rows:,} rows", f"{self.rate:,.0f}/s"]
        if backlog is not None:
            parts.append(f"{backlog.rows:,} behind ({span(backlog.seconds)})")
            left = self.time_left_s(backlog)
            if left is not None and backlog.rows:
                parts.append(f"{span(left)} left")
        if self.late_rows:
            parts.append(f"{self.late_rows:,} too late")
        return ", ".join(parts)


class Display:
    """Shows a line that changes on a terminal, or a line now and then elsewhere; on standard error."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._clock = clock
        self._told_at = clock()
        console = Console(stderr=True)
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, words: str) -> None:
        """Tell how far it is."""
        if self._live is not None:
            self._live.update(Text(f"{self._title}: {words}"), refresh=True)
        elif self._clock() - self._told_at >= _LINE_EVERY_S:
            self._told_at = self._clock()
            print(f"{self._title}: {words}", file=sys.stderr, flush=True)


def show_summary(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and figures below each other."""
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    Console().print(table)


def show_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(each)) for each in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
