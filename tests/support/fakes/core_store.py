"""A core store in memory; it passes the suite of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from braidmq.cluster.corestore.contract import (
    CommitsMissed,
    Condition,
    CoreCommit,
    CoreRow,
    DeleteRow,
    PutRow,
    RowWrite,
    TableRows,
    check_conditions,
    check_writes,
    revision_of,
)


class FakeCoreStore:
    """Keeps every commit, or as many as it is told to. A lease ends when it is told to."""

    def __init__(self, kept_max: int = 1_000_000) -> None:
        self.commits: list[CoreCommit] = []
        self._rows: dict[tuple[str, bytes], CoreRow] = {}
        self._kept_max = kept_max
        self._leases: dict[int, set[tuple[str, bytes]]] = {}
        self._leases_granted = 0
        self._grown = asyncio.Condition()

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        return self._rows.get((table, key))

    async def list_rows(self, table: str) -> TableRows:
        return TableRows(len(self.commits), {key: row for (each, key), row in self._rows.items() if each == table})

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        check_conditions(conditions)
        check_writes(writes)
        if any(isinstance(write, PutRow) and write.lease and write.lease not in self._leases for write in writes):
            return None
        if any(revision_of(self._rows.get((each.table, each.key))) != each.revision for each in conditions):
            return None
        position = len(self.commits) + 1
        for write in writes:
            place = (write.table, write.key)
            self._rows.pop(place, None)
            for bound in self._leases.values():
                bound.discard(place)
            if isinstance(write, PutRow):
                self._rows[place] = CoreRow(write.value, position)
                if write.lease:
                    self._leases[write.lease].add(place)
        self.commits.append(CoreCommit(position, tuple(writes)))
        async with self._grown:
            self._grown.notify_all()
        return position

    async def watch(self, after: int) -> AsyncGenerator[CoreCommit, None]:
        while True:
            if not len(self.commits) - self._kept_max <= after <= len(self.commits):
                raise CommitsMissed(f"not those after {after}")
            if after < len(self.commits):
                after += 1
                yield self.commits[after - 1]
            else:
                async with self._grown:
                    if after == len(self.commits):
                        await self._grown.wait()

    async def grant_lease(self, ttl_s: float) -> int:
        self._leases_granted += 1
        self._leases[self._leases_granted] = set()
        return self._leases_granted

    async def renew_lease(self, lease: int) -> bool:
        return lease in self._leases

    async def end_lease(self, lease: int) -> None:
        bound = self._leases.pop(lease, set())
        if bound:
            await self.commit([], [DeleteRow(*place) for place in sorted(bound)])
