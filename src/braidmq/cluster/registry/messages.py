"""What nodes and homes say to each other about claims, and what a home's decisions ask for."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from braidmq.cluster.registry.versions import Version

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


class Outcome(Enum):
    """How a claim went, in the words of the registry's metrics."""

    HAPPY_ENDING = "happy_ending"  # registered; the grant follows
    HAPPY_FAIL = "happy_fail"  # a newer channel was there when it arrived
    EXPENSIVE_FAIL = "expensive_fail"  # a newer channel had come by the time of the decision, or has come since
    ABORT = "abort"  # it was restarted too often
    LATE = "late"  # it arrived after its deadline
    FULL = "full"  # too many claims wait
    INVALID = "invalid"  # its version is ahead of every clock


class ClaimRequest(NamedTuple):
    """A CONNECT asks for a client id. Claims and channels are numbered by their node, and no number is used twice.

    ``ms``, ``bound_ms``: the time of the connection by the cluster's clock and its error bound; 0: there is no version (R23).
    ``made_ms``: the time of the claim by the same clock. ``age_ms``: how old the connection was then.
    """

    number: int
    client_id: str
    channel: int
    ms: int = 0
    bound_ms: int = 0
    made_ms: int = 0
    age_ms: int = 0


class GrantedChannel(NamedTuple):
    """A channel that was granted its client id, as its node declares it. ``ms``, ``own_bound_ms``: what it had claimed with."""

    client_id: str
    channel: int
    guard: int
    version: Version = Version(0, 0, 0)
    bound_ms: int = 0
    ms: int = 0
    own_bound_ms: int = 0


class Declaration(NamedTuple):
    """What a node tells a home that has restarted. ``ended``: the highest channels that ended lately (R12)."""

    channels: list[GrantedChannel]  # those whose release is not answered
    claims: list[ClaimRequest]  # those that are not answered
    claimed: int  # the last number of a claim
    ended: Sequence[GrantedChannel] = ()


class SweepAnswer(NamedTuple):
    """A node's channels in the range. ``served``: granted and not over; ``others``: asked for, or not released yet."""

    first: int
    last: int
    served: Collection[int]
    others: Collection[int]


class Owner(NamedTuple, Generic[Node]):
    """A channel that a client id was granted to."""

    node: Node
    channel: int
    guard: int


class ClaimGranted(NamedTuple, Generic[Node]):
    """Tell a node that its claim is granted, once the grant is on disk. ``arrived``: when the home had the claim.

    ``has_waited``: it has taken the client id from another channel.
    """

    node: Node
    claim: ClaimRequest
    guard: int
    version: Version
    bound_ms: int
    arrived: float = 0.0
    has_waited: bool = False


class ClaimRejected(NamedTuple, Generic[Node]):
    """Tell a node that its claim is rejected."""

    node: Node
    claim: ClaimRequest
    outcome: Outcome


class Probe(NamedTuple, Generic[Node]):
    """Ask a node whether it is there, because one of its channels is about to lose its client id (*begin*)."""

    node: Node
    client_id: str
    channel: int


class EndLoser(NamedTuple, Generic[Node]):
    """Tell a node to end its channels of a client id whose versions are lower, or this very channel if it is kicked."""

    node: Node
    client_id: str
    version: Version
    channel: int
    is_kicked: bool = False


class Ended(NamedTuple, Generic[Node]):
    """A channel no longer owns its client id. If a grant follows in the same list, the session passes on to it."""

    client_id: str
    owner: Owner[Node]
    ending: Ending
    version: Version


class OwnerRestored(NamedTuple, Generic[Node]):
    """A declared channel owns its client id, as before the home restarted."""

    client_id: str
    owner: Owner[Node]


Action = ClaimGranted[Node] | ClaimRejected[Node] | Probe[Node] | EndLoser[Node] | Ended[Node] | OwnerRestored[Node]
