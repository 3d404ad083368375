"""Flags of a route, besides the lane's own: why a message takes the long way."""

from __future__ import annotations

HOOK_PUBLISH = 2
HOOK_DELIVER = 4
TRACED = 8
