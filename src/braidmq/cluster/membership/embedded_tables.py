"""The tables of a cluster with one core, followed as several cores follow theirs in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from braidmq.cluster.corestore.contract import CommitsMissed, CoreStore
from braidmq.cluster.membership.cluster_view import LISTED, ClusterView, ViewChanges


class EmbeddedTables:
    """Call `load`, then `start`, then `stop`."""

    def __init__(self, store: CoreStore) -> None:
        self.view = ClusterView()
        self.on_changes: Callable[[ViewChanges], None] = lambda changes: None
        self._store = store
        self._position = 0
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read all tables."""
        listings = {table: await self._store.list_rows(table) for table in LISTED}
        changes = self.view.load(listings)
        self._position = min(listing.position for listing in listings.values())
        self.on_changes(changes)

    def start(self) -> None:
        """Follow what changes from now on."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="tables of the cluster")
        self._task.add_done_callback(_report)

    def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._store.watch(self._position)) as commits:
                    async for commit in commits:
                        self._position = commit.position
                        self.on_changes(self.view.take(commit))
            except CommitsMissed:
                await self.load()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})
