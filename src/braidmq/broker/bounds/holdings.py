"""Limits the memory for offline and slow clients: messages in flight and queued, of the whole node.

Recorded messages leave memory first, because they can be read from the log again. After that, sessions lose messages, the largest
holders first and offline sessions before connected ones: the newest messages of their queues, then unrecorded messages in flight.
Sessions that hold little lose nothing to sessions that hold much.
"""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heapreplace
from time import monotonic
from typing import cast

from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.flows.session_queue import HEAVY_BYTES, SessionQueue
from braidmq.lane.path.state import State

_SLICE_S = 0.005  # of releasing messages, before others have their turn; the next tick continues
_KEPT_BYTES = 64 * 1024  # in flight to a client that leaves: kept, since it may come back soon


class Holdings:
    """Keeps ``State.held_bytes`` within its bound."""

    def __init__(self, state: State, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self._state = state
        self._loop = loop
        self._vain_at = -1.0  # when no room could be made, by the coarse clock, for a queue of ``_vain_bytes``
        self._vain_bytes = 0
        self.let_go = 0  # messages removed from memory, to be read from the log again
        state.held_bytes_max = bytes_max
        state.on_pressed = self._relieve_soon
        state.make_room = self._make_room

    def left(self, flow: LogFlow) -> None:
        """A client is offline: its recorded messages leave memory, unless they are few and the node has room."""
        if flow.inflight_bytes > _KEPT_BYTES or self._state.held_bytes * 2 > self._state.held_bytes_max:
            self.let_go += flow.let_go_readable()
        if not self._has_room(0):
            self.relieve()

    def tick(self) -> None:
        """Try again to come below the limit."""
        self._state.is_pressed = False
        if self._state.held_bytes > self._state.held_bytes_max:
            self.relieve()

    def _relieve_soon(self) -> None:
        self._loop.call_soon(self.relieve)

    def relieve(self) -> None:
        """Release messages until there is room; anything above the limit after that is in flight to connected clients."""
        heavy = self._find_heavy()
        self._let_go_readable(heavy)
        absent = [flow for flow in heavy if flow.channel is None]
        if not self._has_room(0):
            self._drop_queued(absent, 0)
        for flow in absent:
            if self._has_room(0):
                break
            flow.drop_unrecorded()
        # If there is none, the next tick tries again; connected clients are sent little meanwhile.
        self._state.is_pressed = not self._has_room(0)

    def _make_room(self, queue: SessionQueue, cost: int) -> bool:
        """Whether this queue may have one more message, perhaps because others have less now."""
        least = queue.queue_bytes + cost
        if self._vain_at == self._state.now and least >= self._vain_bytes:
            return False
        heavy = self._find_heavy()
        self._let_go_readable(heavy)
        for is_here in (False, True):
            if not self._has_room(cost):
                self._drop_queued([each for each in heavy if (each.channel is not None) == is_here], least)
        if not self._has_room(cost):
            self._vain_at, self._vain_bytes = self._state.now, least
            return False
        return True

    def _find_heavy(self) -> list[LogFlow]:
        """Flows that hold much, the largest first."""
        heavy = cast("dict[LogFlow, None]", self._state.heavy)  # the broker makes no other kind
        for flow in [each for each in heavy if each.held_bytes < HEAVY_BYTES // 2]:
            flow.is_heavy = False
            del heavy[flow]
        return sorted(heavy, key=lambda each: -each.held_bytes)

    def _has_room(self, cost: int) -> bool:
        return self._state.held_bytes + cost <= self._state.held_bytes_max

    def _is_relieved(self) -> bool:
        return self._state.held_bytes <= self._state.held_bytes_max // 8 * 7

    def _let_go_readable(self, flows: list[LogFlow]) -> None:
        deadline = monotonic() + _SLICE_S
        for flow in flows:
            if self._is_relieved() or monotonic() >= deadline:
                break
            self.let_go += flow.let_go_readable()

    def _drop_queued(self, flows: list[LogFlow], least: int) -> None:
        """Halve the longest queue until there is room, but none of at most ``least`` bytes."""
        longest = [(-each.queue_bytes, number, each) for number, each in enumerate(flows) if each.queue_bytes > least]
        heapify(longest)
        while longest and not self._is_relieved():
            _, number, flow = longest[0]
            flow.drop_newest(max(least, flow.queue_bytes // 2))
            if flow.queue_bytes > least:
                heapreplace(longest, (-flow.queue_bytes, number, flow))
            else:
                heappop(longest)
