"""Settings and bans of the whole cluster, on one of its cores: changes go to the core store, and what is there is used here.

A core learns of its own changes as of those of others: by following the tables. An operator has the answer once this core uses
the change, and its file of it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from braidmq.access.bans import Ban
from braidmq.base.errors import ConfigError, Unavailable
from braidmq.cluster.corestore.contract import CoreStore
from braidmq.cluster.membership.administration_rows import BANS, SETTINGS, AdministrationTables, ban_of, settings_of
from braidmq.cluster.membership.cluster_view import ClusterView, ViewChanges
from braidmq.cluster.membership.registry_modes import LINEAR, MODE_NAME, refusal_of

log = logging.getLogger("braidmq.cluster")

_SWEEP_S: Final = 3600.0
_USED_S: Final = 10.0
_RETRY_S: Final = 5.0


class BanKeeper(Protocol):
    """The access control of this core; `LocalAccess`."""

    def take_bans(self, put: Sequence[Ban], lifted: Sequence[Ban]) -> None:
        """These bans were set and lifted for the whole cluster."""
        ...

    def replace_bans(self, bans: Sequence[Ban]) -> None:
        """These are all operators' bans."""
        ...

    async def store_bans(self) -> None:
        """Write the file of them. Raises OSError."""
        ...


class ClusterAdministration:
    """Call `load`, then `start`, then `stop`; `take` what the tables say meanwhile. It belongs to the loop of the log."""

    def __init__(
        self,
        store: CoreStore,
        view: ClusterView,
        access: BanKeeper,
        use_settings: Callable[[Mapping[str, object]], Awaitable[None]],
    ) -> None:
        """``use_settings`` applies all settings of the cluster and writes the file of them. Raises ConfigError and OSError."""
        self.on_settings: Callable[[], None] = _do_nothing  # they are used here
        self.trouble = ""  # why this core cannot use them
        self._tables = AdministrationTables(store)
        self._view = view
        self._access = access
        self._use_settings = use_settings
        self._bans: dict[bytes, Ban] = {}  # by the keys of their rows
        self._used = 0  # the number of the latest change that is used here
        self._must_use = self._must_store = False
        self._news = asyncio.Event()
        self._is_used = asyncio.Event()  # replaced when `_used` rises
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def number(self) -> int:
        """The number of the latest change that this core knows."""
        return self._view.administration_number

    @property
    def settings(self) -> dict[str, object]:
        """The values that are set for the whole cluster, by key."""
        return settings_of(self._view.tables[SETTINGS])

    # What the tables say

    def load(self) -> None:
        """Use everything that is in the tables now."""
        self._bans = {key: ban_of(row) for key, row in self._view.tables[BANS].items()}
        self._access.replace_bans(list(self._bans.values()))
        self._must_use = self._must_store = True
        self._news.set()

    def start(self) -> None:
        """Follow from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._use_always()), loop.create_task(self._sweep_always())]
        for task in self._tasks:
            task.add_done_callback(_report)

    def stop(self) -> None:
        """Follow no longer."""
        for task in self._tasks:
            task.cancel()

    def take(self, changes: ViewChanges) -> None:
        """The tables have changed. Bans hold at once."""
        put: list[Ban] = []
        lifted: list[Ban] = []
        for key in changes.bans:
            row = self._view.tables[BANS].get(key)
            if row is not None:
                put.append(ban_of(row))
                self._bans[key] = put[-1]
            elif (gone := self._bans.pop(key, None)) is not None:
                lifted.append(gone)
        if put or lifted:
            self._must_store = True
            self._access.take_bans(put, lifted)
        self._must_use = self._must_use or changes.are_settings_changed
        self._news.set()

    async def _use_always(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            number = self.number
            try:
                await self._use()
            except OSError as problem:
                log.error("the settings and bans of the cluster cannot be written to this core's files: %s", problem)
                asyncio.get_running_loop().call_later(_RETRY_S, self._news.set)
                continue
            self._used = number
            used, self._is_used = self._is_used, asyncio.Event()
            used.set()

    async def _use(self) -> None:
        if self._must_use:
            self._must_use = False  # before the first await: the next change may come during it
            try:
                await self._use_settings(self.settings)
                self.trouble = ""
            except ConfigError as problem:
                self.trouble = str(problem)
                log.error("the settings of the cluster do not fit this core's file, and are not used: %s", problem)
            except OSError:
                self._must_use = True
                raise
            self.on_settings()
        if self._must_store:
            self._must_store = False
            try:
                await self._access.store_bans()
            except OSError:
                self._must_store = True
                raise

    async def _sweep_always(self) -> None:
        while True:
            try:
                await self._tables.sweep()
            except Unavailable as problem:
                log.info("bans that are over stay in the cluster's tables for now: %s", problem)
            await asyncio.sleep(_SWEEP_S)

    # What operators do

    async def set_setting(self, key: str, value: object | None, check: Callable[[Mapping[str, object]], object]) -> None:
        """Set a value, or unset it (None), for the whole cluster; used here when this returns. Raises Unavailable.

        ``check`` raises ConfigError if all values together are not valid; then nothing has changed. This also raises it for a
        mode of the registry that members cannot have now.
        """
        if key == MODE_NAME:
            refusal = refusal_of(LINEAR if value is None else str(value), self._view.alive.values())
            if refusal is not None:
                raise ConfigError(key, refusal)
        await self._wait_used(await self._tables.set_setting(key, value, check))

    async def ban(self, ban: Ban) -> None:
        """Set a ban for the whole cluster; it holds here when this returns. Raises Unavailable."""
        await self._wait_used(await self._tables.put_ban(ban))

    async def unban(self, ban: Ban) -> bool:
        """Lift the ban with the names of this one; False if there is none. Raises Unavailable."""
        number = await self._tables.lift_ban(ban)
        await self._wait_used(number)
        return number > 0

    async def _wait_used(self, number: int) -> None:
        try:
            async with asyncio.timeout(_USED_S):
                while self._used < number:
                    await self._is_used.wait()
        except TimeoutError:
            raise Unavailable("the change is in the cluster's tables, and this core does not use it yet") from None


def _do_nothing() -> None:
    """No node needs to be told."""


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})
