"""A core's home for which nothing is done, and the rows of a core's log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from braidmq.cluster.membership.member import Member
from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal


class SharedRows:
    """Rows that outlive the cores, or that several cores share."""

    log_id = b"l" * 16
    shards = 4

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self._waiting: list[Callable[[], None]] = []

    def change(
        self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[WriteRefusal], None]
    ) -> None:
        for change in changes:
            match change:
                case Put(_, key, value):
                    self.kept[key] = value
                case Delete(_, key):
                    self.kept.pop(key, None)
        self._waiting.append(on_commit)

    def flush(self) -> None:
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.pop(0))

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted((key, value) for key, value in self.kept.items() if lower <= key < upper)


class QuietCalls:
    """A node whose claims nobody answers."""

    def open(self, connection: object) -> None:
        """Nothing."""

    def lose(self) -> None:
        """Nothing."""


class QuietPeer:
    """A node for which nothing is done."""

    def __init__(self) -> None:
        self.calls = QuietCalls()

    def open_messages(self, connection: object) -> None:
        """Nothing."""

    def lose_messages(self) -> None:
        """Nothing."""

    note_room = lose_messages

    def receive(self, *frame: object) -> None:
        """Nothing."""


class QuietHome:
    """Notes who is declared dead."""

    def __init__(self, on_death: Callable[[Member], None] | None = None) -> None:
        self._on_death = on_death

    def join(self, member: Member, registration_id: int) -> QuietPeer:
        return QuietPeer()

    def bury(self, member: Member) -> None:
        if self._on_death is not None:
            self._on_death(member)
