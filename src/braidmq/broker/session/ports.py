"""What a broker shares with other nodes once there are several: client ids, access, routes, retained messages, exclusive topics.

On a single node each port has a local implementation: ``LocalRegistry``, ``LocalAccess``, ``RouteTable``, ``RetainedStore`` and
``LocalExclusiveTopics``. ``node`` passes access control in; the broker makes those of the others that it is not given.
``NodePorts.is_home`` says whether this node keeps what has no client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from braidmq.access.contract import Authenticator, Authorizer, Credentials, Exchange, Refused, Verdict
from braidmq.broker.messages.producer_books import ProducerStart
from braidmq.broker.ports import StoredSession
from braidmq.broker.shared.membership import GroupHome
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Will
from braidmq.mqtt.producer_protocol import Request

if TYPE_CHECKING:
    from braidmq.broker.connection.presence_events import PresenceHome
    from braidmq.broker.messages.retained import Retained
    from braidmq.broker.messages.retained_homes import RetainedHomes


class Claim(Struct, frozen=True, gc=False):
    """The request of an accepted CONNECT for its client id, and what it asks of the session, and as a producer."""

    client_id: str
    user_name: str | None
    clean_start: bool
    expiry_s: int
    will: Will | None
    producer: Request | None

    @property
    def peer_host(self) -> str:
        """The client's address; empty if it is not known."""
        return ""

    @property
    def spoke_at(self) -> float:
        """When the client was last heard before its connection was accepted, by the monotonic clock (R4)."""
        return 0.0

    @property
    def stated_time(self) -> str | None:
        """When the client says that it has connected, as it says it; None: it does not, or is not asked."""
        return None


class Grant(Struct, frozen=True, gc=False):
    """A granted claim: the right of one connection to a client id. Of two grants, the one with the higher guard is the newer.

    ``stored``: the session of the client id, if it comes from another node; None if there is none, or this node has it.
    ``replaces_user``: the grant has ended a session elsewhere that belonged to a user.
    ``producer``: where a producer begins, if it comes from another node: all earlier messages of the client are settled.
    ``granted_version``: by which the cluster orders it among others; empty on a node that is alone.
    """

    client_id: str
    guard: int
    stored: StoredSession | None = None
    replaces_user: bool = False
    producer: ProducerStart | None = None
    granted_version: tuple[int, ...] = ()

    @property
    def version(self) -> tuple[int, ...]:
        """What orders the connections of a client id for others, from left to right: milliseconds come first."""
        return self.granted_version or (self.guard // 1000, 0, self.guard % 1000, 0)


class GrantEnding(Enum):
    """How a connection gave its client id up; where the will is not published here, this decides what becomes of it."""

    PUBLISH = "publish"  # it was lost, or the client asked for its will
    DISCARD = "discard"  # the client has said goodbye
    MOVED = "moved"  # this node has sent the client away: it is expected on another one
    TAKEN = "taken"  # a newer connection has the client id
    WITHDRAWN = "withdrawn"  # the client was not told that it is connected: nothing of its terms counts


class Registry(Protocol):
    """Which connection owns a client id: at most one does.

    Each CONNECT sends one *claim* and waits for its grant; then *commit* or *end* follows. A grant that was committed is ended
    later. Only the claim may take time (docs/decisions/0024): ``commit`` comes in the same turn of the loop as the steps that
    take the session from its old connection, and ``end`` has no answer.
    """

    def claim(self, claim: Claim) -> Grant | Refused | Awaitable[Grant | Refused]:
        """Ask for a client id. An answer that takes time is awaited: a newer claim may be granted and committed meanwhile."""
        ...

    def commit(self, grant: Grant) -> bool:
        """Its connection owns the client id from now on, and older grants are fenced; False if a newer one was committed."""
        ...

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """Its connection gives the client id up, or never got it. ``keeps_session``: there is still a session, here or as rows.

        The rows that its end has changed were passed to the ``TurnWriter`` before. A grant that has ended already is ignored.
        """
        ...


class AccessControl(Authenticator, Authorizer, Protocol):
    """Which clients may connect and what they may do: ``Authenticator``, ``Authorizer`` and questions answered at once."""

    @property
    def has_users(self) -> bool:
        """Whether clients can log in with a name."""
        ...

    @property
    def refused_banned(self) -> int:
        """Logins that were refused because of a ban, so far."""
        ...

    @property
    def refused_throttled(self) -> int:
        """Logins that were refused because of failed ones from their address, so far."""
        ...

    def judge(self, credentials: Credentials) -> Verdict | None:
        """What ``authenticate`` says, if that takes no time; None: await it."""
        ...

    def refusal(self, credentials: Credentials) -> Refused | None:
        """The reason to reject a plain login without asking a hook; None: ask it."""
        ...

    def note_verdict(self, credentials: Credentials, verdict: Verdict) -> None:
        """Count a login that a hook has judged."""
        ...

    def begin_again(self, method: str, credentials: Credentials) -> Exchange:
        """Start a re-authentication on an open connection."""
        ...

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        """Whether a client that was let in as ``user_name`` may stay."""
        ...

    def is_banned(self, credentials: Credentials) -> bool:
        """Whether an operator's ban fits the client."""
        ...


class Routes(Protocol):
    """Makes subscriptions known to publishers."""

    @property
    def count(self) -> int:
        """Destinations of all filters; a shared group is one."""
        ...

    def add(self, subscription: Subscription) -> bool:
        """Add or replace the flow's subscription to its filter; True if it is new."""
        ...

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove the flow's subscription to this filter; False if there was none."""
        ...

    def is_known(self) -> bool:
        """Whether every publisher's messages reach the subscriptions that were added so far."""
        ...

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back, perhaps at once, when ``is_known`` holds for the subscriptions that were added so far."""
        ...


class RetainedSearch(ABC):
    """A search that may have to wait for its source. After Unavailable, ``next`` goes on where it was."""

    # A base class and no Protocol: each subscription asks whether its search is one, and checking a Protocol takes 7 us.
    __slots__ = ()

    def __iter__(self) -> Iterator[Retained | None]:
        return self

    @abstractmethod
    def __next__(self) -> Retained | None:
        """The next message; None for a stretch without one, and while ``is_waiting``. May raise Unavailable."""

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether the last ``next`` found nothing because the source is not ready; ``when_ready`` says when it is."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it is known that ``next`` will find nothing more."""

    @abstractmethod
    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, on the loop, when ``next`` is worth another call, and not within this call."""

    @abstractmethod
    def close(self) -> None:
        """End the search early; the reader of a search that has not ended must close it."""


class RetainedReads(Protocol):
    """Finds the retained messages for a new subscription."""

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no message for this filter."""
        ...

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match, one at a time; None stands for a stretch of the search without one.

        Those of another node come as a ``RetainedSearch``, each with its payload.
        """
        ...


class ExclusiveTopics(Protocol):
    """Which client has which ``$exclusive`` subscription: one filter, one client."""

    def __len__(self) -> int:
        """How many filters the clients of this node have."""
        ...

    def ask(self, topic_filters: list[bytes], client_id: str, on_answer: Callable[[], None]) -> bool:
        """Find out whether these are free, if another node decides that; False if ``is_free`` knows already.

        Otherwise ``on_answer`` is called, perhaps when the client has gone, and those that are free are the client's.
        """
        ...

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it, or no other client does."""
        ...

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """Give it to the client; call ``ask`` and ``is_free`` before."""
        ...

    def release(self, topic_filter: bytes, client_id: str, *, is_moving: bool = False) -> None:
        """Take it from the client, if the client has it. ``is_moving``: its session goes elsewhere and keeps it."""
        ...


class NodePorts(Struct, frozen=True):
    """What a cluster puts in place of the local implementations; None: this node's own.

    Routes and retained reads go around the local ones, which they are given: a cluster's add those of other nodes.
    ``claim_gate``: why no client id can be claimed now; None: clients are claimed in order, and not for one that has left.
    ``presence``: who sends the events of this node's clients.
    ``retained_homes``: where retained messages are kept, if there are several cores.
    ``groups``: the home of all shared groups, if it is another node. ``keeps_groups``: stored groups may have members that only
    other nodes know of.
    ``is_home``: this node keeps what has no client: sessions that wait, their wills and timers, and retained messages. Otherwise
    the homes do: a session leaves this node with its connection, and no bound on the number of sessions is checked here.
    """

    registry: Registry | None = None
    claim_gate: Callable[[], Refused | None] | None = None
    presence: PresenceHome | None = None
    exclusive: ExclusiveTopics | None = None
    groups: GroupHome | None = None
    extend_routes: Callable[[Routes], Routes] | None = None
    extend_retained: Callable[[RetainedReads], RetainedReads] | None = None
    retained_homes: RetainedHomes | None = None
    is_home: bool = True
    keeps_groups: bool = False
