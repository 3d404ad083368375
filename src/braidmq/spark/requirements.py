"""Checks whether this Python has the dependencies of braidmq. Imports nothing that may be missing and uses no new syntax."""

from __future__ import annotations

import importlib
import sys

from braidmq.base.errors import UsageError

PYTHON_MIN = (3, 11)
MODULES = ("msgspec", "numpy", "pyarrow", "pyarrow.flight")


def check_requirements() -> None:
    """Raise UsageError with the path of this Python and what it lacks. Drivers and executors may use different Pythons."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    here = f"the Python of this Spark process ({sys.executable}, {version})"
    hint = "install braidmq[spark] for it, or set PYSPARK_PYTHON or spark.pyspark.python to one that has it, on all machines"
    if sys.version_info[:2] < PYTHON_MIN:
        wanted = ".".join(str(part) for part in PYTHON_MIN)
        raise UsageError(f"{here} is older than {wanted}, which braidmq needs", hint)
    missing = [name for name in MODULES if not _can_import(name)]
    if missing:
        raise UsageError(f"{here} lacks {', '.join(missing)}", hint)


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
