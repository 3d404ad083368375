"""The version of rows and messages that all members of a cluster understand (C35).

    cluster "version"   new formats and operations are used from it on; it only rises
    cluster "raising"   what a core is about to raise it to; nodes that speak less are kept out until that is decided

A core that knows of no member that speaks less writes "raising" first, and then looks at the members again. A node that has
registered before that is among them. A node that registers later reads "raising", since its registration depends on both rows. So
each node is either counted or kept out, and a core that dies in between leaves a row that any other core acts on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from msgspec import Struct

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import Condition, CoreRow, CoreStore, DeleteRow, PutRow, revision_of
from braidmq.cluster.membership.shard_map import CLUSTER, VERSION_KEY, next_version

log = logging.getLogger("braidmq.cluster")

RAISING_KEY: Final = b"raising"
_RETRY_S: Final = 0.5


class VersionRows(Struct, frozen=True):
    """Both rows as they were read."""

    version_row: CoreRow | None
    raising_row: CoreRow | None

    @property
    def version(self) -> int:
        """What all members understand."""
        return version_of(self.version_row)

    @property
    def raising(self) -> int:
        """What a core is about to raise it to; 0: nothing."""
        return 0 if self.raising_row is None else version_of(self.raising_row)

    def conditions(self) -> list[Condition]:
        """That nothing of this has changed."""
        return [
            Condition(CLUSTER, VERSION_KEY, revision_of(self.version_row)),
            Condition(CLUSTER, RAISING_KEY, revision_of(self.raising_row)),
        ]

    def refusal(self, speaks: int) -> str | None:
        """Why a node that speaks this version cannot be a member; None: it can. Raises Unavailable if that is being decided."""
        if speaks < self.version:
            return (
                f"this node speaks version {speaks} of the protocol between nodes, and the cluster has used version "
                f"{self.version} since all of its members did: run a newer braidmq"
            )
        if speaks < self.raising:
            raise Unavailable(f"the cluster is about to use version {self.raising}, and this node speaks {speaks}", _RETRY_S)
        return None


def version_of(row: CoreRow | None) -> int:
    """The version in a row; 1 before there is one."""
    return 1 if row is None else int.from_bytes(row.value, "big")


class ClusterVersion:
    """Every call raises Unavailable."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    async def read(self) -> VersionRows:
        """Both rows."""
        return VersionRows(await self._store.get(CLUSTER, VERSION_KEY), await self._store.get(CLUSTER, RAISING_KEY))

    async def raise_to(self, known: Iterable[int], read_all: Callable[[], Awaitable[Iterable[int]]]) -> None:
        """Raise the version to the lowest that a live member speaks. ``known``: what they speak, as far as this core knows.

        ``read_all`` reads it from the store.
        """
        found = await self.read()
        if not found.raising:
            wanted = next_version(found.version, known)
            if wanted == found.version:
                return
            write = PutRow(CLUSTER, RAISING_KEY, wanted.to_bytes(8, "big"))
            position = await self._store.commit(found.conditions(), [write])
            if position is None:
                return  # another core was faster; the next look goes on from there
            found = VersionRows(found.version_row, CoreRow(write.value, position))
        await self._decide(found, await read_all())

    async def _decide(self, found: VersionRows, spoken: Iterable[int]) -> None:
        is_spoken = min(spoken, default=0) >= found.raising
        end = DeleteRow(CLUSTER, RAISING_KEY)
        if is_spoken and found.raising > found.version:
            write = PutRow(CLUSTER, VERSION_KEY, found.raising.to_bytes(8, "big"))
            if await self._store.commit(found.conditions(), [write, end]) is not None:
                log.info("the cluster uses version %d from now on: all members speak it", found.raising)
        else:
            await self._store.commit(found.conditions(), [end])
