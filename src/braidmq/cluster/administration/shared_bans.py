"""Operators' bans are set on a core, and every node has them.

A node gets the whole list when it connects, in pages, and then each change. Until it has a ban, the home refuses the client's
claims (C28).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.access.bans import Ban, BanTable
from braidmq.base.errors import UsageError
from braidmq.cluster.administration.node_copies import CopyOf, NewestCopy, NodeCopies
from braidmq.cluster.administration.questions import NodeQuestions

OPERATION: Final = "bans"
_CHANGES_MAX: Final = 1000  # remembered; a node that lacks more gets the whole list
_PAGE_BYTES: Final = 256 * 1024

_encode: Final = msgspec.json.encode


class BanPage(Struct, frozen=True):
    """Bans for a node: those that are set and lifted, in pages. ``is_whole``: all bans that there are, and no others."""

    source: CopyOf
    put: list[Ban]
    lifted: list[Ban]
    is_whole: bool
    is_first: bool
    is_last: bool


class SharedBans:
    """The core's side. Its methods are called on the loop."""

    def __init__(self, bans: BanTable, questions: NodeQuestions, source: Callable[[], CopyOf]) -> None:
        """``source``: this core, and the number of the latest change that it knows."""
        self._bans = bans
        self._source = source
        self.copies = NodeCopies(OPERATION, questions, self._pages_since)
        self._changes: deque[tuple[int, Ban, bool]] = deque(maxlen=_CHANGES_MAX)

    def note(self, ban: Ban, is_set: bool) -> None:
        """A ban was set or lifted: tell all nodes."""
        self._changes.append((self.copies.version + 1, ban, is_set))
        self.copies.note()

    def _pages_since(self, version: int) -> list[bytes]:
        is_whole = version < 0 or not self._changes or self._changes[0][0] > version + 1
        if is_whole:
            changes = [(ban, True) for ban in self._bans.list() if not ban.automatic]
        else:
            changes = [(ban, is_set) for number, ban, is_set in self._changes if number > version]
        pieces = list(_cut(changes))
        last = len(pieces) - 1
        return [
            _encode(
                BanPage(
                    self._source(),
                    [ban for ban, is_set in piece if is_set],
                    [ban for ban, is_set in piece if not is_set],
                    is_whole,
                    i == 0,
                    i == last,
                )
            )
            for i, piece in enumerate(pieces)
        ]


def _cut(changes: list[tuple[Ban, bool]]) -> Iterator[list[tuple[Ban, bool]]]:
    """Pieces that fit into a frame, at least one; no piece has two changes of the same names, whose order counts."""
    piece: list[tuple[Ban, bool]] = []
    names: set[tuple[str | None, str | None, str | None]] = set()
    size = 0
    for ban, is_set in changes:
        name = ban.client_id, ban.user_name, ban.address
        if name in names or size > _PAGE_BYTES:
            yield piece
            piece, names, size = [], set(), 0
        piece.append((ban, is_set))
        names.add(name)
        size += len(_encode(ban))
    yield piece


class ReceivedBans:
    """A node's side: takes the core's bans over in place of its own."""

    def __init__(self, bans: BanTable, on_change: Callable[[], None]) -> None:
        """``on_change`` ends what is no longer allowed."""
        self._bans = bans
        self._on_change = on_change
        self._newest = NewestCopy()
        self._whole: dict[str, list[Ban]] = {}  # by the core that sends them

    def take(self, arguments: bytes) -> None:
        """A page of bans. Raises UsageError if it cannot be read."""
        try:
            page = msgspec.json.decode(arguments, type=BanPage)
        except msgspec.MsgspecError as problem:
            raise UsageError(f"bans cannot be read: {problem}") from None
        core = page.source.core
        if page.is_whole:
            whole = self._whole[core] = [*([] if page.is_first else self._whole.get(core, ())), *page.put]
            if not page.is_last:
                return
            del self._whole[core]
            if not self._newest.take(page.source):
                return
            self._bans.replace(whole)
        elif not self._newest.take(page.source):
            return
        else:
            for ban in page.put:
                self._bans.put(ban)
            for ban in page.lifted:
                self._bans.lift(ban)
        self._on_change()
