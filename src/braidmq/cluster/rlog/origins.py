"""The names of origins. One node writes those of its routes and of its channels, in the same incarnation: they end together."""

from __future__ import annotations

from typing import Final

ROUTES: Final = "routes/"
CHANNELS: Final = "channels/"
_DURABLE_PREFIX: Final = "durable/"


def written_with(origin: str) -> tuple[str, ...]:
    """The origins that a node writes which has these routes; just the origin if it has other rows."""
    return (origin, CHANNELS + origin.removeprefix(ROUTES)) if origin.startswith(ROUTES) else (origin,)


def durable_origin(shard: int) -> str:
    """The origin of the durable routes of a shard."""
    return f"{_DURABLE_PREFIX}{shard}"


def is_durable_origin(origin: str) -> bool:
    """Whether the origin has the durable routes of a shard: they are for cores alone."""
    return origin.startswith(_DURABLE_PREFIX)
