"""Version 1 of the messages about the cluster's time; see `braidmq.net.proto_v1` for its rules."""

from __future__ import annotations

import msgspec


class AskTime(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A call: what time is it?"""


class TimeTold(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """What a node knows of the cluster's time at one moment, in seconds. ``reign`` 0: nothing.

    ``bound_s``: how far that may be from the reference's time. ``ceiling_s``: what no reading of this reign exceeds yet.
    """

    reign: int
    at_s: float = 0.0
    bound_s: float = 0.0
    ceiling_s: float = 0.0
