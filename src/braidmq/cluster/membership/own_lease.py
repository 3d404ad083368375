"""Whether a node still counts as alive for the others, as a state machine without I/O (C3).

    new --first confirmation--> held --its deadline has passed--> alone --a confirmation--> held
                                  any --its death row was found--> dead

A confirmation counts from the moment when its request was *sent*: deadline = that moment + the time granted - a margin. Others
declare the node dead after its lease by a clock that runs beside this one, so the node must know first. Time is that since boot:
it goes on while the machine is suspended.

With several cores a confirmation also names a position in the core store that the holder must have read: that of the latest
registration of a node when the lease was renewed. Until `on_read` has reached it the confirmation does not count. Else a core
that can renew its lease but hears nothing of the tables would act without nodes that have joined since.

Call `check` before acting on what a peer has sent: after a pause the sockets are full of what the node must not act on any more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

# Of the lease: clocks of two machines drift apart, and a callback that was let through takes its time.
_MARGIN: Final = 0.1
_WAITING_MAX: Final = 8  # confirmations whose positions were not read yet; a holder asks for three in a lease


class LeaseState(Enum):
    """What a node knows of its own lease."""

    NEW = "new"
    HELD = "held"
    ALONE = "alone"
    DEAD = "dead"


def margin_of(lease_s: float) -> float:
    """How long before its end a lease counts as over for its holder."""
    return lease_s * _MARGIN


class OwnLease:
    """The lease of this node. The callbacks run within the call that finds the reason."""

    def __init__(
        self, *, on_alone: Callable[[], None], on_back: Callable[[], None], on_declared_dead: Callable[[str], None]
    ) -> None:
        """``on_back``: a lease is held again after the node was alone. ``on_declared_dead``: gets the reason, once."""
        self.state = LeaseState.NEW
        self.times_alone = 0
        self._on_alone = on_alone
        self._on_back = on_back
        self._on_declared_dead = on_declared_dead
        self._deadline = 0.0
        self._read = 0
        self._waiting: list[tuple[int, float, float]] = []  # position, moment of sending, time granted

    @property
    def is_held(self) -> bool:
        """Whether it was held when `check` was last called."""
        return self.state is LeaseState.HELD

    def check(self, now: float) -> bool:
        """Whether the node may act as a member now."""
        if self.state is LeaseState.HELD and now >= self._deadline:
            self.state = LeaseState.ALONE
            self.times_alone += 1
            self._on_alone()
        return self.state is LeaseState.HELD

    def on_confirmed(self, sent_at: float, granted_s: float, now: float, position: int = 0) -> None:
        """The lease was renewed for this time, by a request that was sent at that moment. It may be too late already.

        ``position``: counts once everything up to there was read.
        """
        if position > self._read:
            self._waiting = [*self._waiting, (position, sent_at, granted_s)][-_WAITING_MAX:]
            self.check(now)
            return
        if self.state is LeaseState.DEAD:
            return
        self._deadline = max(self._deadline, sent_at + granted_s - margin_of(granted_s))
        if now >= self._deadline:
            self.check(now)
            return
        was, self.state = self.state, LeaseState.HELD
        if was is LeaseState.ALONE:
            self._on_back()

    def on_read(self, position: int, now: float) -> None:
        """Everything up to this position of the core store was read; after a restore it may be lower than before."""
        self._read = position
        due = [each for each in self._waiting if each[0] <= position]
        self._waiting = [each for each in self._waiting if each[0] > position]
        for reached, sent_at, granted_s in due:
            self.on_confirmed(sent_at, granted_s, now, reached)

    def on_dead(self, reason: str) -> None:
        """The node was declared dead: it never acts as this member again."""
        if self.state is LeaseState.DEAD:
            return
        if self.state is LeaseState.HELD:
            self.state = LeaseState.ALONE
            self.times_alone += 1
            self._on_alone()
        self.state = LeaseState.DEAD
        self._on_declared_dead(reason)
