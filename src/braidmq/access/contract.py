"""The contract of access control: authentication and authorisation.

``Authenticator`` answers once per CONNECT and may be slow; ``Rules`` answers for each new topic of a channel, from memory.
Any internal failure (a broken file, a slow backend) must lead to a rejection, never to permission.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a CONNECT and the peer's address. ``password`` never reaches a log."""

    client_id: str
    user_name: str | None = None
    password: bytes | None = None
    certificate_name: str | None = None  # already verified by TLS; replaces the user name if the listener says so
    peer_host: str = ""
    listener: str = ""
    anonymous_allowed: bool = False

    @property
    def claimed_name(self) -> str | None:
        """The user name that the client claims: the certificate's, else the one in CONNECT."""
        return self.certificate_name if self.certificate_name is not None else self.user_name

    def __repr__(self) -> str:
        return f"Credentials(client_id={self.client_id!r}, user_name={self.user_name!r}, peer_host={self.peer_host!r})"


class Granted(msgspec.Struct, frozen=True):
    """The client is authenticated; ``user_name`` is the name that rules apply to."""

    user_name: str | None = None


class Refused(msgspec.Struct, frozen=True):
    """The client is rejected; ``reason`` is the MQTT 5 code (0x86, 0x87, 0x88, 0x8A, 0x8C, 0x9F), ``detail`` is for the log.

    0x86, 0x88 and 0x8A are valid in a CONNACK only: a re-authentication rejected with one of them is answered with 0x87.
    """

    reason: int
    detail: str


Verdict = Granted | Refused


class Exchange(Protocol):
    """One enhanced authentication (MQTT 5, 4.12) in progress."""

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        """Process the client's data; returns the server's data and, when the exchange is over, the verdict."""
        ...


class Authenticator(Protocol):
    """Decides whether a client may connect. Runs on the event loop: slow work must be awaited, never done in line."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods of enhanced authentication, e.g. ``{"SCRAM-SHA-256"}``."""
        ...

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check plain credentials. Never raises for a bad client."""
        ...

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        """Start an enhanced authentication, or a re-authentication: then ``credentials.user_name`` is the current name."""
        ...


class Rules(Protocol):
    """What one client may do; topics and filters come without ``$share/group/``, ``$exclusive/`` or ``$delayed/N/``."""

    @property
    def unrestricted(self) -> bool:
        """True: everything is allowed, so no check is needed."""
        ...

    def may_publish(self, topic: str) -> bool:
        """Whether the client may publish to this topic."""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether the client may receive everything that this filter can match."""
        ...


class Authorizer(Protocol):
    """Provides the rules of a client."""

    @property
    def epoch(self) -> int:
        """A number that rises with each change; rules fetched under an older one must be fetched again."""
        ...

    @property
    def has_rules(self) -> bool:
        """False while the source of the rules is unusable. Then they deny everything, but no denial is final."""
        ...

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The current rules for this client."""
        ...
