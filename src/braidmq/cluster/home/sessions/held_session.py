"""A session that lives on a node: the claim that it was granted for, what the node was given, and what the core holds for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from braidmq.broker.messages.producer_books import ProducerStart
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.messages import ClaimRequest
from braidmq.lane.peers.peer import SilentFlow
from braidmq.mqtt.packets import Will
from braidmq.mqtt.producer_protocol import Request


class GivenSession(NamedTuple):
    """What a node is given with a grant: a session's rows, where a producer begins, and whether a session of a user has ended
    for it.
    """

    rows: bytes
    producer: ProducerStart | None
    replaces_user: bool


class NodeClaim(Struct, frozen=True, gc=False):
    """The claim of a node's client, with what the CONNECT asks of the session."""

    request: ClaimRequest
    user_name: str | None
    clean_start: bool
    expiry_s: int
    will: Will | None
    peer_host: str = ""
    producer: Request | None = None


class KeyedOnNode:
    """A producer that is connected to a node; implements `producer_books.KeyedClient`."""

    def __init__(self, user_name: str | None, close: Callable[[int, str], None]) -> None:
        self.user_name = user_name
        self.is_closed = False
        self._close = close

    def close(self, reason: int, detail: str) -> None:
        """Let its node end the connection."""
        self._close(reason, detail)


class Held:
    """A session that lives on a node."""

    __slots__ = ("claim", "exclusive", "filters", "flow", "guard", "keyed", "node", "on_left", "replaces_user", "shares")

    def __init__(self, node: Member, claim: NodeClaim, guard: int) -> None:
        self.node = node
        self.claim = claim
        self.guard = guard
        self.replaces_user = False  # a session of a user has ended for it
        self.keyed: KeyedOnNode | None = None  # of a producer
        self.exclusive: set[bytes] = set()  # topics
        self.flow: SilentFlow | None = None  # of a durable session
        self.filters: dict[str, bytes] = {}  # of a durable session, by the filter as written
        self.shares: dict[str, bytes] = {}  # its shared groups, as keys of durable routes
        self.on_left: list[Callable[[], None]] = []  # what waits until it has left the node
