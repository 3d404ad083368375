"""Who owns a client id, decided at its home. Every CONNECT claims its client id there; the newest claim wins.

The home grants a claim with a *guard*, a number that rises with every grant of a client id. A channel that owned the id before
is told to *let go* of it: its node ends the connection, writes the session's cursor and sends a *release*. The release travels in
the node's blocks, behind everything that the client sent, and only it confirms that the channel is gone: a claim travels on
another connection and may overtake it (C12, C17). A channel that has not released within ``wait_s`` is *fenced*: from then on the
home refuses what comes from it, and grants the claim.

Invariants:
- At most one channel owns a client id, and its guard is the highest that was granted for it.
- Each grant ends once: by its release, by its node's death, or fenced by a later grant; and the home says so once (``Ended``).
- At most one claim waits for a client id; a newer one ends it.
- A client id has no owner that the home does not know. Each node that the home meets first *declares* its channels and its open
  claims, and after a restart the home grants nothing until every live node has, is dead, or was silent for a lease (C16).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Ending(Enum):
    """How a channel ended; it decides what becomes of the will."""

    PUBLISH = "publish"
    DISCARD = "discard"
    MOVED = "moved"  # a drained node has sent it elsewhere
    WITHDRAWN = "withdrawn"  # the client had gone before it was told of its grant
    TAKEN = "taken"  # a newer channel owns the client id
    DIED = "died"  # with its node
    REPEATED = "repeated"  # it had ended before the home restarted, and what follows from that is done


class ClaimRequest(NamedTuple):
    """A CONNECT asks for a client id. Claims and channels are numbered by their node, and no number is used twice."""

    number: int
    client_id: str
    channel: int


class Declaration(NamedTuple):
    """What a node tells a home that has restarted."""

    channels: list[tuple[str, int, int]]  # client id, channel and guard of those whose release is not answered
    claims: list[ClaimRequest]  # those that are not answered
    claimed: int  # the last number of a claim


class Owner(NamedTuple, Generic[Node]):
    """A channel that a client id was granted to."""

    node: Node
    channel: int
    guard: int


class ClaimGranted(NamedTuple, Generic[Node]):
    """Tell a node that its claim is granted, once the grant is on disk."""

    node: Node
    claim: ClaimRequest
    guard: int


class ClaimRejected(NamedTuple, Generic[Node]):
    """Tell a node that a newer claim has replaced its own."""

    node: Node
    claim: ClaimRequest


class LetGo(NamedTuple, Generic[Node]):
    """Tell a node to end its channels of a client id whose guards are lower."""

    node: Node
    client_id: str
    guard: int


class Ended(NamedTuple, Generic[Node]):
    """A channel no longer owns its client id. If a grant follows in the same list, the session passes on to it."""

    client_id: str
    owner: Owner[Node]
    ending: Ending


class OwnerRestored(NamedTuple, Generic[Node]):
    """A declared channel owns its client id, as before the home restarted."""

    client_id: str
    owner: Owner[Node]


Action = ClaimGranted[Node] | ClaimRejected[Node] | LetGo[Node] | Ended[Node] | OwnerRestored[Node]


class _WaitingClaim(NamedTuple, Generic[Node]):
    node: Node
    claim: ClaimRequest
    guard: int
    due: float


class HomeClaims(Generic[Node]):
    """The home's side. Each call returns what is to be done, in that order."""

    def __init__(
        self,
        wait_s: float,
        clock: Callable[[], int],
        undeclared: Iterable[Node] = (),
        stored: Mapping[str, Owner[Node]] | None = None,
    ) -> None:
        """``clock``: microseconds that never fall behind the log, for guards.

        After a restart, ``undeclared`` are the live nodes, and ``stored`` the owners of client ids as the rows say.
        """
        self._wait_s = wait_s
        self._clock = clock
        self._owners: dict[str, Owner[Node]] = {}
        self._waiting: dict[str, _WaitingClaim[Node]] = {}
        self._guards: dict[str, int] = {}  # the highest that was granted or promised, while anything of the id is left
        self._channels: dict[Node, dict[int, tuple[str, int]]] = {}  # client ids and guards of those that have not released
        self._unreleased: Counter[str] = Counter()  # how many of them, by client id
        self._claimed: dict[Node, int] = {}  # the last claim that has arrived
        self._cancelled: set[tuple[Node, int]] = set()  # withdrawals that have overtaken their claims
        self._undeclared = set(undeclared)
        self._early: list[tuple[Node, ClaimRequest]] = []
        self._stored = dict(stored or {})
        self._guards.update((client_id, owner.guard) for client_id, owner in self._stored.items())

    # What the rest of the home asks

    @property
    def is_ready(self) -> bool:
        """Whether every node has declared its channels: before that the home takes no blocks and ends no session."""
        return not self._undeclared

    def has_heard(self, node: Node) -> bool:
        """Whether the node has declared its channels: before that none of its blocks is taken."""
        return node in self._claimed

    def owner(self, client_id: str) -> Owner[Node] | None:
        """The channel that owns the client id."""
        return self._owners.get(client_id)

    def client_of(self, node: Node, channel: int) -> str | None:
        """Whose entries a channel's are; None: they are refused as fenced."""
        client_id, guard = self._channels.get(node, {}).get(channel, ("", 0))
        owner = self._owners.get(client_id)
        return client_id if owner is not None and owner.guard == guard else None

    def guard_of(self, client_id: str) -> int:
        """The highest guard of a client id so far."""
        return self._guards.get(client_id, 0)

    # Claims

    def claim(self, node: Node, claim: ClaimRequest, now: float) -> list[Action[Node]]:
        """A node claims a client id for a new channel, or repeats a claim that was not answered.

        It has declared before: a declaration travels on the connection of the claims, ahead of them.
        """
        if claim.number <= self._claimed.get(node, 0):
            return self._repeat(node, claim)
        self._claimed[node] = claim.number
        return self._arrive(node, claim, now)

    def _repeat(self, node: Node, claim: ClaimRequest) -> list[Action[Node]]:
        """Answer as before: a claim arrives once, or an older one could end a newer one."""
        owner = self._owners.get(claim.client_id)
        if owner is not None and (owner.node, owner.channel) == (node, claim.channel):
            return [ClaimGranted(node, claim, owner.guard)]
        waiting = self._waiting.get(claim.client_id)
        is_open = (waiting is not None and (waiting.node, waiting.claim) == (node, claim)) or (node, claim) in self._early
        return [] if is_open else [ClaimRejected(node, claim)]

    def _arrive(self, node: Node, claim: ClaimRequest, now: float) -> list[Action[Node]]:
        if (node, claim.number) in self._cancelled:
            self._cancelled.discard((node, claim.number))
            return []
        if self._undeclared:
            self._early.append((node, claim))
            return []
        actions: list[Action[Node]] = []
        before = self._waiting.pop(claim.client_id, None)
        if before is not None:
            actions.append(ClaimRejected(before.node, before.claim))
        owner = self._owners.get(claim.client_id)
        guard = self._next_guard(claim.client_id)
        if owner is None:
            return [*actions, self._grant(node, claim, guard)]
        due = now + self._wait_s if before is None else before.due  # an owner that is stuck costs the time once
        self._waiting[claim.client_id] = _WaitingClaim(node, claim, guard, due)
        return [*actions, LetGo(owner.node, claim.client_id, guard)]

    def _next_guard(self, client_id: str) -> int:
        guard = self._guards[client_id] = max(self.guard_of(client_id) + 1, self._clock())
        return guard

    def _grant(self, node: Node, claim: ClaimRequest, guard: int) -> ClaimGranted[Node]:
        self._owners[claim.client_id] = Owner(node, claim.channel, guard)
        self._note(node, claim.channel, claim.client_id, guard)
        return ClaimGranted(node, claim, guard)

    def _note(self, node: Node, channel: int, client_id: str, guard: int) -> None:
        channels = self._channels.setdefault(node, {})
        self._unreleased[client_id] += channel not in channels
        channels[channel] = client_id, guard

    def withdraw(self, node: Node, claim: ClaimRequest) -> list[Action[Node]]:
        """A node no longer wants what it has claimed, granted or not; comes in a block."""
        waiting = self._waiting.get(claim.client_id)
        if waiting is not None and (waiting.node, waiting.claim) == (node, claim):
            del self._waiting[claim.client_id]
            return []
        if (node, claim) in self._early:
            self._early.remove((node, claim))
            return []
        if claim.channel in self._channels.get(node, {}):
            return self.release(node, claim.channel, Ending.WITHDRAWN)
        if claim.number > self._claimed.get(node, 0):
            self._cancelled.add((node, claim.number))
        return []

    def release(self, node: Node, channel: int, ending: Ending) -> list[Action[Node]]:
        """A channel has ended, and everything that its client sent has arrived; comes in a block.

        A block that comes again, because its answer was lost with the home, releases its channels again: the node has declared
        them. Then the ending is ``REPEATED``, since the will and the session's end are on disk with the block's mark.
        """
        client_id, guard = self._channels.get(node, {}).pop(channel, ("", 0))
        if not guard:
            return []
        owner = self._owners.get(client_id)
        actions: list[Action[Node]] = []
        if owner is not None and owner.guard == guard:  # else it was fenced
            actions = self._end(client_id, owner, ending)
        self._forget(client_id)
        return actions

    def _forget(self, client_id: str) -> None:
        """A channel of the client id is gone. Without any, its guard is not needed: the clock is above it by then."""
        self._unreleased[client_id] -= 1
        if self._unreleased[client_id] <= 0:
            del self._unreleased[client_id]
            if client_id not in self._waiting and self.guard_of(client_id) < self._clock():
                self._guards.pop(client_id, None)

    def _end(self, client_id: str, owner: Owner[Node], ending: Ending) -> list[Action[Node]]:
        """The owner is gone: the claim that waits is granted."""
        del self._owners[client_id]
        actions: list[Action[Node]] = [Ended(client_id, owner, ending)]
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            actions.append(self._grant(waiting.node, waiting.claim, waiting.guard))
        return actions

    def expire(self, now: float) -> list[Action[Node]]:
        """Fence the owners that have not let go in time."""
        actions: list[Action[Node]] = []
        for client_id, waiting in list(self._waiting.items()):
            if waiting.due <= now:
                actions += self._end(client_id, self._owners[client_id], Ending.TAKEN)
        return actions

    @property
    def next_due(self) -> float | None:
        """When ``expire`` is to be called."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)

    # Nodes

    def connected(self, node: Node) -> list[Action[Node]]:
        """The node's connection was lost and is there again: tell it again what it may not have heard."""
        channels = self._channels.get(node, {}).values()
        newest = ((client_id, guard, self.guard_of(client_id)) for client_id, guard in channels)
        return [LetGo(node, client_id, highest) for client_id, guard, highest in newest if guard < highest]

    def dead(self, node: Node, now: float) -> list[Action[Node]]:
        """The node is dead: its channels have ended, its claims are void."""
        actions: list[Action[Node]] = []
        self._cancelled = {each for each in self._cancelled if each[0] != node}
        self._early = [each for each in self._early if each[0] != node]
        for client_id, waiting in list(self._waiting.items()):
            if waiting.node == node:
                del self._waiting[client_id]
        self._claimed.pop(node, None)
        for client_id, guard in self._channels.pop(node, {}).values():
            owner = self._owners.get(client_id)
            if owner is not None and owner.guard == guard:
                actions += self._end(client_id, owner, Ending.DIED)
            self._forget(client_id)
        return [*actions, *self._declared(node, now)]

    # After a restart

    def declare(self, node: Node, declared: Declaration, now: float) -> list[Action[Node]]:
        """A node that has met this home for the first time, or after a restart, names its channels and open claims.

        Of two channels of a client id the one with the higher guard stays. One that is declared late loses against a channel that
        was granted meanwhile.
        """
        actions: list[Action[Node]] = []
        for client_id, channel, guard in declared.channels:
            self._note(node, channel, client_id, guard)
            owner = self._owners.get(client_id)
            if guard < self.guard_of(client_id):
                actions.append(LetGo(node, client_id, self.guard_of(client_id)))
                continue
            self._guards[client_id] = guard
            if owner is not None and owner != Owner(node, channel, guard):
                actions += [Ended(client_id, owner, Ending.TAKEN), LetGo(owner.node, client_id, guard)]
            self._owners[client_id] = Owner(node, channel, guard)
            self._stored.pop(
                client_id, None
            )  # from here on it is known who owns it, even if that node dies before others declare
            actions.append(OwnerRestored(client_id, self._owners[client_id]))
        if node in self._claimed:  # it does not know that it was heard, and declares again
            return actions + [action for claim in declared.claims for action in self.claim(node, claim, now)]
        self._claimed[node] = declared.claimed
        for claim in declared.claims:
            actions += self._arrive(node, claim, now)
        return [*actions, *self._declared(node, now)]

    def silent(self, node: Node, now: float) -> list[Action[Node]]:
        """The node has said nothing for a lease: do not wait for its declaration."""
        return self._declared(node, now)

    def begin(self, now: float) -> list[Action[Node]]:
        """To be called once, after a restart: there may be no node to wait for."""
        return self._take_up(now) if self.is_ready else []

    def _declared(self, node: Node, now: float) -> list[Action[Node]]:
        if node not in self._undeclared:
            return []
        self._undeclared.discard(node)
        return self._take_up(now) if self.is_ready else []

    def _take_up(self, now: float) -> list[Action[Node]]:
        """Every node has been heard: an owner that only the rows name is over, and claims are decided."""
        early, self._early = self._early, []
        stored, self._stored = self._stored, {}
        actions: list[Action[Node]] = []
        for client_id, owner in stored.items():
            answered = next((claim for node, claim in early if (node, claim.channel) == owner[:2]), None)
            if answered is None:
                actions.append(Ended(client_id, owner, Ending.DIED))
            else:  # it was granted, and the answer was lost
                early.remove((owner.node, answered))
                actions.append(self._grant(owner.node, answered, owner.guard))
        for node, claim in early:
            actions += self._arrive(node, claim, now)
        return actions
