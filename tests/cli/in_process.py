"""The command line, run within the test's own process."""

from __future__ import annotations

import pytest

from braidmq.cli.main import main


def run(*arguments: str) -> int:
    """Run a command and give its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)
