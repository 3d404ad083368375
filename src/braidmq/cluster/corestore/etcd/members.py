"""Which member of etcd to ask, as a state machine without I/O.

Calls stay with the member that answered last. One that failed rests for a while that grows; members that rest are asked last, so
a call is tried everywhere before it fails.
"""

from __future__ import annotations

from typing import Final

from braidmq.base.backoff import Backoff

REST_FIRST_S: Final = 0.5
REST_MAX_S: Final = 30.0


class MemberChoice:
    """The members by number, from 0."""

    def __init__(self, count: int, first: int = 0) -> None:
        """``first``: the member to begin with, so that the cores of a cluster do not all use the same."""
        self._count = count
        self._current = first % count
        self._rests_until = [0.0] * count
        self._rests = [Backoff(REST_FIRST_S, REST_MAX_S) for _ in range(count)]

    def order(self, now: float) -> list[int]:
        """All members in the order in which to ask them."""
        turn = [(self._current + step) % self._count for step in range(self._count)]
        awake = [member for member in turn if self._rests_until[member] <= now]
        asleep = sorted((member for member in turn if self._rests_until[member] > now), key=lambda each: self._rests_until[each])
        return awake + asleep

    def on_answer(self, member: int) -> None:
        """A member has answered."""
        self._current = member
        self._rests_until[member] = 0.0
        self._rests[member].reset()

    def on_failure(self, member: int, now: float) -> None:
        """A member has not answered, or cannot serve."""
        if self._rests_until[member] <= now:  # calls that fail together count once
            self._rests_until[member] = now + self._rests[member].next()
        if member == self._current:
            self._current = (member + 1) % self._count
