"""``braidmq pyspark`` and ``braidmq spark-submit``: Spark's own programs, in a Python that has braidmq."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

from braidmq.base.errors import UsageError
from braidmq.client.errors import EXIT_FAILED

# All arguments are passed to Spark, including options.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("pyspark", context_settings=_PASSED_ON)
@click.argument("arguments", metavar="[SPARK OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def pyspark(arguments: tuple[str, ...]) -> int:
    """Start a Python shell with a Spark session, `spark`, that supports format("braidmq").

    Options are those of Spark's own pyspark, which `braidmq pyspark -- --help` lists. PYSPARK_PYTHON is set to this Python
    unless it is set already; PYSPARK_DRIVER_PYTHON=ipython selects another shell.
    """
    return _run("pyspark", arguments)


@click.command("spark-submit", context_settings=_PASSED_ON)
@click.argument("arguments", metavar="[SPARK OPTIONS] APPLICATION [ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
def spark_submit(arguments: tuple[str, ...]) -> int:
    """Run a PySpark application that uses format("braidmq").

    Options are those of Spark's own spark-submit, which `braidmq spark-submit -- --help` lists. PYSPARK_PYTHON is set to this
    Python unless it is set already. With a --master other than local, the package goes to the executors as --py-files, too:
    their Python needs pyarrow, numpy and msgspec.
    """
    return _run("spark-submit", arguments)


def _run(name: str, arguments: Sequence[str]) -> int:
    from braidmq.spark.jobs.framework.session import check_java
    from braidmq.spark.launch import environment, is_local, packed, with_files

    given = list(arguments[1:] if arguments[:1] == ("--",) else arguments)
    environ = environment(given, os.environ)
    program = _program(name, environ)
    check_java()
    with nullcontext() if is_local(given) else packed() as archive:
        return _wait([str(program), *(given if archive is None else with_files(given, archive))], environ)


def _program(name: str, environ: dict[str, str]) -> Path:
    """Spark's program with this name: from SPARK_HOME, or from the installed pyspark."""
    home = environ.get("SPARK_HOME")
    if not home:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise UsageError(f"Spark is not installed for {environ['PYSPARK_DRIVER_PYTHON']}", "pip install 'braidmq[spark]'")
        home = environ["SPARK_HOME"] = str(Path(spec.origin).parent)
    program = Path(home) / "bin" / name
    if not program.is_file():
        raise UsageError(
            f"SPARK_HOME is {home}, which has no bin/{name}", "unset it, or set it to the directory of a Spark distribution"
        )
    return program


def _wait(command: list[str], environ: dict[str, str]) -> int:
    """Run a program in the foreground; returns its exit status."""
    child = subprocess.Popen(command, env=environ)  # noqa: S603 - a program of Spark, with what the user gave

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    # Ctrl-C reaches both processes from the terminal; the shell or the application handles it.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None)}
    before |= {each: signal.signal(each, pass_on) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else EXIT_FAILED
