"""How claims and channels end, in the words of the protocol between nodes, and the answer to an overtaken claim."""

from __future__ import annotations

from typing import Final

from braidmq.access.contract import Refused
from braidmq.broker.session.ports import GrantEnding
from braidmq.cluster.registry.messages import Ending
from braidmq.mqtt.reasons import Reason

SUPERSEDED: Final = Refused(Reason.SERVER_BUSY, "a newer connection has this client id")
_ENDINGS: Final = {
    GrantEnding.PUBLISH: Ending.PUBLISH,
    GrantEnding.DISCARD: Ending.DISCARD,
    GrantEnding.MOVED: Ending.MOVED,
    GrantEnding.TAKEN: Ending.TAKEN,
    GrantEnding.WITHDRAWN: Ending.WITHDRAWN,
}


def ending_of(end: GrantEnding) -> Ending:
    """How a channel ended, in the words of the protocol between nodes."""
    return _ENDINGS[end]
