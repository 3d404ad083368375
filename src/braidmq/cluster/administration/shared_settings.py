"""Settings that are set on a core at run time apply to the whole cluster: every node gets all of them, and each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.base.errors import ConfigError, UsageError
from braidmq.cluster.administration.node_copies import CopyOf, NewestCopy, NodeCopies
from braidmq.cluster.administration.questions import NodeQuestions

OPERATION: Final = "settings"


class SettingsPage(Struct, frozen=True):
    """All of them, by key."""

    source: CopyOf
    settings: dict[str, object]


class SettingsForNodes:
    """The core's side. Its methods are called on the loop."""

    def __init__(
        self, questions: NodeQuestions, source: Callable[[], CopyOf], settings: Callable[[], Mapping[str, object]]
    ) -> None:
        """``source``: this core, and the number of the latest change that it knows. ``settings``: as they are now."""
        self.copies = NodeCopies(OPERATION, questions, self._pages_since, self._note_answer)
        self._source = source
        self._settings = settings
        self._troubles: dict[str, str] = {}

    @property
    def troubles(self) -> dict[str, str]:
        """Why nodes that are connected cannot use them, by name."""
        return {name: trouble for name, trouble in self._troubles.items() if name in self.copies}

    def _pages_since(self, version: int) -> list[bytes]:
        return [msgspec.json.encode(SettingsPage(self._source(), dict(self._settings())))]

    def _note_answer(self, name: str, answer: bytes) -> None:
        trouble = msgspec.json.decode(answer, type=str)
        self._troubles = self.troubles  # without nodes that are gone
        self._troubles.pop(name, None)
        if trouble:
            self._troubles[name] = trouble


class ReceivedSettings:
    """A node's side: uses the cluster's settings in place of its own."""

    def __init__(self, use: Callable[[Mapping[str, object]], Awaitable[None]]) -> None:
        """``use`` raises ConfigError if they do not fit this node's file; then nothing has changed."""
        self.came = asyncio.Event()  # for the first time
        self._use = use
        self._newest = NewestCopy()

    async def take(self, arguments: bytes) -> str:
        """All settings; why they cannot be used here, or nothing. Raises UsageError if they cannot be read."""
        try:
            page = msgspec.json.decode(arguments, type=SettingsPage)
        except msgspec.MsgspecError as problem:
            raise UsageError(f"settings cannot be read: {problem}") from None
        if not self._newest.take(page.source):
            return ""
        try:
            await self._use(page.settings)
        except ConfigError as problem:
            return str(problem)
        finally:
            self.came.set()
        return ""

    async def wait(self, timeout_s: float) -> bool:
        """Wait until a core has said what they are; False if none did in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.came.wait()
        except TimeoutError:
            return False
        return True
