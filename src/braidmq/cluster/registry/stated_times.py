"""Times of connections that clients state themselves, in a user property of CONNECT (`registry.version_property`).

A client knows best when it has connected: its gateway may have held the connection back. But its clock may be wrong, so a stated
time counts only from a minute before the connection's own time up to now, by the cluster's clock (R22). A clock that was set back
would otherwise make a new connection older than the one that it replaces.
"""

from __future__ import annotations

from typing import Final

from braidmq.broker.session.ports import Claim

EARLIER_MS_MAX: Final = 60_000
_DIGITS_MAX: Final = 15


class StatedTimes:
    """Judges what the clients of one node state."""

    def __init__(self) -> None:
        self.ignored = 0  # values that are no number, too early or in the future

    def time_of(self, claim: Claim, own_ms: int, now_ms: int) -> int:
        """When the connection of a claim was made: as its client states it, or else its own time."""
        text = claim.stated_time
        if text is None:
            return own_ms
        is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
        if is_number and own_ms - EARLIER_MS_MAX <= int(text) <= now_ms:
            return int(text)
        self.ignored += 1
        return own_ms
