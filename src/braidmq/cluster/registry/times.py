"""When the connection of a claim was made, and the claim itself, by the cluster's clock."""

from __future__ import annotations

from time import monotonic
from typing import Final, NamedTuple

from braidmq.access.contract import Refused
from braidmq.broker.session.ports import Claim
from braidmq.cluster.clock.cluster_clock import BOUND_MS_MAX
from braidmq.cluster.registry.stated_times import StatedTimes
from braidmq.cluster.registry.versions import VersionClock
from braidmq.mqtt.reasons import Reason

UNDATED: Final = Refused(Reason.SERVER_BUSY, "the clock of this node is not certain enough yet")


class ClaimedAt(NamedTuple):
    """The time of a connection, its error bound, the time of the claim, and the connection's age then; all in milliseconds."""

    ms: int = 0
    bound_ms: int = 0
    made_ms: int = 0
    age_ms: int = 0


_NO_CLOCK: Final = ClaimedAt()


class ConnectionTimes:
    """Dates the claims of one node."""

    def __init__(self, clock: VersionClock | None) -> None:
        """``clock``: None if claims are not dated, and the one that arrives last wins."""
        self.is_dated = clock is not None
        self.stated = StatedTimes()
        self._clock = clock

    def of(self, claim: Claim) -> ClaimedAt | None:
        """The times of a claim that is made now; None: the clock cannot order connections (R1)."""
        clock = self._clock
        if clock is None or not self.is_dated:
            return _NO_CLOCK
        now = clock.reading()
        if now.bound_ms > BOUND_MS_MAX:
            return None
        spoke_at = claim.spoke_at
        if not spoke_at:
            return ClaimedAt(self.stated.time_of(claim, now.ms, now.ms), now.bound_ms, now.ms)
        began = clock.at(spoke_at)
        if began.bound_ms > BOUND_MS_MAX:
            return None
        ms = self.stated.time_of(claim, began.ms, now.ms)
        return ClaimedAt(ms, began.bound_ms, now.ms, int(max(0.0, monotonic() - spoke_at) * 1000))
