"""The fast lane: bytes and ints, no logging, and no I/O except an outbox's write to its socket.

``path`` and ``flows``, ``routing``, ``recording``, ``peers`` are the path of a message; ``records`` are the kernels of the log.

A build compiles these modules, and imports then prefer the compiled ones (``setup.py`` has the list). Both forms pass the same
tests. ``BRAIDMQ_PURE=1`` in the environment selects the plain form even if a compiled one exists.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent


class _PlainForm:
    """Finds the plain Python modules of this package, skipping compiled ones."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, module = name.removeprefix(__name__ + ".").rpartition(".")
        source = _FOLDER / package / f"{module}.py"
        if not name.startswith(__name__ + ".") or not package or not source.exists():
            return None
        return importlib.util.spec_from_file_location(name, source)


if os.environ.get("BRAIDMQ_PURE", "") not in ("", "0"):
    sys.meta_path.insert(0, _PlainForm)


def is_compiled() -> bool:
    """Whether the compiled form is in use."""
    from braidmq.lane.path import parser

    return not str(parser.__file__).endswith(".py")
