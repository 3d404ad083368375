"""The contract of access control: authentication and authorisation.

``Authenticator`` answers once per CONNECT and may take its time; ``Rules`` answers for each new topic of a channel and is in
memory. Whatever goes wrong inside (a broken file, a slow backend) must come out as a refusal, never as permission.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a CONNECT and the peer's address. ``password`` never reaches a log."""

    client_id: str
    user_name: str | None = None
    password: bytes | None = None
    certificate_name: str | None = None  # already verified by TLS; stands for the user name if the listener says so
    peer_host: str = ""
    listener: str = ""
    anonymous_allowed: bool = False

    @property
    def claimed_name(self) -> str | None:
        """The user name that the client goes by: the certificate's, else the one in CONNECT."""
        return self.certificate_name if self.certificate_name is not None else self.user_name

    def __repr__(self) -> str:
        return f"Credentials(client_id={self.client_id!r}, user_name={self.user_name!r}, peer_host={self.peer_host!r})"


class Granted(msgspec.Struct, frozen=True):
    """The client is authenticated; ``user_name`` is the name that rules apply to."""

    user_name: str | None = None


class Refused(msgspec.Struct, frozen=True):
    """The client is not let in; ``reason`` is the MQTT 5 code (0x86, 0x87, 0x88, 0x8A, 0x8C, 0x9F), ``detail`` is for the log.

    0x86, 0x88 and 0x8A stand in a CONNACK only: a re-authentication that is refused with one of them is answered with 0x87.
    """

    reason: int
    detail: str


Verdict = Granted | Refused


class Exchange(Protocol):
    """One enhanced authentication (MQTT 5, 4.12) in progress."""

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        """Take the client's data; give the server's data and, when the exchange is over, the verdict."""
        ...


class Authenticator(Protocol):
    """Decides whether a client may connect. Runs on the event loop: what takes long is awaited, never done in line."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods of enhanced authentication, e.g. ``{"SCRAM-SHA-256"}``."""
        ...

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check plain credentials. Never raises for a bad client."""
        ...

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        """Start an enhanced authentication, or a re-authentication: then ``credentials.user_name`` is the name in force."""
        ...


class Rules(Protocol):
    """What one client may do; topics and filters come without ``$share/group/``, ``$exclusive/`` or ``$delayed/N/``."""

    @property
    def unrestricted(self) -> bool:
        """True: nothing need be asked."""
        ...

    def may_publish(self, topic: str) -> bool:
        """May the client publish to this topic?"""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """May the client receive everything that this filter can match?"""
        ...


class Authorizer(Protocol):
    """Provides the rules of a client."""

    @property
    def epoch(self) -> int:
        """A number that rises; rules got under an older one must be fetched again."""
        ...

    @property
    def has_rules(self) -> bool:
        """False while what the rules are read from cannot be used. Then they deny everything, but nothing is so for good."""
        ...

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The rules in force now for this client."""
        ...
