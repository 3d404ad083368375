"""Asks a core for the time again and again: quickly at first, for a good answer soon, then now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.net.calls import CallError
from braidmq.net.proto_v1_clock import TimeTold

ASK_S: Final = 1.0  # for an answer
_FIRST: Final = 5
_FIRST_PAUSE_S: Final = 0.05
_UNKNOWN_PAUSE_S: Final = 0.2
_PAUSE_S: Final = 5.0

Ask = Callable[[], Awaitable[TimeTold]]


async def ask_once(clock: ClusterClock, ask: Ask) -> TimeTold | None:
    """One round trip; None if there was no answer."""
    sent_at = clock.moment()
    try:
        told = await ask()
    except (Unavailable, UsageError, CallError):
        return None
    clock.take(told, sent_at)
    return told


async def ask_always(clock: ClusterClock, ask: Ask, on_told: Callable[[TimeTold], None] = lambda told: None) -> None:
    """Until it is cancelled."""
    answers = 0
    while True:
        told = await ask_once(clock, ask)
        if told is None:
            answers = 0
            await asyncio.sleep(ASK_S)
            continue
        on_told(told)
        answers += bool(told.reign)
        await asyncio.sleep(_UNKNOWN_PAUSE_S if not told.reign else _FIRST_PAUSE_S if answers < _FIRST else _PAUSE_S)
