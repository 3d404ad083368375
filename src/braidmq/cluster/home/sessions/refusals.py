"""What a client is told whose claim was rejected."""

from __future__ import annotations

from typing import Final

from braidmq.access.contract import Refused
from braidmq.cluster.protocol.endings import SUPERSEDED
from braidmq.cluster.registry.messages import Outcome
from braidmq.mqtt.reasons import Reason

REFUSALS: Final = {
    Outcome.HAPPY_FAIL: SUPERSEDED,
    Outcome.EXPENSIVE_FAIL: SUPERSEDED,
    Outcome.ABORT: Refused(Reason.SERVER_BUSY, "too many connections take over this client id"),
    Outcome.LATE: Refused(Reason.SERVER_BUSY, "the claim of this client id came too late"),
    Outcome.FULL: Refused(Reason.QUOTA_EXCEEDED, "too many client ids are claimed"),
    Outcome.INVALID: Refused(Reason.SERVER_BUSY, "the clock of the node is wrong"),
}
