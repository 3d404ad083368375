"""The data that a CONNECT and the opening of its session exchange."""

from __future__ import annotations

from msgspec import Struct

from braidmq.broker.connection.connection import Connection
from braidmq.broker.session.ports import Claim
from braidmq.broker.session.session import Session


class Newcomer(Claim, frozen=True, gc=False):
    """The claim of an accepted CONNECT, and its connection."""

    connection: Connection
    stated: str | None = None

    @property
    def peer_host(self) -> str:
        """The client's address."""
        origin = self.connection.origin
        return "" if origin is None else origin.peer_host

    @property
    def spoke_at(self) -> float:
        """When the client was last heard before its connection was accepted, by the monotonic clock."""
        origin = self.connection.origin
        return 0.0 if origin is None else origin.spoke_at

    @property
    def stated_time(self) -> str | None:
        """What the client has said in `registry.version_property`."""
        return self.stated


class Opening(Struct, frozen=True, gc=False):
    """A session that a newcomer holds; the newcomer's terms become the session's when it is committed."""

    session: Session
    newcomer: Newcomer
    is_present: bool
    stays_anonymous: bool
