"""Selects the Python of Spark's processes: it must have braidmq installed.

A session without `PYSPARK_PYTHON` starts its planners and workers with the first `python3` on the PATH. If braidmq is installed
in a virtual environment, that one lacks it, and Spark fails with `DATA_SOURCE_NOT_FOUND` or `No module named 'braidmq'`.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
# Set by spark-submit for its applications: the JVM is already running, and its environment cannot be changed.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
# Options of spark-submit without a value.
_FLAGS: Final = ("-h", "--help", "-v", "--verbose", "--version", "--supervise")
_CHECK: Final = "from braidmq.spark.requirements import check_requirements; check_requirements()"
_CHECK_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make sessions that this process starts later run in this Python, unless another one was chosen."""
    if PYTHON not in environ and _SUBMITTED not in environ and not _is_started():
        environ[PYTHON] = sys.executable


def register(spark: SparkSession) -> None:
    """Register `format("braidmq")` with a session; on a local master without PYSPARK_PYTHON its workers run in this Python.

    Raises UsageError if PYSPARK_PYTHON names one that lacks braidmq. Spark may have registered the format already.
    """
    from pyspark.errors import AnalysisException

    from braidmq.spark.source.format import BraidDataSource

    context = getattr(spark, "_sc", None)  # None for a session of Spark Connect: its server decides
    if context is not None and context.master.startswith("local") and not _is_this(context.pythonExec):
        if PYTHON in os.environ:
            check_python(context.pythonExec, os.environ)
        else:
            context.pythonExec = sys.executable
    with suppress(AnalysisException):
        spark.dataSource.register(BraidDataSource)


def environment(arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Spark's own `pyspark` or `spark-submit` with these arguments.

    Raises UsageError if the chosen Python cannot run braidmq on this machine.
    """
    found = dict(environ)
    chosen = found.setdefault(PYTHON, sys.executable)
    found.setdefault(DRIVER_PYTHON, chosen if is_local(arguments) else sys.executable)
    if _ROOT not in map(Path, [*site.getsitepackages(), site.getusersitepackages()]):
        # For running from a source tree: other processes find the package by this.
        found["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [found.get("PYTHONPATH")])])
    if is_local(arguments) and not _is_this(chosen):
        check_python(chosen, found)
    return found


def is_local(arguments: Sequence[str]) -> bool:
    """Whether these arguments of spark-submit run everything on this machine, which is the default without a master."""
    master = _value(arguments, "--master", "spark.master")
    return master.startswith("local") and not _value(arguments, "--remote", "spark.remote", "")


def _value(arguments: Sequence[str], option: str, key: str, default: str = "local") -> str:
    settings = dict(_settings(arguments))
    return settings.get(option, settings.get(key, default))


def _settings(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Spark's options and settings with their values; arguments after the application belong to it."""
    for place in range(_own(arguments)):
        name, equals, value = arguments[place].partition("=")
        if name.startswith("-"):
            value = value if equals else arguments[place + 1] if place + 1 < len(arguments) else ""
            yield name, value
            if name in ("--conf", "-c"):
                key, _, setting = value.partition("=")
                yield key, setting


def _own(arguments: Sequence[str]) -> int:
    """The number of arguments for Spark itself: those before the application."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 1 if "=" in arguments[place] or arguments[place] in _FLAGS else 2
    return min(place, len(arguments))


def check_python(program: str, environ: Mapping[str, str]) -> None:
    """Raise UsageError unless this Python has braidmq and its dependencies."""
    hint = f"install braidmq[spark] for it, or set {PYTHON} to {sys.executable}, which has it"
    try:
        told = subprocess.run(  # noqa: S603 - the Python that Spark would run
            [program, "-c", _CHECK], env=dict(environ), capture_output=True, text=True, timeout=_CHECK_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"{PYTHON} is {program}, which does not run: {problem}", hint) from None
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["no reason"])[-1]
        raise UsageError(f"{PYTHON} is {program}, which cannot run braidmq: {last}", hint)


@contextmanager
def packed() -> Iterator[str]:
    """A zip of this package for `--py-files`, for machines without it; removed at the end."""
    with TemporaryDirectory(prefix="braidmq-") as directory:
        archive = Path(directory) / "braidmq.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
            for package in ("braidmq", "pyspark_braidmq"):
                for file in sorted((_ROOT / package).rglob("*.py")):
                    files.write(file, file.relative_to(_ROOT))
        yield str(archive)


def with_files(arguments: Sequence[str], archive: str) -> list[str]:
    """Add an archive to `--py-files` in the arguments of spark-submit."""
    found = list(arguments)
    for place in range(_own(arguments)):
        name, equals, value = found[place].partition("=")
        if name == "--py-files" and equals:
            found[place] = f"{name}={archive},{value}"
            return found
        if name == "--py-files" and place + 1 < len(found):
            found[place + 1] = f"{archive},{found[place + 1]}"
            return found
    return ["--py-files", archive, *found]


def _is_this(program: str) -> bool:
    found = shutil.which(program)
    # Not resolved: the Python of a virtual environment is a link, and its path identifies the environment.
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _is_started() -> bool:
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    context = getattr(module, "SparkContext", None)
    return getattr(context, "_gateway", None) is not None
