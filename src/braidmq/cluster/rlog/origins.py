"""The names of origins that only cores write and copy."""

from __future__ import annotations

from typing import Final

_DURABLE_PREFIX: Final = "durable/"


def durable_origin(shard: int) -> str:
    """The origin of the durable routes of a shard."""
    return f"{_DURABLE_PREFIX}{shard}"


def is_durable_origin(origin: str) -> bool:
    """Whether the origin has the durable routes of a shard: they are for cores alone."""
    return origin.startswith(_DURABLE_PREFIX)
