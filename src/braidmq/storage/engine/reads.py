"""Reads rows of a RocksDB database, however it was opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rocksdict import Rdict, ReadOptions

from braidmq.lane.records.rows import Rows
from braidmq.storage.engine.cursor import Cursor
from braidmq.storage.engine.rocksdb import read_problem


class RocksReads:
    """The read operations of a database and of a secondary; they may come from any thread."""

    path: Path

    def family(self, name: str) -> Rdict:
        """The rows of a column family; raises UsageError if it does not exist."""
        raise NotImplementedError

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a row; None if there is none."""
        rows = self.family(family)
        try:
            value: bytes | None = rows.get(key)
        except Exception as problem:
            raise read_problem(problem, self.path) from problem
        return value

    def cursor(self, family: str, lower: bytes, upper: bytes) -> Cursor:
        """A cursor over `lower <= key < upper`."""
        return Cursor(self.family(family).iter(_below(upper)), lower, self.path)

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every row with `lower <= key < upper` as of this call, in order; raises Corruption for damage."""
        start = lower

        def next_run(last: tuple[bytes, bytes] | None) -> Iterator[tuple[bytes, bytes]] | None:
            # The iterator does not say why it ended. A cursor does: it raises on damage, and finds what a transient error hid.
            nonlocal start
            found = self.first_from(family, start if last is None else last[0] + b"\x00", upper)
            if found is None:
                return None
            start = found
            return self.run(family, found, upper)

        return Rows(next_run, self.run(family, lower, upper))

    def run(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same rows as fast as possible, opened before this returns; but damage ends it silently.

        When it ends, call `first_from` to check whether that was the end of the data.
        """
        rows = self.family(family)
        return cast("Iterator[tuple[bytes, bytes]]", rows.items(read_opt=_below(upper), from_key=lower))

    def first_from(self, family: str, key: bytes, upper: bytes) -> bytes | None:
        """The first key not below this one; None if there is none before `upper`. Raises Corruption for damage."""
        cursor = self.cursor(family, key, upper)
        cursor.seek(key)
        return cursor.key() if cursor.valid else None


def _below(upper: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    return options
