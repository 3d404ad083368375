"""Operators' bans are set on the core, and every node has them.

A node gets the whole list when it connects, in pages, and then each change. A node that does not confirm is sent what it lacks
again, as long as it is connected. Until it has a ban, the home refuses the client's claims (C28).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.access.bans import Ban, BanTable
from braidmq.base.errors import BraidError, UsageError
from braidmq.cluster.administration.questions import NodeQuestions

OPERATION: Final = "bans"
_CHANGES_MAX: Final = 1000  # remembered; a node that lacks more gets the whole list
_PAGE_BYTES: Final = 256 * 1024
_CONFIRM_S: Final = 5.0
_RETRY_S: Final = 0.1  # the first pause: a node that has just registered does not serve yet
_RETRY_S_MAX: Final = 1.0

_encode: Final = msgspec.json.encode


class BanPage(Struct, frozen=True):
    """Bans for a node: those that are set and lifted, in pages. ``is_whole``: all bans that there are, and no others."""

    put: list[Ban]
    lifted: list[Ban]
    is_whole: bool
    is_first: bool
    is_last: bool


class SharedBans:
    """The core's side. Its methods are called on the loop."""

    def __init__(self, bans: BanTable, questions: NodeQuestions) -> None:
        self._bans = bans
        self._questions = questions
        self._version = 0
        self._changes: deque[tuple[int, Ban, bool]] = deque(maxlen=_CHANGES_MAX)
        self._known: dict[str, int] = {}  # the version that each connected node has; -1: none
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._confirmed = asyncio.Event()  # replaced when a node has confirmed

    def note(self, ban: Ban, is_set: bool) -> None:
        """An operator has set or lifted a ban: tell all nodes."""
        self._version += 1
        self._changes.append((self._version, ban, is_set))
        for name in list(self._known):
            self._tell(name)

    def connect(self, name: str) -> None:
        """A node has connected: it knows nothing."""
        self._known[name] = -1
        self._tell(name)

    def disconnect(self, name: str) -> None:
        """It gets the list when it is back."""
        self._known.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def wait_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the bans of now; returns the names of those that did not confirm in time."""
        version = self._version
        try:
            async with asyncio.timeout(timeout_s):
                while self._lacking(version):
                    await self._confirmed.wait()
        except TimeoutError:
            pass
        return self._lacking(version)

    def _lacking(self, version: int) -> list[str]:
        return sorted(name for name, known in self._known.items() if known < version)

    def close(self) -> None:
        """The core stops."""
        for name in list(self._known):
            self.disconnect(name)

    def _tell(self, name: str) -> None:
        if name not in self._tasks:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(self._bring(name))
            task.add_done_callback(lambda ended: self._on_done(name, ended))

    def _on_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
            if self._known.get(name, self._version) < self._version:
                self._tell(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "sending bans failed", "exception": error, "task": task})

    async def _bring(self, name: str) -> None:
        """Send a node what it lacks until it has everything."""
        pause_s = _RETRY_S
        while self._known[name] < self._version:
            version = self._version
            try:
                for page in self._pages_since(self._known[name]):
                    await self._questions.ask(name, OPERATION, _encode(page), _CONFIRM_S)
            except BraidError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
                continue
            self._known[name] = version
            confirmed, self._confirmed = self._confirmed, asyncio.Event()
            confirmed.set()

    def _pages_since(self, version: int) -> list[BanPage]:
        is_whole = version < 0 or not self._changes or self._changes[0][0] > version + 1
        if is_whole:
            changes = [(ban, True) for ban in self._bans.list() if not ban.automatic]
        else:
            changes = [(ban, is_set) for number, ban, is_set in self._changes if number > version]
        pieces = list(_cut(changes))
        last = len(pieces) - 1
        return [
            BanPage(
                [ban for ban, is_set in piece if is_set],
                [ban for ban, is_set in piece if not is_set],
                is_whole,
                i == 0,
                i == last,
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
        self._whole: list[Ban] = []

    def take(self, arguments: bytes) -> None:
        """A page of bans. Raises UsageError if it cannot be read."""
        try:
            page = msgspec.json.decode(arguments, type=BanPage)
        except msgspec.MsgspecError as problem:
            raise UsageError(f"bans cannot be read: {problem}") from None
        if page.is_whole:
            self._whole = [*([] if page.is_first else self._whole), *page.put]
            if not page.is_last:
                return
            whole, self._whole = self._whole, []
            self._bans.replace(whole)
        else:
            for ban in page.put:
                self._bans.put(ban)
            for ban in page.lifted:
                self._bans.lift(ban)
        self._on_change()
