"""What the log needs of the store beneath it; `braidmq.storage.engine.store` implements it, and a sorted dict in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class StoreBatch(Protocol):
    """Changes that are written together or not at all."""

    def put(self, family: str, key: bytes, value: bytes, /) -> None:
        """Set a key."""

    def put_all(self, family: str, rows: Iterable[tuple[bytes, bytes]], /) -> None:
        """Set many keys."""

    def delete(self, family: str, key: bytes, /) -> None:
        """Remove a key."""

    def delete_range(self, family: str, lower: bytes, upper: bytes, /) -> None:
        """Remove the keys with lower <= key < upper."""


class Reads(Protocol):
    """Read access; it shows every write, committed or not."""

    def get(self, family: str, key: bytes, /) -> bytes | None:
        """The value of a key."""

    def items(self, family: str, lower: bytes, upper: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The pairs with lower <= key < upper in the order of their keys."""
