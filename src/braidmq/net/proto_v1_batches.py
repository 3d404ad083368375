"""Version 1 of the calls about names of producers: a node's, at the core of the name, before it claims the client id of a part at
another core. As in `proto_v1`, nothing here changes once a release has it.
"""

from __future__ import annotations

import msgspec


class _BatchMessage(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A call or an answer."""


class OpenBatch(_BatchMessage, frozen=True):
    """A part of a producer connects for a batch, which is opened if it is the highest so far. ``part``: -1 without a number."""

    name: str
    base: int
    part: int
    user_name: str | None


class BatchOpened(_BatchMessage, frozen=True):
    """The batch is open, on disk. ``parts``: one more than the highest part that has connected for it."""

    parts: int


class BatchRefused(_BatchMessage, frozen=True):
    """The client is refused as a part, with the reason code and user properties for its CONNACK."""

    reason: int
    detail: str
    told: list[tuple[str, str]]
