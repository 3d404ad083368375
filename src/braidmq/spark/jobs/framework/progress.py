"""Progress of a streaming query: rows, rate, lag and remaining time while it runs; a summary at the end."""

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
from braidmq.spark.jobs.framework.at_work import AtWork

_LINE_EVERY_S: Final = 10.0


class JobBacklog(msgspec.Struct, frozen=True):
    """The maximum number of rows left to read, and the age of the oldest, if known."""

    rows: int
    seconds: float | None


class Meter:
    """Adds up the progress reports of a query. Reports may be repeated; each batch counts once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.last_batch = -1  # the last one reported
        self.rows = 0
        self.batches = 0
        self.late_rows = 0
        self.watermark = ""  # empty for queries without one
        self.end: Mapping[str, int] = {}
        self.latest: Mapping[str, int] = {}

    def see(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add reports, oldest first."""
        for report in reports:
            batch, rows = report["batchId"], report["numInputRows"]
            source = (report.get("sources") or [{}])[0]
            self.end = (source.get("endOffset") or {}).get("shards") or self.end
            self.watermark = (report.get("eventTime") or {}).get("watermark") or self.watermark
            self.latest = (source.get("latestOffset") or {}).get("shards") or self.latest
            if batch > self.last_batch:
                self.last_batch = batch
                self.rows += rows
                self.batches += rows > 0
                self.late_rows += sum(each.get("numRowsDroppedByWatermark", 0) for each in report.get("stateOperators") or ())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def rate(self) -> float:
        """Rows per second since the start."""
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def words(self, backlog: JobBacklog | None, at_work: AtWork | None = None) -> str:
        """One line for the user. The backlog counts from the end of the last finished batch; `at_work` is part of it."""
        rows_at_work = 0 if at_work is None else at_work.rows
        rows, elapsed_s = self.rows + rows_at_work, self.elapsed_s
        rate = rows / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{rows:,} rows", f"{rate:,.0f}/s"]
        if backlog is not None:
            behind = max(backlog.rows - rows_at_work, 0)
            parts.append(f"at most {behind:,} behind" + ("" if backlog.seconds is None else f" ({span(backlog.seconds)})"))
            if rate > 0 and behind:
                parts.append(f"{span(behind / rate)} left")
        if at_work is not None:
            parts.append(f"current batch: {at_work.tasks_done:,} of {at_work.tasks:,} tasks")
        if self.late_rows:
            parts.append(f"{self.late_rows:,} too late")
        return ", ".join(parts)


class Display:
    """Shows progress on standard error: one changing line on a terminal, otherwise a line every few seconds."""

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
        """Show the progress."""
        if self._live is not None:
            self._live.update(Text(f"{self._title}: {words}"), refresh=True)
        elif self._clock() - self._told_at >= _LINE_EVERY_S:
            self._told_at = self._clock()
            print(f"{self._title}: {words}", file=sys.stderr, flush=True)


def show_summary(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a list of names and figures."""
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    Console().print(table)


def show_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(each)) for each in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
