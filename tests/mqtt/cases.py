"""The named packets that tests of the codec, the lane and the server share.

`ACCEPTED` pairs bytes with the packet they mean, `REFUSED` pairs bytes with the reason code they deserve. Both were
written from the specifications, not from what the codec says.
"""

from __future__ import annotations

from tests.mqtt.cases_accepted import ACCEPTED
from tests.mqtt.cases_format import Accepted, Refused
from tests.mqtt.cases_refused import REFUSED

__all__ = ["ACCEPTED", "REFUSED", "Accepted", "Refused"]
