"""Keeps an eye on a node's cluster clock: says in the log, to operators and to clients when it cannot order connections (R1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from braidmq.access.contract import Refused
from braidmq.cluster.clock.cluster_clock import BOUND_MS_MAX, UNKNOWN_MS, ClusterClock
from braidmq.control.cluster import ClockInfo
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.cluster")

LOOK_S: Final = 0.5
_PATIENCE_S: Final = 3.0  # without the time, before that is an alarm
_REFUSED: Final = Refused(Reason.SERVER_BUSY, "the time of the cluster is not known well enough")


class ClockWatch:
    """Call `look` every `LOOK_S` seconds."""

    def __init__(self, clock: ClusterClock, is_reachable: Callable[[], bool], wall_s: Callable[[], float] = time.time) -> None:
        """``is_reachable``: whether a core is connected; if none is, clients are told that, and not what follows from it."""
        self.clock = clock
        self.refused = 0  # connections
        self.trouble = ""  # in words, for operators
        self._is_reachable = is_reachable
        self._wall_s = wall_s
        self._known_at = clock.moment()

    def look(self) -> None:
        """Notice a suspension of the machine, and raise or end the alarm."""
        clock = self.clock
        clock.look()
        reading, now = clock.reading(), clock.moment()
        if reading.is_usable or not self._is_reachable():
            self._known_at = now
            if self.trouble:
                log.info("the time of the cluster is known again, to %d ms", reading.bound_ms)
            self.trouble = ""
        elif now - self._known_at >= _PATIENCE_S and not self.trouble:
            known = "at all" if reading.bound_ms == UNKNOWN_MS else f"to {reading.bound_ms} ms only"
            self.trouble = f"the time of the cluster is known {known}: new clients are refused with 0x89 above {BOUND_MS_MAX} ms"
            log.error("ALARM: %s", self.trouble)

    def refusal(self) -> Refused | None:
        """Why a client cannot connect now; None if it can."""
        if self.clock.reading().is_usable or not self._is_reachable():
            return None
        self.refused += 1
        return _REFUSED

    @property
    def info(self) -> ClockInfo:
        """The clock as operators see it."""
        clock, reading = self.clock, self.clock.reading()
        is_known = reading.bound_ms != UNKNOWN_MS
        return ClockInfo(
            is_reference=clock.is_reference,
            reign=clock.reign,
            offset_ms=round(reading.ms - self._wall_s() * 1000) if is_known else None,
            bound_ms=reading.bound_ms if is_known else None,
        )
