"""What tests of the registry's decisions share: a home with a clock that stands still, and its decisions in short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import (
    Action,
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Ended,
    EndLoser,
    OwnerRestored,
    Probe,
)

WAIT_S = 2.0
BOUND_MS = 5


class Clock:
    """Microseconds that stand still, as fast computers see them."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Home(HomeClaims[str]):
    """A home whose nodes have numbers in their names, and that is asked for channels by their times."""

    def __init__(self, undeclared: Iterable[str] = (), nodes: Iterable[str] = ("r1", "r2", "r3"), **options: Any) -> None:
        self.clock = Clock()
        super().__init__(WAIT_S, self.clock, undeclared, **options)
        for node in nodes:
            self.meet(node, int(node[1:]))

    def connect(self, node: str, channel: int, ms: int, now: float = 0.0) -> list[tuple[object, ...]]:
        """A client whose connection is of this time claims the client id ``c``."""
        return brief(self.claim(node, claim_of(channel, ms), now))

    @property
    def registered(self) -> str | None:
        """The node and the channel that are registered."""
        found = [f"{entry.peer.node}:{entry.channel}" for entry, what in self.channels_of("c") if what.startswith("registered")]
        return found[0] if found else None


def claim_of(channel: int, ms: int, bound_ms: int = BOUND_MS) -> ClaimRequest:
    """A claim for the client id ``c``, made at once."""
    return ClaimRequest(channel, "c", channel, ms, bound_ms, ms)


def brief(actions: list[Action[str]]) -> list[tuple[object, ...]]:
    """Decisions in short."""
    return [_brief(action) for action in actions]


def _brief(action: Action[str]) -> tuple[object, ...]:
    match action:
        case ClaimGranted():
            return "grant", action.node, action.claim.channel
        case ClaimRejected():
            return "reject", action.node, action.claim.channel, action.outcome.value
        case Probe():
            return "probe", action.node, action.channel
        case EndLoser():
            return "kick" if action.is_kicked else "end", action.node, action.channel
        case Ended():
            return "ended", action.owner.node, action.owner.channel, action.ending.value
        case OwnerRestored():
            return "restored", action.owner.node, action.owner.channel
