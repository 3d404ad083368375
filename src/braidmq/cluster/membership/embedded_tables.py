"""The tables of a cluster with one core, followed as several cores follow theirs in etcd."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Final, Protocol

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import CommitsMissed, CoreStore
from braidmq.cluster.membership.cluster_view import LISTED, ClusterView, ViewChanges
from braidmq.cluster.membership.members import Members

log = logging.getLogger("braidmq.cluster")

_LOOK_S: Final = 0.5


class TablesPort(Protocol):
    """Whom the only core tells what changes in its tables."""

    def on_version(self) -> None:
        """The cluster uses a higher version from now on."""
        ...

    def on_administered(self, changes: ViewChanges) -> None:
        """Settings or bans of the cluster have changed."""
        ...


class EmbeddedTables:
    """Call `load`, then `start`, then `stop`. It also raises the version of the cluster."""

    def __init__(self, store: CoreStore, members: Members, port: TablesPort) -> None:
        self.view = ClusterView()
        self._store = store
        self._members = members
        self._port = port
        self._position = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def load(self) -> None:
        """Read all tables."""
        listings = {table: await self._store.list_rows(table) for table in LISTED}
        changes = self.view.load(listings)
        self._position = min(listing.position for listing in listings.values())
        self._tell(changes)

    def start(self) -> None:
        """Follow what changes from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(), name="tables of the cluster"),
            loop.create_task(self._raise_version(), name="version of the cluster"),
        ]
        for task in self._tasks:
            task.add_done_callback(_report)

    def stop(self) -> None:
        """Follow no longer."""
        for task in self._tasks:
            task.cancel()

    def _tell(self, changes: ViewChanges) -> None:
        if changes.is_version_changed:
            self._port.on_version()
        if changes.are_settings_changed or changes.bans:
            self._port.on_administered(changes)

    async def _raise_version(self) -> None:
        while True:
            if self.view.must_decide_version:
                try:
                    await self._members.raise_version([member.version for member in self.view.alive.values()])
                except Unavailable as problem:
                    log.warning("the version of the cluster cannot be raised: %s", problem)
            await asyncio.sleep(_LOOK_S)

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._store.watch(self._position)) as commits:
                    async for commit in commits:
                        self._position = commit.position
                        self._tell(self.view.take(commit))
            except CommitsMissed:
                await self.load()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})
