"""A core store whose calls take some turns, so that those of several tasks mix, with a rule that is checked after each commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from braidmq.cluster.corestore.contract import Condition, CoreRow, RowWrite, TableRows
from braidmq.cluster.membership.members import DEATHS, MEMBERS, LiveMember, live_member
from tests.support.fakes.core_store import FakeCoreStore


class SteppingStore(FakeCoreStore):
    """Each call takes some turns before and after it is carried out."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance

    async def _pause(self) -> None:
        for _ in range(self._chance.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        await self._pause()
        found = await super().get(table, key)
        await self._pause()
        return found

    async def list_rows(self, table: str) -> TableRows:
        await self._pause()
        found = await super().list_rows(table)
        await self._pause()
        return found

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        await self._pause()
        position = await super().commit(conditions, writes)
        self.check()
        await self._pause()
        return position

    def check(self) -> None:
        """Assert what must hold after every commit."""
        raise NotImplementedError

    def alive(self) -> list[LiveMember]:
        """The members that are alive."""
        tables: dict[str, dict[bytes, CoreRow]] = {MEMBERS: {}, DEATHS: {}}
        for (table, key), row in self._rows.items():
            if table in tables:
                tables[table][key] = row
        found = (live_member(name, tables[MEMBERS], tables[DEATHS]) for name in tables[MEMBERS])
        return [member for member in found if member is not None]
