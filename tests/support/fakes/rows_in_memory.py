"""The rows of a log, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal


class RowsInMemory:
    """The rows of a log. Commits come in a later turn of the loop, or are refused."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.refusal: WriteRefusal | None = None
        self._waiting: list[Callable[[], None]] = []

    def change(
        self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[WriteRefusal], None]
    ) -> None:
        listed = list(changes)

        def land() -> None:
            if self.refusal is not None:
                on_refused(self.refusal)
                return
            for change in listed:
                match change:
                    case Put(_, key, value):
                        self.kept[key] = value
                    case Delete(_, key):
                        self.kept.pop(key, None)
            on_commit()

        self._waiting.append(land)

    def flush(self) -> None:
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.pop(0))

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted((key, value) for key, value in self.kept.items() if lower <= key < upper)
