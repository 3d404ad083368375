"""``braidmq pipeline``: what it says without Spark, without Java, and before it needs either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from braidmq.cli.pipeline import pipeline

RUN = "import sys; from braidmq.cli.main import main; main(sys.argv[1:])"


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def test_help_lists_the_jobs_without_loading_spark() -> None:
    look = "import atexit, sys; atexit.register(lambda: print('loaded:', sorted({'pyspark', 'pyarrow'} & set(sys.modules))))"

    shown = run(f"{look}; {RUN}", "pipeline", "--help")

    assert shown.returncode == 0
    assert all(f"\n  {job}  " in shown.stdout for job in ("archive", "decode", "rollup", "learn", "replay", "compact"))
    assert "loaded: []" in shown.stdout


def test_every_job_that_help_lists_can_be_loaded() -> None:
    context = click.Context(pipeline)

    loaded = [pipeline.get_command(context, name) for name in pipeline.list_commands(context)]

    assert all(isinstance(command, click.Command) for command in loaded)


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_without_the_spark_packages_one_line_says_what_to_install(module: str) -> None:
    told = run(f"import sys; sys.modules[{module!r}] = None; {RUN}", "pipeline", "archive", "lake")

    assert told.returncode == 1
    assert told.stdout == ""
    assert len(told.stderr.splitlines()) == 1
    assert "pip install 'braidmq[spark]'" in told.stderr


def test_without_java_one_line_says_so(tmp_path: Path) -> None:
    told = run(RUN, "pipeline", "archive", str(tmp_path / "lake"), PATH=str(tmp_path), JAVA_HOME="")

    assert told.returncode == 1
    [line] = told.stderr.splitlines()
    assert line.startswith("braidmq pipeline: Spark needs Java, but none was found on the PATH: install Java 17 or 21")


def test_an_unknown_job_name_is_a_usage_error() -> None:
    told = run(RUN, "pipeline", "archives")

    assert told.returncode == 2
    assert "No such command" in told.stderr
