"""The home's table of client ids: the channels of each, and what is remembered of those that have ended.

A client id with one channel, registered and granted, is one ``ChannelEntry`` and nothing else: that is what millions of clients
cost. Only while there is more to know, there is a ``Contest``: several channels, claims that wait, or one that ended lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Final, Generic

from msgspec import Struct

from braidmq.cluster.registry.messages import ClaimRequest, Node, Owner
from braidmq.cluster.registry.versions import Stamp, Version

_BOUND_BITS: Final = 10  # bounds are at most 1000 ms
_BOUND_MAX: Final = (1 << _BOUND_BITS) - 1


class Peer(Generic[Node]):
    """What the home knows of a node: its claims and its channels that have not released their client ids."""

    __slots__ = ("cancelled", "channels", "claimed", "node", "open", "registration")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.registration = 0
        self.claimed: int | None = None  # the last claim that has arrived; None: the node has not declared
        self.channels: dict[int, ChannelEntry[Node]] = {}  # by number
        self.open: dict[int, PendingClaim[Node]] = {}  # claims that are not decided, by number
        self.cancelled: set[int] = set()  # withdrawals that have overtaken their claims


class ChannelEntry(Struct, Generic[Node], gc=False, eq=False):
    """A channel of a client id. ``stamp``: what it has claimed with, packed; ``lent``: the version it was granted instead."""

    client_id: str
    peer: Peer[Node]
    channel: int
    guard: int
    stamp: int
    lent: Stamp | None = None

    @property
    def own(self) -> Stamp:
        """What the channel has claimed with."""
        version = Version(self.stamp >> _BOUND_BITS, self.peer.registration, self.channel)
        return Stamp(version, self.stamp & _BOUND_MAX, self.peer.node)

    @property
    def granted(self) -> Stamp:
        """What it is registered with."""
        return self.own if self.lent is None else self.lent


def pack(ms: int, bound_ms: int) -> int:
    """A time and its bound in one number, because there are millions of them."""
    return ms << _BOUND_BITS | min(bound_ms, _BOUND_MAX)


class PendingClaim(Struct, Generic[Node], gc=False, eq=False):
    """A claim that is not granted yet. ``seen``: the predecessor that it deals with; ``floor``: the last guard when it arrived.

    Of predecessors with higher guards the nodes have spoken since: they need no probe (R18).
    """

    peer: Peer[Node]
    request: ClaimRequest
    stamp: Stamp
    arrived: float
    due: float
    floor: int = 0
    seen: ChannelEntry[Node] | None = None
    restarts: int = 0


class Contest(Generic[Node]):
    """What is to be known of a client id that has not just one channel.

    ``registered``: the newest channel. ``owner``: the channel whose writes are accepted; until it has released or was given up,
    the registered one waits for its grant, as ``promised``. ``leaving``: those that were told to end and have not released.
    ``ended``: the highest channel that was registered and is no more, for as long as an older claim may be under way (R12).
    ``probing``: claims that are not decided. ``guard``: the highest that was given out.
    """

    __slots__ = ("ended", "guard", "kicked", "leaving", "owner", "owner_due", "probing", "promised", "registered")

    def __init__(self, entry: ChannelEntry[Node] | None, guard: int = 0) -> None:
        self.registered = entry
        self.owner = entry
        self.guard = guard if entry is None else entry.guard
        self.owner_due = inf  # when the owner is given up, once it was told to end
        self.promised: PendingClaim[Node] | None = None
        self.leaving: list[ChannelEntry[Node]] = []
        self.kicked: ChannelEntry[Node] | None = None
        self.ended: ChannelEntry[Node] | None = None
        self.probing: list[PendingClaim[Node]] = []

    @property
    def highest(self) -> ChannelEntry[Node] | None:
        """The channel with the highest version: RealMax, and LocalMax for a claim that arrives."""
        if self.registered is not None:
            return self.registered
        highest = self.ended
        for entry in self.leaving:
            if highest is None or entry.granted.version > highest.granted.version:
                highest = entry
        return highest

    @property
    def is_over(self) -> bool:
        """Whether one entry, or none, says it all."""
        return self.registered is self.owner and not (self.leaving or self.probing or self.promised or self.ended)


class ChannelTable(Generic[Node]):
    """The client ids of a home. What changes it is in `decisions` and `home_claims`."""

    def __init__(self, clock: Callable[[], int], remembered_ms: int) -> None:
        """``clock``: in microseconds. ``remembered_ms``: for how long the version of a channel counts that has ended."""
        self._clock = clock
        self._deadline_ms = remembered_ms
        self._table: dict[str, ChannelEntry[Node] | Contest[Node]] = {}
        self._peers: dict[Node, Peer[Node]] = {}
        self._lately: deque[tuple[int, str, ChannelEntry[Node]]] = deque()  # when what has ended is forgotten

    def __len__(self) -> int:
        """The client ids in the table."""
        return len(self._table)

    def owner(self, client_id: str) -> Owner[Node] | None:
        """The channel that owns the client id."""
        found = self._table.get(client_id)
        entry = found.owner if isinstance(found, Contest) else found
        return None if entry is None else owner_of(entry)

    def client_of(self, node: Node, channel: int) -> str | None:
        """Whose entries a channel's are; None: they are refused as fenced."""
        peer = self._peers.get(node)
        entry = None if peer is None else peer.channels.get(channel)
        if entry is None:
            return None
        found = self._table.get(entry.client_id)
        owner = found.owner if isinstance(found, Contest) else found
        return entry.client_id if owner is entry else None

    def guard_of(self, client_id: str) -> int:
        """The highest guard of a client id that is remembered."""
        found = self._table.get(client_id)
        return 0 if found is None else found.guard

    def version_of(self, client_id: str) -> Version | None:
        """The highest version of a client id that is remembered."""
        found = self._table.get(client_id)
        highest = found.highest if isinstance(found, Contest) else found
        return None if highest is None else highest.granted.version

    def channels_of(self, client_id: str) -> Iterator[tuple[ChannelEntry[Node], str]]:
        """All that is known of a client id: its channels, and what each is."""
        found = self._table.get(client_id)
        if found is None:
            return
        if isinstance(found, ChannelEntry):
            yield found, "registered"
            return
        if found.registered is not None:
            yield found.registered, "registered" if found.promised is None else "registered, not granted yet"
        yield from ((each, "leaving" if each is found.owner else "leaving, fenced") for each in found.leaving)
        if found.ended is not None:
            yield found.ended, "ended lately"

    def moment(self) -> int:
        """Now, by the clock of the log, which guards follow; what is over for long enough is forgotten."""
        self._forget()
        return self._clock()

    def nodes(self) -> list[Node]:
        """The nodes that have claimed or declared something."""
        return list(self._peers)

    def numbers_of(self, node: Node) -> list[int]:
        """The channels of a node that have not released their client ids."""
        peer = self._peers.get(node)
        return [] if peer is None else list(peer.channels)

    def has(self, node: Node, channel: int) -> bool:
        """Whether a channel of a node has not released its client id."""
        peer = self._peers.get(node)
        return peer is not None and channel in peer.channels

    def is_settled_before(self, node: Node, channel: int, moment: int) -> bool:
        """Whether a channel was registered before this moment and has been granted, or has to leave."""
        peer = self._peers.get(node)
        entry = None if peer is None else peer.channels.get(channel)
        if entry is None or entry.guard >= moment:
            return False
        found = self._table.get(entry.client_id)
        return not isinstance(found, Contest) or found.registered is not entry or found.promised is None

    def waiting_for(self, client_id: str) -> int:
        """Claims of a client id that are not granted."""
        found = self._table.get(client_id)
        return len(found.probing) + (found.promised is not None) if isinstance(found, Contest) else 0

    def meet(self, node: Node, registration: int) -> None:
        """The registration id of a node, which is part of its versions."""
        self._peer(node).registration = registration

    def _peer(self, node: Node) -> Peer[Node]:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(node)
        return peer

    def _contest(self, client_id: str) -> Contest[Node]:
        found = self._table.get(client_id)
        if not isinstance(found, Contest):
            found = self._table[client_id] = Contest(found)
        return found

    def _settle(self, client_id: str, contest: Contest[Node]) -> None:
        """Keep no more of a client id than there is to know."""
        if not contest.is_over:
            return
        if contest.registered is not None:
            self._table[client_id] = contest.registered
        else:
            self._table.pop(client_id, None)

    def _remember(self, contest: Contest[Node], entry: ChannelEntry[Node]) -> None:
        """A registered channel has ended: its version counts until every older claim has met its deadline (R12)."""
        if contest.registered is not None:
            return  # its version is higher
        if contest.ended is None or entry.granted.version > contest.ended.granted.version:
            contest.ended = entry
            self._lately.append((self._clock() + self._deadline_ms * 1000, entry.client_id, entry))

    def _forget(self) -> None:
        now = self._clock()
        while self._lately and self._lately[0][0] <= now:
            _, client_id, entry = self._lately.popleft()
            contest = self._table.get(client_id)
            if isinstance(contest, Contest) and contest.ended is entry:
                contest.ended = None
                self._settle(client_id, contest)


def owner_of(entry: ChannelEntry[Node]) -> Owner[Node]:
    """A channel as its home's client sees it."""
    return Owner(entry.peer.node, entry.channel, entry.guard)
