"""What reads the log for a session, as the session sees it; implemented in ``broker.reading``."""

from __future__ import annotations

from typing import Protocol

from braidmq.broker.ports import Positions
from braidmq.broker.reading.cursor import RunEnd
from braidmq.lane.routing.subscription import Subscription


class RecallReader(Protocol):
    """Reads messages in flight that only the log has."""

    @property
    def can_go_on(self) -> bool:
        """Whether it can read on at once; otherwise it is woken, or the client must accept something first."""
        ...

    def run(self) -> bool:
        """Read for a slice and send what was found; True when nothing is left to read."""
        ...

    def close(self) -> None:
        """Release the read-ahead; reading begins again at what is missing."""
        ...


class CatchUpReader(Protocol):
    """Reads the records above the session's cursor."""

    def run(self) -> RunEnd:
        """Read and send for a slice; a session that has caught up follows live messages."""
        ...

    def note_idle(self) -> None:
        """The client accepts no more for now."""
        ...

    def pause(self) -> None:
        """End this reading; a session that is still behind begins another one at its cursor."""
        ...


class ReplayReader(Protocol):
    """Reads the log for one replay subscription."""

    subscription: Subscription
    tells_end: bool  # the client still has to get the end marker

    @property
    def is_merged(self) -> bool:
        """Whether it has caught up, so that its subscription is an ordinary one."""
        ...

    @property
    def cursor(self) -> Positions | None:
        """Its positions; None once it is merged."""
        ...

    def begin(self) -> None:
        """The client has its answer: messages may follow."""
        ...

    def pause(self) -> None:
        """Release the read-ahead."""
        ...

    def run(self, deadline: float) -> RunEnd:
        """Read and send until then, or as much as the client accepts; CAUGHT_UP when nothing is left to do."""
        ...
