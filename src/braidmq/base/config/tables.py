"""What a table of the configuration is, and a key in it."""

from __future__ import annotations

import msgspec


def key(
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    restart: bool = False,
    secret: bool = False,
    per_node: bool = False,
) -> msgspec.Meta:
    """The description of a key; ``restart``: a change needs a restart; ``secret``: its value is never shown.

    ``per_node``: a name, address or file of one node, which cannot be set at run time for a whole cluster.
    """
    extra = {"least": least, "most": most, "restart": restart, "secret": secret, "per_node": per_node}
    return msgspec.Meta(description=meaning, extra=extra)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TOML table; unknown keys are rejected."""
