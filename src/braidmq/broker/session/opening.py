"""What passes between a CONNECT and the session that it opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from braidmq.broker.session.session import Session
from braidmq.mqtt.packets import Will

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection


class Newcomer(Struct, frozen=True, gc=False):
    """An accepted CONNECT: its connection and what it asks of its session."""

    connection: Connection
    user_name: str | None
    clean_start: bool
    expiry_s: int
    will: Will | None


class Opening(Struct, frozen=True, gc=False):
    """A session that a newcomer holds; the newcomer's terms become the session's when it is committed."""

    session: Session
    newcomer: Newcomer
    is_present: bool
    stays_anonymous: bool
