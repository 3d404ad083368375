"""The progress bar of long answers: only on a terminal, and never between records."""

from __future__ import annotations

import io
import sys

import pytest

from braidmq.cli.history.answers import Bar
from braidmq.control.history import Begin, Copying, End, ProgressLine


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def be_at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Give standard error a terminal; in the test itself, because pytest sets it anew between fixtures and tests."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return terminal


def test_the_bar_shows_how_much_of_the_time_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = be_at_terminal(monkeypatch)

    with Bar("reading", is_output_elsewhere=True) as bar:
        for line in (Begin(start=1000, end=2000), ProgressLine(position=1250, records=77)):
            bar.see(line)
        bar._progress.refresh()
        shown = terminal.getvalue()

    assert "25%" in shown
    assert "77 records" in shown


def test_the_bar_shows_how_many_bytes_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = be_at_terminal(monkeypatch)

    with Bar("copying", is_output_elsewhere=True) as bar:
        bar.see(Copying(done_bytes=512, total_bytes=1024))
        bar._progress.refresh()
        shown = terminal.getvalue()

    assert "50%" in shown
    assert "512 B of 1.0 KiB" in shown


@pytest.mark.parametrize("start", [5, 6])
def test_an_empty_time_range_is_handled(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    terminal = be_at_terminal(monkeypatch)

    with Bar("reading", is_output_elsewhere=True) as bar:
        for line in (Begin(start=start, end=5), ProgressLine(position=5, records=0), End()):
            bar.see(line)
        bar._progress.refresh()

    assert "reading" in terminal.getvalue()


def test_there_is_no_bar_between_records_on_the_same_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = be_at_terminal(monkeypatch)

    with Bar("reading", is_output_elsewhere=False) as bar:
        bar.see(Begin(start=1, end=2))

    assert terminal.getvalue() == ""


def test_there_is_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("reading", is_output_elsewhere=True) as bar:
        bar.see(Begin(start=1, end=2))

    assert capsys.readouterr().err == ""
