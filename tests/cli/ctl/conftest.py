"""A node for ``braidmq ctl``, and the command itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.support.api_node import ApiNode

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ApiNode]:
    with ApiNode(tmp_path) as node:
        yield node


@pytest.fixture
def ctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Run a command; returns exit status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["ctl", "--data-dir", str(tmp_path), *arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run
