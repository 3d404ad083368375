"""A cursor over the rows of one family.

It avoids three traps of rocksdict's iterator: its lower bound sets the upper one, a damaged block ends it silently as the end of
the data does, and stepping it at its end kills the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rocksdict import RdictIter

from braidmq.storage.engine.rocksdb import read_problem


class Cursor:
    """Moves forwards through a family, between fixed bounds; sees the rows that were written before it was created.

    ``key`` and ``value`` may be called while ``valid``. A live cursor keeps the directory locked after ``Store.close``.
    """

    __slots__ = ("key", "valid", "value", "_is_valid", "_iterator", "_lower", "_path", "_step")

    valid: bool
    key: Callable[[], bytes]
    value: Callable[[], bytes]

    def __init__(self, iterator: RdictIter, lower: bytes, path: Path) -> None:
        """Created by ``Store.cursor``; has no position until ``seek``."""
        self._iterator = iterator
        self._lower = lower
        self._path = path
        self._step = iterator.next
        self._is_valid = iterator.valid
        self.valid = False
        # Bound directly to the engine: a Python frame in between would cost a third of a step.
        self.key = iterator.key
        self.value = iterator.value

    def seek(self, key: bytes) -> None:
        """Go to the first row at or after ``key`` and within the bounds."""
        self._iterator.seek(key if key > self._lower else self._lower)
        self.valid = self._is_valid()
        if not self.valid:
            self._check_end()

    def next(self) -> None:
        """Go to the next row; at the end, stay there."""
        if self.valid:
            self._step()
            self.valid = self._is_valid()
            if not self.valid:
                self._check_end()

    def _check_end(self) -> None:
        try:
            self._iterator.status()
        except Exception as problem:
            raise read_problem(problem, self._path) from problem
