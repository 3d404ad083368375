"""The ceiling of a log: no record on disk or in any reader's position has a timestamp above it (C36).

With ``history.durability = "os"`` a power cut takes the last records, while clients, other cores and Spark keep positions behind
them. The ceiling is a small file beside the log that is synced although the log is not: after a start, timestamps begin above
it, so none is used twice.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from braidmq.base.errors import Unavailable
from braidmq.storage.engine.folders import sync_folder
from braidmq.storage.engine.slots import read_slots, write_slot

# Magic, turn and ceiling.
_SLOT: Final = struct.Struct(">8sQQ")
_MAGIC: Final = b"BMQCEIL1"


def ceiling_path(log_path: Path) -> Path:
    """Where the ceiling of a log is."""
    return log_path.with_name(f"{log_path.name}.ceiling")


class CeilingFile:
    """The ceiling of one log, as it is on disk; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Read the file, which need not exist. Raises Unavailable if it exists and cannot be read."""
        self._path = path
        self._turn = 0
        self.value = 0  # the timestamp; 0 if there is none
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as problem:
            raise Unavailable(f"cannot read {path}, above which the timestamps of the log continue: {problem}") from problem
        for magic, turn, value in read_slots(data, _SLOT):
            if magic == _MAGIC and turn > self._turn:
                self._turn, self.value = turn, value

    def put(self, value: int) -> None:
        """Write a ceiling, and wait until it is on disk; raises OSError."""
        is_new = not self._path.exists()
        turn = self._turn + 1
        fields = _SLOT.pack(_MAGIC, turn, value)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_slot(file, turn, fields)
            os.fsync(file)
        finally:
            os.close(file)
        if is_new:
            sync_folder(self._path.parent)
        self._turn, self.value = turn, value
