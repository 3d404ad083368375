"""A core store whose restores and refusals do not surface in every caller.

Etcd that was restored from a backup fails every call until the restore is accepted, and one that no longer accepts this node's
login fails with a ConfigError. While the node runs, both mean the same for a caller: not now. `restored` wakes who repairs it.
Until the rows are back that a restore has taken, nodes are missing there that live: so only who repairs the tables is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol

from braidmq.base.errors import ConfigError, Unavailable
from braidmq.cluster.corestore.contract import Condition, CoreCommit, CoreRow, CoreStore, RowWrite, TableRows
from braidmq.cluster.corestore.etcd.identity import StoreMark, StoreRestored

log = logging.getLogger("braidmq.cluster")

_RETRY_S: Final = 1.0


class RestorableStore(CoreStore, Protocol):
    """A store that notices when it was restored from a backup; `EtcdCoreStore`."""

    @property
    def mark(self) -> StoreMark | None:
        """What to keep over a restart."""
        ...

    async def accept_restored(self) -> None:
        """Take the store as it is after a restore."""
        ...

    async def close(self) -> None:
        """End all connections."""
        ...


class GuardedStore:
    """Implements `CoreStore`; raises nothing but Unavailable and CommitsMissed, and ConfigError until ``is_running`` is set."""

    def __init__(self, store: RestorableStore) -> None:
        self.restored = asyncio.Event()  # a restore was noticed and not accepted
        self.is_running = False
        self._store = store
        self._refusal = ""
        self._repairer: asyncio.Task[Any] | None = None

    @property
    def mark(self) -> StoreMark | None:
        """What to keep over a restart."""
        return self._store.mark

    async def accept_restored(self) -> None:
        """Take the store as it is after a restore."""
        with self._guard():
            await self._store.accept_restored()
        self.restored.clear()

    async def close(self) -> None:
        """End all connections."""
        await self._store.close()

    def begin_repair(self) -> None:
        """Serve this task alone until `end_repair`."""
        self._repairer = asyncio.current_task()

    def end_repair(self) -> None:
        """Serve all again."""
        self._repairer = None

    @contextmanager
    def _guard(self) -> Iterator[None]:
        if self._repairer is not None and asyncio.current_task() is not self._repairer:
            raise Unavailable("the tables of the cluster are being repaired", _RETRY_S)
        try:
            yield
        except StoreRestored as problem:
            if not self.restored.is_set():
                log.warning("%s", problem)
            self.restored.set()
            raise Unavailable("etcd was restored from a backup", _RETRY_S) from None
        except ConfigError as problem:
            if not self.is_running:
                raise
            if str(problem) != self._refusal:
                self._refusal = str(problem)
                log.error("etcd refuses this node: %s", problem)
            raise Unavailable(f"etcd refuses this node: {problem}", _RETRY_S) from None

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        """A row; None if it does not exist."""
        with self._guard():
            return await self._store.get(table, key)

    async def list_rows(self, table: str) -> TableRows:
        """All rows of a table."""
        with self._guard():
            return await self._store.list_rows(table)

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        """Write all rows if all conditions hold."""
        with self._guard():
            return await self._store.commit(conditions, writes)

    async def watch(self, after: int) -> AsyncGenerator[CoreCommit, None]:
        """The commits above a position, in order."""
        with self._guard():
            async with aclosing(self._store.watch(after)) as commits:
                async for commit in commits:
                    yield commit

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease."""
        with self._guard():
            return await self._store.grant_lease(ttl_s)

    async def renew_lease(self, lease: int) -> bool:
        """Let a lease last for its whole time again; False: it has ended."""
        with self._guard():
            return await self._store.renew_lease(lease)

    async def end_lease(self, lease: int) -> None:
        """End a lease now, with its rows."""
        with self._guard():
            await self._store.end_lease(lease)
