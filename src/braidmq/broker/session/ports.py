"""What the broker asks about clients, subscriptions and messages that are not its own alone once there are several nodes.

On a single node each port has a local implementation: ``LocalRegistry``, ``LocalAccess``, ``RouteTable``, ``RetainedStore`` and
``LocalExclusiveTopics``. ``node.py`` passes access control in; the broker makes the others itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from braidmq.access.contract import Authenticator, Authorizer, Credentials, Exchange, Refused, Verdict
from braidmq.lane.path.subscription import Subscription

if TYPE_CHECKING:
    from braidmq.broker.messages.retained import Retained


class Claim(Struct, frozen=True, gc=False):
    """The right of one connection to a client id; of two claims the one with the higher guard is the newer."""

    client_id: str
    guard: int


class Registry(Protocol):
    """Which connection owns a client id: at most one does.

    Each CONNECT goes through *begin*, then *commit* or *end*; a claim that was committed is ended later. ``commit`` comes in the
    same turn of the loop as the steps that take the session from its old connection.
    """

    def begin(self, client_id: str) -> Claim | Refused | Awaitable[Claim | Refused]:
        """Ask for a client id. An answer that takes time is awaited: another claim may be committed meanwhile."""
        ...

    def commit(self, claim: Claim) -> bool:
        """The claim's connection owns the client id from now on, and older claims are fenced; False if a newer one is there."""
        ...

    def end(self, claim: Claim, *, keeps_session: bool) -> None:
        """The claim's connection gives the client id up, or never got it. ``keeps_session``: there is still a session."""
        ...


class AccessControl(Authenticator, Authorizer, Protocol):
    """Who may connect and what they may do: an ``Authenticator`` and ``Authorizer``, and what the broker must know at once."""

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
        """Why a hook need not be asked about a plain login; None: ask it."""
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
    """Makes subscriptions known to those who publish."""

    count: int  # destinations of all filters; a shared group is one

    def add(self, subscription: Subscription) -> bool:
        """Add or replace the flow's subscription to its filter; True if it is new."""
        ...

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove the flow's subscription to this filter; False if there was none."""
        ...


class RetainedReads(Protocol):
    """Finds the retained messages that a new subscription is owed."""

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no message for this filter."""
        ...

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match, one at a time; None stands for a stretch of the search without one."""
        ...


class ExclusiveTopics(Protocol):
    """Which client has which ``$exclusive`` subscription: one filter, one client."""

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it, or no other client does."""
        ...

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """Give it to the client; ask ``is_free`` before."""
        ...

    def release(self, topic_filter: bytes, client_id: str) -> None:
        """Take it from the client, if the client has it."""
        ...
