"""Version 1 of what nodes with ``registry.mode`` other than "linear" say to cores: locks of client ids, and channels to be ended.

On the connection for calls, in frames of kind EVENTUAL. As in `proto_v1`, nothing here changes once a release has it.
"""

from __future__ import annotations

import msgspec


class _EventualMessage(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A message in either direction."""


class LockId(_EventualMessage, frozen=True):
    """A node asks a core for the lock of a client id. Requests are numbered by the node, and no number is used twice."""

    number: int
    client_id: str


class UnlockId(_EventualMessage, frozen=True):
    """The node no longer wants the lock of this request, whether it has it or waits for it."""

    number: int


class LockAnswer(_EventualMessage, frozen=True):
    """The node has the lock that it asked for; or the core has no room for the request, and has forgotten it."""

    number: int
    is_granted: bool


class LocksKept(_EventualMessage, frozen=True):
    """The first message on a connection: of the requests of earlier connections the node has these left."""

    numbers: list[int]


class EndChannel(_EventualMessage, frozen=True):
    """End a channel of a node, because a newer one takes the client id. A node asks a core, which passes it on to that node."""

    number: int
    client_id: str
    node: str
    incarnation: int
    channel: int


class ChannelEnded(_EventualMessage, frozen=True):
    """The channel has ended, or was not there; the answer to ``EndChannel`` on both ways back."""

    number: int


EventualMessage = LockId | UnlockId | LockAnswer | LocksKept | EndChannel | ChannelEnded
