"""A batch of changes for the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from rocksdict import ColumnFamily, WriteBatch

from braidmq.base.errors import UsageError


class Batch:
    """Changes that are written together or not at all, in the order in which they were added.

    ``Store.write`` consumes it, even if the write fails.
    """

    __slots__ = ("_handles", "_raw")

    def __init__(self, handles: dict[str, ColumnFamily]) -> None:
        """Created by ``Store.batch``."""
        self._handles = handles
        self._raw: WriteBatch | None = WriteBatch(raw_mode=True)

    def __len__(self) -> int:
        return self._open().len()

    @property
    def size_bytes(self) -> int:
        """The size of the batch in the write-ahead log, in bytes."""
        return self._open().size_in_bytes()

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set one row."""
        try:
            self._raw.put(key, value, self._handles[family])  # type: ignore[union-attr] # a used batch is the rare case
        except (KeyError, ValueError, AttributeError):
            self._refuse(family)

    def put_all(self, family: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many rows; much faster than one by one."""
        try:
            put, handle = self._raw.put, self._handles[family]  # type: ignore[union-attr]
            for key, value in rows:
                put(key, value, handle)
        except (KeyError, ValueError, AttributeError):
            self._refuse(family)

    def delete(self, family: str, key: bytes) -> None:
        """Remove one row, if it exists."""
        try:
            self._open().delete(key, self._handles[family])
        except KeyError:
            self._refuse(family)

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """Remove every row with ``lower <= key < upper``."""
        try:
            self._open().delete_range(lower, upper, self._handles[family])
        except KeyError:
            self._refuse(family)

    def take(self) -> WriteBatch:
        """Pass the changes to the store; the batch cannot be used again."""
        raw = self._open()
        self._raw = None
        return raw

    def _open(self) -> WriteBatch:
        if self._raw is None:
            raise UsageError("this batch has already been written", "create a new one")
        return self._raw

    def _refuse(self, family: str) -> NoReturn:
        # What remains comes from rocksdict: KeyError for a key, ValueError for a value that is not bytes.
        self._open()
        if family not in self._handles:
            raise UsageError(f"the store has no family {family!r}", "open the store with it")
        raise UsageError("keys and values must be bytes, not another buffer type", "copy them with bytes()")
