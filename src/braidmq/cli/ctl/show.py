"""Output of ``ctl``: tables for people, the node's JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from braidmq.base.units import size as size
from braidmq.base.units import span as span

_WIDE: Final = 10_000  # output to a pipe is not truncated
_EPOCH: Final = datetime(1970, 1, 1)


def show_json(document: bytes) -> None:
    """Print an indented JSON document."""
    click.echo(msgspec.json.format(document, indent=2))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(each)) for each in row))
    return table


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str) -> None:
    """Print a table, or ``nothing`` if there are no rows."""
    table = make_table(columns, rows)
    if table.row_count == 0:
        click.echo(nothing)
        return
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE).print(table)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print a list of names and values."""
    click.echo(fields_text(fields))


def fields_text(fields: Iterable[tuple[str, object]]) -> str:
    """A list of names and values as text."""
    pairs = [(name, printable(value)) for name, value in fields]
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def printable(value: object) -> str:
    """The value as text, with control characters escaped: clients choose their ids and topics."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            text = str(value)
            return text if text.isprintable() else json.dumps(text)[1:-1]


def ago(then: float | None) -> str | None:
    """A time in the past: ``5 m ago``."""
    return None if then is None else f"{span(max(0.0, time.time() - then))} ago"


def ahead(then: float | None) -> str | None:
    """A time in the future: ``in 5 m``."""
    return None if then is None else f"in {span(max(0.0, then - time.time()))}"


def moment(timestamp_us: int) -> str:
    """A timestamp of the log in RFC 3339, exact: ``2024-03-01T12:00:00.000001Z``."""
    try:
        at = _EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return str(timestamp_us)
    return f"{at.isoformat(timespec='microseconds')}Z"
