"""No node with ``registry.mode`` "linear" is a member beside one with "eventual": neither sees what the other relies on (R21).

    cluster "registry"   "linear" or "eventual": the one of the two that members may have now; no row: "linear".
                         "to linear", "to eventual": that is being changed, and no node can register with either of them

Members with "both" do not matter. A node that finds no member of the other kind writes "to ..."; then the members are looked at
again, since one may have registered in between. Any core that finds such a row decides it, so the death of one stops nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import Condition, CoreStore, PutRow, revision_of
from braidmq.cluster.membership.shard_map import CLUSTER

MODE_NAME: Final = "registry.mode"
LINEAR: Final = "linear"
BOTH: Final = "both"
EVENTUAL: Final = "eventual"
# The changes that a running node can make. In the other direction channels would be missing in what the others look at.
AT_RUN_TIME: Final = frozenset({(LINEAR, BOTH), (BOTH, EVENTUAL)})
REGISTRY_KEY: Final = b"registry"
_TO: Final = "to "
_OTHER: Final = {LINEAR: EVENTUAL, EVENTUAL: LINEAR}
_ATTEMPTS_MAX: Final = 100


class ModeMember(Protocol):
    """A member that is alive, and the mode that it has announced."""

    @property
    def name(self) -> str: ...
    @property
    def mode(self) -> str: ...


def refusal_of(mode: str, members: Iterable[ModeMember]) -> str | None:
    """Why a node cannot have this mode beside these members; None: it can."""
    others = sorted(member.name for member in members if member.mode == _OTHER.get(mode))
    if not others:
        return None
    return (
        f'"{mode}" is not possible while {", ".join(others)} {"has" if len(others) == 1 else "have"} '
        f'"{_OTHER[mode]}": set "{BOTH}" on all nodes first, one after the other'
    )


def later_note(mode: str, now: str) -> str:
    """What an operator is told of a change that a running node cannot make."""
    return f'"{mode}" takes effect when the node starts again; now it has "{now}"'


class RegistryModes:
    """Every call raises Unavailable."""

    def __init__(self, store: CoreStore, read_members: Callable[[], Awaitable[Sequence[ModeMember]]]) -> None:
        """``read_members`` reads the live members from the store."""
        self._store = store
        self._read_members = read_members

    async def admit(self, mode: str) -> str | tuple[Condition, ...]:
        """The conditions under which a node may become a member with this mode, or why it cannot."""
        if mode == BOTH:
            return ()
        for _ in range(_ATTEMPTS_MAX):
            row = await self._store.get(CLUSTER, REGISTRY_KEY)
            as_read = Condition(CLUSTER, REGISTRY_KEY, revision_of(row))
            found = LINEAR if row is None else row.value.decode()
            if found == mode:
                return (as_read,)
            wanted = found.removeprefix(_TO)
            refusal = refusal_of(mode if wanted == found else wanted, await self._read_members())
            if wanted == found and refusal is not None:
                return refusal
            if wanted == found:
                value = _TO + mode
            else:
                value = wanted if refusal is None else _OTHER[wanted]
            await self._store.commit([as_read], [PutRow(CLUSTER, REGISTRY_KEY, value.encode())])
        raise Unavailable("too many nodes register at once")
