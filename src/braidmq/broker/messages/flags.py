"""Flags of a route, in addition to the lane's own: why a message takes the slow path."""

from __future__ import annotations

HOOK_PUBLISH = 2
HOOK_DELIVER = 4
TRACED = 8
