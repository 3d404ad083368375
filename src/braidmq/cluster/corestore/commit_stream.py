"""The latest commits of a core store, for readers that follow them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from braidmq.cluster.corestore.contract import CommitsMissed, CoreCommit

COMMITS_KEPT_MAX: Final = 1000


class CommitStream:
    """Keeps the latest commits. A reader that is slower than that has missed some and must list the tables again."""

    def __init__(self, position: int, kept_max: int = COMMITS_KEPT_MAX) -> None:
        """``position``: that of the last commit before this process started."""
        self.position = position
        self._commits: deque[CoreCommit] = deque(maxlen=kept_max)
        self._news = asyncio.Event()

    def add(self, commit: CoreCommit) -> None:
        """Show a commit to all readers."""
        self.position = commit.position
        self._commits.append(commit)
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, position: int) -> AsyncGenerator[CoreCommit, None]:
        """The commits above a position. Raises CommitsMissed."""
        while True:
            news = self._news  # taken before looking, so that no commit is missed in between
            for commit in self._above(position):
                yield commit
                position = commit.position
            if position >= self.position:
                await news.wait()

    def _above(self, position: int) -> list[CoreCommit]:
        # Positions are consecutive, so a reader has missed commits exactly if the next one is not kept.
        first = self._commits[0].position if self._commits else self.position + 1
        if not first - 1 <= position <= self.position:
            raise CommitsMissed(f"commits from {first} on are kept, not those after {position}")
        return [commit for commit in self._commits if commit.position > position]
