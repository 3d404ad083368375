"""The ``braidmq`` command as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec

TIMEOUT_S = 30


class Ended(msgspec.Struct):
    """How a command ended, and what it said."""

    exit_code: int
    output: str
    errors: str


def start(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start a command; its output and errors are pipes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(env or {})}
    command = [sys.executable, "-m", "braidmq.cli.main", *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **{**pipes, **options})


def end(process: subprocess.Popen[str], input: str | None = None) -> Ended:
    """Await the end of a command."""
    try:
        output, errors = process.communicate(input, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"still running after {TIMEOUT_S} s\n{output}\n{errors}") from None
    return Ended(process.returncode, output, errors)


def run(*arguments: str, input: str | None = None, env: dict[str, str] | None = None) -> Ended:
    """Run a command to its end."""
    options = {} if input is None else {"stdin": subprocess.PIPE}
    return end(start(*arguments, env=env, **options), input)
