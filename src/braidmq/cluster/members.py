"""Who belongs to the cluster, as decisions without I/O: each plans one commit of the core store from what was read of it.

    members   name -> MemberRow     the latest incarnation of a node, and the key that identifies it over restarts
    deaths    name -> DeathRow      the latest incarnation that has ended; only this row makes a node dead (C31)
    counters  "registration_id"     the last number given out
    endpoints address -> number     registrations over HTTP

- An incarnation is max(last + 1, wall clock in ms): unique even if the tables were restored from an older backup (C27).
- The same key ends its own older incarnation at once; another key is refused while the node is alive (C31).
- An incarnation that is not in its member row is no member: an absent row fences, too.

Read the rows that `MemberReading` names, plan, commit. If the commit's conditions do not hold, read and plan again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from braidmq.base.errors import Corruption, Unavailable
from braidmq.cluster.corestore.contract import ABSENT, Condition, CoreRow, CoreStore, DeleteRow, PutRow, RowWrite, revision_of

MEMBERS: Final = "members"
DEATHS: Final = "deaths"
COUNTERS: Final = "counters"
ENDPOINTS: Final = "endpoints"
ENDPOINTS_MAX: Final = 10_000
REGISTRATION_KEY: Final = b"registration_id"
DEATH_KEPT_MS: Final = 86_400_000
_ATTEMPTS_MAX: Final = 100

Row = TypeVar("Row", bound=Struct)


class MemberRow(Struct, frozen=True, array_like=True):
    """A node. ``key_digest``: SHA-256 of its key, which itself is not stored. ``role``: core, replicant or worker."""

    registration_id: int
    incarnation: int
    key_digest: bytes
    role: str


class DeathRow(Struct, frozen=True, array_like=True):
    """This incarnation of the node has ended, and every lower one."""

    incarnation: int
    died_at_ms: int


class MemberReading(Struct, frozen=True):
    """The rows that a decision about one node depends on, as they were read."""

    name: str
    member_row: CoreRow | None
    death_row: CoreRow | None
    counter_row: CoreRow | None

    @property
    def member(self) -> MemberRow | None:
        """The node's row."""
        return None if self.member_row is None else _decode(self.member_row.value, MemberRow)

    @property
    def last_dead(self) -> int:
        """The latest incarnation that has ended; 0 if none has."""
        return 0 if self.death_row is None else _decode(self.death_row.value, DeathRow).incarnation

    @property
    def last_registration_id(self) -> int:
        """The last number given out."""
        return 0 if self.counter_row is None else int.from_bytes(self.counter_row.value, "big")

    @property
    def is_alive(self) -> bool:
        """Whether the node has an incarnation that has not ended."""
        return self.member is not None and self.member.incarnation > self.last_dead

    def conditions(self) -> list[Condition]:
        """That nothing of this has changed."""
        key = self.name.encode()
        return [
            Condition(MEMBERS, key, revision_of(self.member_row)),
            Condition(DEATHS, key, revision_of(self.death_row)),
            Condition(COUNTERS, REGISTRATION_KEY, revision_of(self.counter_row)),
        ]


class RegistrationRequest(Struct, frozen=True):
    """A node asks to be a member. ``incarnation``: the one that it has; 0 for a node that has just started."""

    name: str
    key: bytes
    role: str
    incarnation: int = 0


class Admitted(Struct, frozen=True):
    """The node is a member once the writes are committed; without writes it is one already.

    ``ended``: an older incarnation of the node that this commit ends; 0: none.
    """

    registration_id: int
    incarnation: int
    writes: tuple[RowWrite, ...] = ()
    ended: int = 0


class NotAdmitted(Struct, frozen=True):
    """The node is no member. ``must_restart``: its incarnation has ended, and it may come back as a new one."""

    reason: str
    must_restart: bool = False


def plan_registration(read: MemberReading, request: RegistrationRequest, wall_ms: int) -> Admitted | NotAdmitted:
    """Decide on a node that registers."""
    member, digest = read.member, hashlib.sha256(request.key).digest()
    if member is not None and member.key_digest != digest:
        if read.is_alive:
            return NotAdmitted(f"another node with the name {request.name!r} is alive; give this node another node.name")
        member = None  # a new node under the name of a dead one
    if request.incarnation:
        return _plan_return(read, request, member)
    last = max(read.last_dead, 0 if read.member is None else read.member.incarnation)
    incarnation = max(last + 1, wall_ms)
    key = request.name.encode()
    writes: list[RowWrite] = []
    ended = 0
    if member is None:
        registration_id = read.last_registration_id + 1
        writes.append(PutRow(COUNTERS, REGISTRATION_KEY, registration_id.to_bytes(8, "big")))
    else:
        registration_id = member.registration_id
        if read.is_alive:
            ended = member.incarnation
            writes.append(PutRow(DEATHS, key, msgspec.msgpack.encode(DeathRow(ended, wall_ms))))
    row = MemberRow(registration_id, incarnation, digest, request.role)
    return Admitted(registration_id, incarnation, (PutRow(MEMBERS, key, msgspec.msgpack.encode(row)), *writes), ended)


def _plan_return(read: MemberReading, request: RegistrationRequest, member: MemberRow | None) -> Admitted | NotAdmitted:
    """Decide on a node that has lost its connection and comes back with its incarnation."""
    if member is None:
        return NotAdmitted("the cluster does not know this node", must_restart=True)
    if request.incarnation < member.incarnation:
        return NotAdmitted("this node was started a second time", must_restart=True)
    if request.incarnation <= read.last_dead:
        return NotAdmitted("this node was declared dead", must_restart=True)
    if request.incarnation == member.incarnation:
        return Admitted(member.registration_id, member.incarnation)
    # The tables are older than the node: they were restored from a backup. Its key proves that the number is its own.
    row = msgspec.structs.replace(member, incarnation=request.incarnation)
    write = PutRow(MEMBERS, request.name.encode(), msgspec.msgpack.encode(row))
    return Admitted(member.registration_id, request.incarnation, (write,))


def plan_death(read: MemberReading, incarnation: int, wall_ms: int) -> tuple[RowWrite, ...]:
    """Declare an incarnation dead; nothing to write if it has ended, or is not the latest."""
    if not read.is_alive or read.member is None or read.member.incarnation != incarnation:
        return ()
    return (PutRow(DEATHS, read.name.encode(), msgspec.msgpack.encode(DeathRow(incarnation, wall_ms))),)


def plan_sweep(read: MemberReading, wall_ms: int) -> tuple[RowWrite, ...]:
    """Remove the rows of a node that has been dead for a day; nothing to write otherwise."""
    if read.death_row is None or read.is_alive:
        return ()
    death = _decode(read.death_row.value, DeathRow)
    if wall_ms - death.died_at_ms < DEATH_KEPT_MS:
        return ()
    key = read.name.encode()
    return (DeleteRow(MEMBERS, key), DeleteRow(DEATHS, key))


class LiveMember(Struct, frozen=True):
    """A node that is alive."""

    name: str
    registration_id: int
    incarnation: int
    role: str


class Members:
    """Carries the decisions out: reads, plans and commits until the commit holds. Every call raises Unavailable."""

    def __init__(self, store: CoreStore, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms

    async def register(self, request: RegistrationRequest) -> Admitted | NotAdmitted:
        """Make a node a member, or say why not."""
        for _ in range(_ATTEMPTS_MAX):
            read = await self._read(request.name)
            decision = plan_registration(read, request, self._wall_ms())
            if not isinstance(decision, Admitted) or not decision.writes:
                return decision
            if await self._store.commit(read.conditions(), decision.writes) is not None:
                return decision
        return NotAdmitted("too many nodes register at once")

    async def register_endpoint(self, endpoint: str) -> int:
        """The registration id of an address; the same one when it is asked for again."""
        key = endpoint.encode()
        while True:
            known, counter = await self._store.get(ENDPOINTS, key), await self._store.get(COUNTERS, REGISTRATION_KEY)
            if known is not None:
                return int.from_bytes(known.value, "big")
            if len((await self._store.list_rows(ENDPOINTS)).rows) >= ENDPOINTS_MAX:
                raise Unavailable(f"{ENDPOINTS_MAX} endpoints are registered")
            number = (0 if counter is None else int.from_bytes(counter.value, "big")) + 1
            value = number.to_bytes(8, "big")
            conditions = [
                Condition(ENDPOINTS, key, ABSENT),
                Condition(COUNTERS, REGISTRATION_KEY, revision_of(counter)),
            ]
            writes = [PutRow(ENDPOINTS, key, value), PutRow(COUNTERS, REGISTRATION_KEY, value)]
            if await self._store.commit(conditions, writes) is not None:
                return number

    async def declare_dead(self, name: str, incarnation: int) -> bool:
        """End an incarnation; False if it had ended, or a newer one exists."""
        return await self._carry_out(name, lambda read: plan_death(read, incarnation, self._wall_ms()))

    async def sweep(self) -> list[str]:
        """Forget nodes that have been dead for a day; returns their names."""
        names = [key.decode() for key in (await self._store.list_rows(DEATHS)).rows]
        return [name for name in names if await self._carry_out(name, lambda read: plan_sweep(read, self._wall_ms()))]

    async def is_member(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation of a node is alive."""
        read = await self._read(name)
        return read.is_alive and read.member is not None and read.member.incarnation == incarnation

    async def alive(self) -> list[LiveMember]:
        """All nodes that are alive, by name."""
        rows = (await self._store.list_rows(MEMBERS)).rows
        deaths = (await self._store.list_rows(DEATHS)).rows
        return [each for name in sorted(rows) if (each := _live(name, rows, deaths)) is not None]

    async def _carry_out(self, name: str, plan: Callable[[MemberReading], tuple[RowWrite, ...]]) -> bool:
        while True:
            read = await self._read(name)
            writes = plan(read)
            if not writes:
                return False
            if await self._store.commit(read.conditions(), writes) is not None:
                return True

    async def _read(self, name: str) -> MemberReading:
        key = name.encode()
        return MemberReading(
            name,
            await self._store.get(MEMBERS, key),
            await self._store.get(DEATHS, key),
            await self._store.get(COUNTERS, REGISTRATION_KEY),
        )


def _live(name: bytes, rows: Mapping[bytes, CoreRow], deaths: Mapping[bytes, CoreRow]) -> LiveMember | None:
    read = MemberReading(name.decode(), rows[name], deaths.get(name), None)
    if read.member is None or not read.is_alive:
        return None
    return LiveMember(read.name, read.member.registration_id, read.member.incarnation, read.member.role)


def _decode(value: bytes, type_: type[Row]) -> Row:
    try:
        return msgspec.msgpack.decode(value, type=type_)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a row of the cluster's members is not valid: {problem}") from None
