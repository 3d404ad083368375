"""An iterator over rows that reopens itself when RocksDB ends it early."""

from __future__ import annotations

from collections.abc import Callable, Iterator

Row = tuple[bytes, bytes]


class Rows:
    """The rows of several runs, one after the other.

    At the end of a run, ``next_run`` is called with its last row, or None if it was empty; it returns another run, or None.
    """

    __slots__ = ("_last", "_next_run", "_run")

    def __init__(self, next_run: Callable[[Row | None], Iterator[Row] | None], run: Iterator[Row]) -> None:
        self._next_run: Callable[[Row | None], Iterator[Row] | None] | None = next_run
        self._run = run
        self._last: Row | None = None

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> Row:
        while True:
            row = next(self._run, None)
            if row is not None:
                self._last = row
                return row
            run = self._next_run(self._last) if self._next_run is not None else None
            self._last = None
            if run is None:
                # It has ended, and must not keep anything in memory.
                self._next_run = None
                self._run = iter(())
                raise StopIteration
            self._run = run
