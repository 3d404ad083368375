"""What a core has set for the whole cluster is brought to every node, and brought again until the node has confirmed it.

A node gets everything when it connects, in pages, and then each change. A node with several cores hears each of them: what comes
from a core that knows less than another one did is not taken (`NewestCopy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from braidmq.base.errors import BraidError
from braidmq.cluster.administration.questions import NodeQuestions

_CONFIRM_S: Final = 5.0
_RETRY_S: Final = 0.1  # the first pause: a node that has just registered does not serve yet
_RETRY_S_MAX: Final = 1.0


class NodeCopies:
    """The core's side. Its methods are called on the loop."""

    def __init__(
        self,
        operation: str,
        questions: NodeQuestions,
        pages_since: Callable[[int], list[bytes]],
        on_answer: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """``pages_since``: what a node with this version lacks; -1: everything. ``on_answer``: told what a node says."""
        self.version = 0  # rises with each change
        self._operation = operation
        self._questions = questions
        self._pages_since = pages_since
        self._on_answer = on_answer
        self._known: dict[str, int] = {}  # the version that each connected node has; -1: none
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._confirmed = asyncio.Event()  # replaced when a node has confirmed

    def __contains__(self, name: object) -> bool:
        """Whether a node is connected."""
        return name in self._known

    def note(self) -> None:
        """Something has changed: tell all nodes."""
        self.version += 1
        for name in list(self._known):
            self._tell(name)

    def connect(self, name: str) -> None:
        """A node has connected: it knows nothing."""
        self._known[name] = -1
        self._tell(name)

    def disconnect(self, name: str) -> None:
        """It gets everything when it is back."""
        self._known.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def wait_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have what is set now; returns the names of those that did not confirm in time."""
        version = self.version
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
            if self._known.get(name, self.version) < self.version:
                self._tell(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = f"bringing {self._operation} to a node failed"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    async def _bring(self, name: str) -> None:
        """Send a node what it lacks until it has everything."""
        pause_s = _RETRY_S
        while self._known[name] < self.version:
            version = self.version
            try:
                for page in self._pages_since(self._known[name]):
                    answer = await self._questions.ask(name, self._operation, page, _CONFIRM_S)
                    if self._on_answer is not None:
                        self._on_answer(name, answer)
            except BraidError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
                continue
            self._known[name] = version
            confirmed, self._confirmed = self._confirmed, asyncio.Event()
            confirmed.set()


class Copies:
    """Everything that a core brings to its nodes."""

    def __init__(self, questions: NodeQuestions, copies: Sequence[NodeCopies]) -> None:
        self._copies = copies
        questions.on_connect, questions.on_disconnect = self._connect, self._disconnect

    def _connect(self, name: str) -> None:
        for each in self._copies:
            each.connect(name)

    def _disconnect(self, name: str) -> None:
        for each in self._copies:
            each.disconnect(name)

    def close(self) -> None:
        """The core stops."""
        for each in self._copies:
            each.close()


class CopyOf(Struct, frozen=True):
    """Whose copy a page belongs to. ``number``: that of the latest change that the core knew."""

    core: str
    number: int


class NewestCopy:
    """A node's side: whether a page counts.

    Several cores follow one store, so of two cores the one with the higher number is right. A core contradicts only itself
    with a lower one: its store was restored from a backup.
    """

    def __init__(self) -> None:
        self._latest = CopyOf("", -1)

    def take(self, source: CopyOf) -> bool:
        """Whether to take what this core says; from then on it is what the node has."""
        if source.number < self._latest.number and source.core != self._latest.core:
            return False
        self._latest = source
        return True
