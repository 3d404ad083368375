"""Why a connection is not read for a while, and when reading resumes: full queues, rates, large messages."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

from braidmq.broker.connection.context import ConnectionContext
from braidmq.broker.connection.rates import TokenBucket
from braidmq.broker.timers import Timer
from braidmq.lane.path.channel import Channel
from braidmq.lane.path.channel_reader import HOLD_LARGE, HOLD_QUEUE, HOLD_RATE, HOLD_TURN, HOLD_WORK


class HeldChannel(Channel):
    """A channel that pauses and resumes itself. The lane sets a hold and tells ``on_hold``; what ends it is decided here."""

    __slots__ = ("_buckets", "_queue_timer", "_rate_timer", "context")

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context.lane, context.live.now.limits.preauth_packet_bytes)
        self.context = context
        self._buckets: tuple[TokenBucket, TokenBucket] | None = None
        self._queue_timer: Timer | None = None
        self._rate_timer: asyncio.TimerHandle | None = None

    def on_hold(self, bit: int) -> None:
        if bit == HOLD_WORK:
            self.schedule_resume(HOLD_WORK)
        elif bit == HOLD_TURN:
            self.context.turns.add(self, partial(self.resume, HOLD_TURN))
        elif bit == HOLD_LARGE:
            self.context.large.begin()
        elif bit == HOLD_QUEUE:
            # The time runs from when the queue filled up, so that many slow subscribers cost a publisher no more than one does.
            since = self.held_by.congested_at if self.held_by is not None else 0.0
            waited_s = max(0.0, self.lane.state.now - since) if since else 0.0
            wait_s = max(0.0, self.context.live.now.session.queue_wait - waited_s)
            self._queue_timer = self.context.timers.after(wait_s, self._wait_no_more)

    def schedule_resume(self, bit: int) -> None:
        self.context.loop.call_soon(self.resume, bit)

    def end_large(self, size: int) -> None:
        if self.hold_bits & HOLD_LARGE:
            self.context.large.end(partial(self.resume, HOLD_LARGE), size)

    def hold_for_node(self) -> None:
        """What this client publishes fills a queue on another node: hold it, unless its own queue fills up."""
        if self.flow is None or self.flow.is_congested() or self.hold_bits & HOLD_QUEUE:
            return
        self.is_waiting = True
        self.lane.state.counters.publishers_held += 1
        self.hold(HOLD_QUEUE)

    def release_for_node(self) -> None:
        """That queue has drained."""
        if self.is_waiting and self.held_by is None:
            self.schedule_release()

    def schedule_release(self) -> None:
        self.context.loop.call_soon(self._release)

    def _release(self) -> None:
        self._stop_waiting()
        self.resume(HOLD_QUEUE)

    def _wait_no_more(self) -> None:
        if self.held_by is not None:
            self.held_by.is_stalled = True  # from now on, messages that it cannot take are dropped
        self._stop_waiting()
        self.resume(HOLD_QUEUE)

    def _stop_waiting(self) -> None:
        """Stop waiting: cancel the timer and leave the full queue of the subscriber."""
        self.is_waiting = False
        if self._queue_timer is not None:
            self._queue_timer.cancel()
            self._queue_timer = None
        if self.held_by is not None:
            self.held_by.forget_publisher(self)
            self.held_by = None

    def meter(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Hold the client to these rates; 0 means no limit."""
        self.is_metered = messages_per_s > 0 or bytes_per_s > 0
        now = monotonic()
        self._buckets = (TokenBucket(messages_per_s, now), TokenBucket(bytes_per_s, now)) if self.is_metered else None

    def on_metered(self, messages: int, size: int) -> None:
        if self._buckets is None:
            return
        now = monotonic()
        wait_s = max(self._buckets[0].take(messages, now), self._buckets[1].take(size, now))
        if wait_s > 0 and not self.hold_bits & HOLD_RATE:
            self.hold(HOLD_RATE)
            self._rate_timer = self.context.loop.call_later(wait_s, self.resume, HOLD_RATE)

    def end_holds(self) -> None:
        """The connection is over: no timer is to fire for it."""
        self._stop_waiting()
        if self._rate_timer is not None:
            self._rate_timer.cancel()
