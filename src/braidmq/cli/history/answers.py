"""Long answers of a node, line by line, with a progress bar on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from braidmq.cli.ctl.show import moment, size
from braidmq.cli.errors import CommandFailed
from braidmq.control import history as lines
from braidmq.control.client import ControlClient

_CUT_OFF: Final = "the node ended its answer early; the output is incomplete"


def answer_lines(
    node: ControlClient, method: str, path: str, body: object = None, **parameters: object
) -> Iterator[lines.AnyLine]:
    """The lines up to ``end``; raises CommandFailed if the node reports a failure or closes the connection."""
    for raw in node.stream(method, path, body, **parameters):
        try:
            line = lines.decode_line(raw)
        except msgspec.DecodeError:
            raise CommandFailed(_CUT_OFF) from None
        if isinstance(line, lines.Failed):
            raise CommandFailed(line.message)
        yield line
        if isinstance(line, lines.End):
            return
    raise CommandFailed(_CUT_OFF)


def tell_gap(gap: lines.GapLine) -> None:
    """Report on standard error that retention has deleted records."""
    click.echo(f"note: retention has removed the records of shard {gap.shard} from before {moment(gap.floor)}", err=True)


class Bar:
    """A progress bar on standard error; only on a terminal, and not if the output goes to the same terminal."""

    def __init__(self, what: str, *, is_output_elsewhere: bool) -> None:
        is_shown = sys.stderr.isatty() and is_output_elsewhere
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}")
        self._progress = Progress(
            *columns, TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True, disable=not is_shown
        )
        self._task = self._progress.add_task(str(Text(what)), total=None, words="")
        self._began = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def see(self, line: lines.AnyLine) -> None:
        """Process a line of the answer; only some lines change the progress."""
        match line:
            case lines.Begin():
                self._began = line.start
                self._progress.update(self._task, total=max(line.end - line.start, 1), completed=0)
            case lines.ProgressLine():
                elapsed_s = self._progress.tasks[0].elapsed or 0.0
                rate = line.records / elapsed_s if elapsed_s else 0.0
                words = f"{line.records} records, {rate:.0f}/s"
                self._progress.update(self._task, completed=max(line.position - self._began, 0), words=words)
            case lines.Copying():
                self.show_bytes(line.done_bytes, line.total_bytes)
            case _:
                pass

    def show_bytes(self, done_bytes: int, total_bytes: int) -> None:
        """Show how many bytes are done."""
        words = f"{size(done_bytes)} of {size(total_bytes)}"
        self._progress.update(self._task, total=max(total_bytes, 1), completed=done_bytes, words=words)
