"""Who belongs to the cluster, as decisions without I/O: each plans one commit of the core store from what was read of it.

    members   name -> MemberRow     the latest incarnation of a node, and the key that identifies it over restarts
    deaths    name -> DeathRow      the latest incarnation that has ended; only this row makes a node dead (C31)
    leases    name, core -> number  this core hears this incarnation of the node; bound to the core's own lease
    counters  "registration_id"     the last number given out
              "joined"              with several cores: the incarnation registered last; its revision says when that was
    endpoints address -> number     registrations over HTTP

- An incarnation is max(last + 1, wall clock in ms): unique even if the tables were restored from an older backup (C27).
- The same key ends its own older incarnation at once; another key is refused while the node is alive (C31).
- An incarnation that is not in its member row is no member: an absent row fences, too.
- With several cores each of them keeps a row in ``leases`` for every node that it hears, bound to its own lease: the rows of a
  core that is gone end with it, and no node costs a renewal of its own. A core keeps one for itself. A death is written if no
  core keeps the node, a node is kept if its incarnation has no death: so of two commits only one holds (C31).

Read the rows that `MemberReading` names, plan, commit. If the commit's conditions do not hold, read and plan again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from braidmq.base.errors import Corruption, Unavailable
from braidmq.cluster.corestore.contract import ABSENT, Condition, CoreRow, CoreStore, DeleteRow, PutRow, RowWrite, revision_of
from braidmq.cluster.membership.cluster_version import ClusterVersion
from braidmq.cluster.membership.registry_modes import LINEAR, MODE_NAME, RegistryModes

MEMBERS: Final = "members"
DEATHS: Final = "deaths"
LEASES: Final = "leases"
COUNTERS: Final = "counters"
ENDPOINTS: Final = "endpoints"
ENDPOINTS_MAX: Final = 10_000
REGISTRATION_KEY: Final = b"registration_id"
JOINED_KEY: Final = b"joined"
DEATH_KEPT_MS: Final = 86_400_000
# Why a node has ended, and may come back as a new member; any other reason is one to stay away.
UNKNOWN: Final = "the cluster does not know this node"
DECLARED_DEAD: Final = "this node was declared dead"
MAY_RETURN: Final = frozenset({UNKNOWN, DECLARED_DEAD})
_ATTEMPTS_MAX: Final = 100
_KEEP_ATTEMPTS_MAX: Final = 5  # a lease that has ended fails them all

Row = TypeVar("Row", bound=Struct)


class MemberRow(Struct, frozen=True, array_like=True):
    """A node. ``key_digest``: SHA-256 of its key, which itself is not stored. ``role``: core, replicant or worker."""

    registration_id: int
    incarnation: int
    key_digest: bytes
    role: str
    version: int = 1  # the highest of the protocol between nodes that it speaks
    mode: str = LINEAR  # its `registry.mode`


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
    lease_rows: tuple[tuple[bytes, CoreRow | None], ...] = ()  # by key; only read for a death

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
        return [
            *self.life_conditions(),
            Condition(COUNTERS, REGISTRATION_KEY, revision_of(self.counter_row)),
            *(Condition(LEASES, key, revision_of(row)) for key, row in self.lease_rows),
        ]

    def life_conditions(self) -> list[Condition]:
        """That the node is as alive as it was."""
        key = self.name.encode()
        return [
            Condition(MEMBERS, key, revision_of(self.member_row)),
            Condition(DEATHS, key, revision_of(self.death_row)),
        ]

    def is_incarnation(self, incarnation: int) -> bool:
        """Whether this is the incarnation that is alive."""
        return self.is_alive and self.member is not None and self.member.incarnation == incarnation


class RegistrationRequest(Struct, frozen=True):
    """A node asks to be a member. ``incarnation``: the one that it has; 0 for a node that has just started."""

    name: str
    key: bytes
    role: str
    incarnation: int = 0
    version: int = 1
    mode: str = LINEAR


class HearingCore(Struct, frozen=True):
    """A core that hears nodes, and its own lease in the core store."""

    core: str
    lease: int

    def row(self, name: str, incarnation: int) -> PutRow:
        """Says that the core hears this node."""
        return PutRow(LEASES, lease_key(name, self.core), incarnation.to_bytes(8, "big"), self.lease)


def lease_key(name: str, core: str) -> bytes:
    """The key of the row by which a core keeps a node; no name has a zero byte."""
    return f"{name}\0{core}".encode()


def kept_node(key: bytes) -> str:
    """The node of such a key."""
    return key.partition(b"\0")[0].decode()


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
    ended: int = 0  # an older incarnation of the node that was ended all the same; 0: none


def plan_registration(
    read: MemberReading, request: RegistrationRequest, wall_ms: int, hearing: HearingCore | None = None
) -> Admitted | NotAdmitted:
    """Decide on a node that registers. ``hearing``: the core that it has reached, which keeps it from now on."""
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
    if hearing is not None:
        writes.append(hearing.row(request.name, incarnation))
    row = MemberRow(registration_id, incarnation, digest, request.role, request.version, request.mode)
    return Admitted(registration_id, incarnation, (PutRow(MEMBERS, key, msgspec.msgpack.encode(row)), *writes), ended)


def _plan_return(read: MemberReading, request: RegistrationRequest, member: MemberRow | None) -> Admitted | NotAdmitted:
    """Decide on a node that has lost its connection and comes back with its incarnation."""
    if member is None:
        return NotAdmitted(UNKNOWN, must_restart=True)
    if request.incarnation < member.incarnation:
        return NotAdmitted("this node was started a second time", must_restart=True)
    if request.incarnation <= read.last_dead:
        return NotAdmitted(DECLARED_DEAD, must_restart=True)
    if (request.incarnation, request.mode) == (member.incarnation, member.mode):
        return Admitted(member.registration_id, member.incarnation)
    # The node announces another mode; or the tables are older than the node: they were restored from a backup. Its key proves
    # that the number is its own.
    row = msgspec.structs.replace(member, incarnation=request.incarnation, mode=request.mode)
    write = PutRow(MEMBERS, request.name.encode(), msgspec.msgpack.encode(row))
    return Admitted(member.registration_id, request.incarnation, (write,))


def plan_death(read: MemberReading, incarnation: int, wall_ms: int) -> tuple[RowWrite, ...]:
    """Declare an incarnation dead; nothing to write if it has ended, is not the latest, or a core keeps it."""
    if not read.is_incarnation(incarnation) or any(row is not None for _, row in read.lease_rows):
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
    version: int = 1
    mode: str = LINEAR


class Members:
    """Carries the decisions out: reads, plans and commits until the commit holds. Every call raises Unavailable."""

    def __init__(self, store: CoreStore, wall_ms: Callable[[], int], cores: Sequence[str] = ()) -> None:
        """``cores``: those that keep nodes; empty for a single core, whose nodes have no leases in the store."""
        self._store = store
        self._wall_ms = wall_ms
        self._cores = tuple(cores)
        self._version = ClusterVersion(store)
        self._modes = RegistryModes(store, self.alive)

    async def register(self, request: RegistrationRequest, hearing: HearingCore | None = None) -> Admitted | NotAdmitted:
        """Make a node a member, or say why not. With ``hearing`` it is kept by that core, whose lease must not have ended."""
        ended = 0
        for _ in range(_ATTEMPTS_MAX):
            read, versions = await self._read(request.name), await self._version.read()
            refusal = versions.refusal(request.version)
            if refusal is not None:
                return NotAdmitted(refusal)
            decision = plan_registration(read, request, self._wall_ms(), hearing)
            if not isinstance(decision, Admitted):
                return decision
            if not decision.writes:
                if hearing is None or await self.keep(request.name, decision.incarnation, hearing):
                    return decision
                continue
            if decision.ended and read.member is not None and read.member.mode != request.mode:
                # Else the node would be beside itself.
                if await self.declare_dead(request.name, decision.ended, has_ended=True):
                    ended = decision.ended
                continue
            ruled = await self._modes.admit(request.mode)
            if isinstance(ruled, str):
                return NotAdmitted(f"{MODE_NAME}: {ruled}", ended=ended)
            writes = decision.writes
            if hearing is not None:
                writes = (*writes, PutRow(COUNTERS, JOINED_KEY, decision.incarnation.to_bytes(8, "big")))
            if await self._store.commit([*read.conditions(), *versions.conditions(), *ruled], writes) is not None:
                return decision if decision.ended else msgspec.structs.replace(decision, ended=ended)
        raise Unavailable("too many nodes register at once, or the lease of this core has ended")

    async def keep(self, name: str, incarnation: int, hearing: HearingCore) -> bool:
        """Say that a core hears a node; False if that incarnation has ended. The core's lease must not have ended."""
        for _ in range(_KEEP_ATTEMPTS_MAX):
            read = await self._read(name)
            if not read.is_incarnation(incarnation):
                return False
            if await self._store.commit(read.life_conditions(), [hearing.row(name, incarnation)]) is not None:
                return True
        raise Unavailable("the lease of this core has ended")

    async def let_go(self, name: str, incarnation: int, core: str) -> None:
        """A core no longer hears a node."""
        key = lease_key(name, core)
        row = await self._store.get(LEASES, key)
        if row is not None and int.from_bytes(row.value, "big") == incarnation:
            await self._store.commit([Condition(LEASES, key, row.revision)], [DeleteRow(LEASES, key)])

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

    async def declare_dead(self, name: str, incarnation: int, *, has_ended: bool = False) -> bool:
        """End an incarnation; False if it had ended, a newer one exists, or a core keeps it.

        ``has_ended``: its process is known to be gone, or its operator says so, so it does not matter who has heard it lately.
        """
        keys = [lease_key(name, core) for core in self._cores]

        def plan(read: MemberReading) -> tuple[RowWrite, ...]:
            writes = plan_death(read, incarnation, self._wall_ms())
            return (*writes, *(DeleteRow(LEASES, key) for key in keys)) if writes else ()

        return await self._carry_out(name, plan, () if has_ended else keys)

    async def sweep(self) -> list[str]:
        """Forget nodes that have been dead for a day, but no core; returns their names."""
        names = [key.decode() for key in (await self._store.list_rows(DEATHS)).rows]
        names = [name for name in names if name not in self._cores]
        return [name for name in names if await self._carry_out(name, lambda read: plan_sweep(read, self._wall_ms()))]

    async def is_member(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation of a node is alive."""
        return (await self._read(name)).is_incarnation(incarnation)

    async def last_joined(self) -> int:
        """The position at which a node was registered last, with several cores: who has read the tables up to there knows all."""
        return revision_of(await self._store.get(COUNTERS, JOINED_KEY))

    async def latest(self, name: str) -> int:
        """The latest incarnation of a node; 0 if there was none."""
        member = (await self._read(name)).member
        return 0 if member is None else member.incarnation

    async def raise_version(self, known: Iterable[int]) -> None:
        """Raise the cluster's version if all live members speak a higher one. ``known``: what they speak, as far as is known."""

        async def read_all() -> list[int]:
            return [member.version for member in await self.alive()]

        await self._version.raise_to(known, read_all)

    async def alive(self) -> list[LiveMember]:
        """All nodes that are alive, by name."""
        rows = (await self._store.list_rows(MEMBERS)).rows
        deaths = (await self._store.list_rows(DEATHS)).rows
        return [each for name in sorted(rows) if (each := live_member(name, rows, deaths)) is not None]

    async def _carry_out(
        self, name: str, plan: Callable[[MemberReading], tuple[RowWrite, ...]], lease_keys: Sequence[bytes] = ()
    ) -> bool:
        while True:
            read = await self._read(name, lease_keys)
            writes = plan(read)
            if not writes:
                return False
            if await self._store.commit(read.conditions(), writes) is not None:
                return True

    async def _read(self, name: str, lease_keys: Sequence[bytes] = ()) -> MemberReading:
        key = name.encode()
        return MemberReading(
            name,
            await self._store.get(MEMBERS, key),
            await self._store.get(DEATHS, key),
            await self._store.get(COUNTERS, REGISTRATION_KEY),
            tuple([(each, await self._store.get(LEASES, each)) for each in lease_keys]),
        )


def live_member(name: bytes, rows: Mapping[bytes, CoreRow], deaths: Mapping[bytes, CoreRow]) -> LiveMember | None:
    """A node if it is alive, by the rows of both tables."""
    row = rows.get(name)
    read = MemberReading(name.decode(), row, deaths.get(name), None)
    if read.member is None or not read.is_alive:
        return None
    member = read.member
    return LiveMember(read.name, member.registration_id, member.incarnation, member.role, member.version, member.mode)


def _decode(value: bytes, type_: type[Row]) -> Row:
    try:
        return msgspec.msgpack.decode(value, type=type_)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a row of the cluster's members is not valid: {problem}") from None
