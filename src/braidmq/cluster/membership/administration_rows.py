"""What operators have set for the whole cluster, as rows of the core store: settings and bans.

    settings  key              SettingRow: a value set at run time, or that it was unset
    bans      digest of names  BanRow: an operator's ban
    counters  "administration" the number of the latest change; every row has the number of the change that wrote it

A change is written together with the counter, so changes have one order, whichever core makes them. Numbers are compared where
positions of the store cannot be: on nodes that hear several cores, and after the store was restored from a backup.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from braidmq.access.bans import Ban
from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.cluster.corestore.contract import Condition, CoreRow, CoreStore, DeleteRow, PutRow, RowWrite, revision_of
from braidmq.cluster.membership.members import COUNTERS

SETTINGS: Final = "settings"
BANS: Final = "bans"
NUMBER_KEY: Final = b"administration"
SETTINGS_BYTES_MAX: Final = 256 * 1024  # of all together: a node gets them in one message
_ATTEMPTS_MAX: Final = 100
_ROWS_PER_COMMIT: Final = 100
_BYTES_PER_COMMIT: Final = 512 * 1024

Row = TypeVar("Row", bound=Struct)


class SettingRow(Struct, frozen=True, array_like=True):
    """``value``: as JSON; empty: it was unset."""

    number: int
    value: bytes


class BanRow(Struct, frozen=True, array_like=True):
    """``ban``: as JSON."""

    number: int
    ban: bytes


def ban_key(ban: Ban) -> bytes:
    """The key of a ban: there is one for the same client id, user name and address. They may be too long for a key."""
    names = msgspec.json.encode([ban.client_id, ban.user_name, ban.address])
    return hashlib.sha256(names).digest()


def settings_of(rows: Mapping[bytes, CoreRow]) -> dict[str, object]:
    """The values that are set, by key. Raises Corruption."""
    found = {key.decode(): _decode(row, SettingRow).value for key, row in sorted(rows.items())}
    return {key: msgspec.json.decode(value) for key, value in found.items() if value}


def ban_of(row: CoreRow) -> Ban:
    """The ban of a row. Raises Corruption."""
    try:
        return msgspec.json.decode(_decode(row, BanRow).ban, type=Ban)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a ban in the cluster's tables is not valid: {problem}") from None


def change_number(table: str, row: CoreRow) -> int:
    """The number of the change that wrote a row of these tables. Raises Corruption."""
    return _decode(row, SettingRow).number if table == SETTINGS else _decode(row, BanRow).number


def number_of(row: CoreRow | None) -> int:
    """The number in a counter's row; 0 if there is none."""
    return 0 if row is None else int.from_bytes(row.value, "big")


class _RowChange(Struct, frozen=True):
    """``value``: as JSON; None: the row goes."""

    table: str
    key: bytes
    value: bytes | None

    def write(self, number: int) -> RowWrite:
        if self.value is None:
            return DeleteRow(self.table, self.key)
        row = SettingRow(number, self.value) if self.table == SETTINGS else BanRow(number, self.value)
        return PutRow(self.table, self.key, msgspec.msgpack.encode(row))


_Plan = Callable[[], Awaitable[Sequence[_RowChange]]]


class AdministrationTables:
    """Carries changes out; each returns its number. Every call raises Unavailable; a change is then in doubt."""

    def __init__(self, store: CoreStore, wall_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall_s = wall_s

    async def set_setting(self, key: str, value: object | None, check: Callable[[dict[str, object]], object]) -> int:
        """Set a value, or unset it. ``check`` raises ConfigError if all values together are not valid; then nothing changes."""
        encoded = b"" if value is None else msgspec.json.encode(value)

        async def plan() -> list[_RowChange]:
            settings = await self.settings()
            settings.pop(key, None)
            if value is not None:
                settings[key] = value
                if len(msgspec.json.encode(settings)) > SETTINGS_BYTES_MAX:
                    raise UsageError(f"the settings of the cluster have at most {SETTINGS_BYTES_MAX} bytes together")
            check(settings)
            return [_RowChange(SETTINGS, key.encode(), encoded)]

        return await self._carry_out(plan)

    async def settings(self) -> dict[str, object]:
        """The values that are set, by key."""
        return settings_of((await self._store.list_rows(SETTINGS)).rows)

    async def put_ban(self, ban: Ban) -> int:
        """Set a ban; it replaces one with the same names."""
        return await self._carry_out_all([_RowChange(BANS, ban_key(ban), msgspec.json.encode(ban))])

    async def lift_ban(self, ban: Ban) -> int:
        """Lift the ban with the names of this one; 0: there is none."""
        key = ban_key(ban)
        if await self._store.get(BANS, key) is None:
            return 0
        return await self._carry_out_all([_RowChange(BANS, key, None)])

    async def sweep(self) -> None:
        """Remove the rows of bans that are over."""
        for key, row in (await self._store.list_rows(BANS)).rows.items():
            until = ban_of(row).until
            if until is not None and until <= self._wall_s():  # a ban that is set again meanwhile has another revision
                await self._store.commit([Condition(BANS, key, row.revision)], [DeleteRow(BANS, key)])

    async def adopt(self, settings: Mapping[str, object], bans: Iterable[Ban]) -> None:
        """Make the tables what the files of a core say. Only for a store that no other core writes."""
        stored = await self.settings()
        changes = [
            _RowChange(SETTINGS, key.encode(), msgspec.json.encode(settings[key]) if key in settings else b"")
            for key in sorted(stored.keys() | settings.keys())
            if key not in settings or stored.get(key) != settings[key]
        ]
        rows = (await self._store.list_rows(BANS)).rows
        kept = {ban_key(ban): ban for ban in bans}
        changes += [_RowChange(BANS, key, None) for key in rows if key not in kept]
        for key, ban in kept.items():
            if key not in rows or ban_of(rows[key]) != ban:
                changes.append(_RowChange(BANS, key, msgspec.json.encode(ban)))
        for piece in _cut(changes):
            await self._carry_out_all(piece)

    async def _carry_out_all(self, changes: Sequence[_RowChange]) -> int:
        async def plan() -> Sequence[_RowChange]:
            return changes

        return await self._carry_out(plan)

    async def _carry_out(self, plan: _Plan) -> int:
        for _ in range(_ATTEMPTS_MAX):
            counter = await self._store.get(COUNTERS, NUMBER_KEY)
            number = number_of(counter) + 1
            writes = [each.write(number) for each in await plan()]
            count = PutRow(COUNTERS, NUMBER_KEY, number.to_bytes(8, "big"))
            if await self._store.commit([Condition(COUNTERS, NUMBER_KEY, revision_of(counter))], [count, *writes]) is not None:
                return number
        raise Unavailable("too many settings and bans of the cluster are changed at once")


def _cut(changes: Sequence[_RowChange]) -> Iterator[list[_RowChange]]:
    """Pieces that fit into a commit."""
    piece: list[_RowChange] = []
    size = 0
    for change in changes:
        size_of_change = len(change.key) + len(change.value or b"")
        if piece and (len(piece) >= _ROWS_PER_COMMIT or size + size_of_change > _BYTES_PER_COMMIT):
            yield piece
            piece, size = [], 0
        piece.append(change)
        size += size_of_change
    if piece:
        yield piece


def _decode(row: CoreRow, type_: type[Row]) -> Row:
    try:
        return msgspec.msgpack.decode(row.value, type=type_)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a row of the cluster's settings and bans is not valid: {problem}") from None
