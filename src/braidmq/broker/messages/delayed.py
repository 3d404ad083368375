"""``$delayed/SECONDS/topic``: messages that are published later.

They wait on disk. In memory are the times when they are due and the keys of their rows; a message is read when its time has come.
However many are due at once, reading and publishing them takes a bounded part of each turn of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, time
from typing import NamedTuple

from braidmq.access.contract import Authorizer
from braidmq.base.errors import BraidError, Unavailable
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import StoredMessage
from braidmq.broker.session.session import SessionTable
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.routing.routes import RouteTable

log = logging.getLogger("braidmq.durability")

PREFIX = b"$delayed/"

_SLICE_S = 0.001  # of reading and publishing, before others have their turn
_STORE_AGAIN_S = 1.0  # after which to try again when the log could not be read, or has refused a message
_HELD_S = 0.5  # after which to look again whether anything may be published
_RETRY_S = 0.05  # after which to look again whether the log takes more


def parse(topic: bytes) -> tuple[int, bytes] | None:
    """Seconds and inner topic of a ``$delayed`` topic; None if it is malformed."""
    seconds, slash, inner = topic[len(PREFIX) :].partition(b"/")
    if not slash or not inner or not seconds.isdigit() or len(seconds) > 9:
        return None
    return int(seconds), inner


class _Waiting(NamedTuple):
    """A delayed message; sorts in the order of publication."""

    due_at: float  # by the loop's clock
    row_id: bytes
    home: int  # the shard that has the row
    size: int


class DelayedMessages:
    """Messages that wait for their time, bounded in number, bytes and delay."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        routes: RouteTable,
        turn_writer: TurnWriter,
        pipeline: MessagePipeline,
        sessions: SessionTable,
        access: Authorizer,
        statistics: Statistics,
        live: LiveSettings,
    ) -> None:
        self._loop = loop
        self._lane = lane
        self._state = lane.state
        self._routes = routes
        self._turn_writer = turn_writer
        self._rows = turn_writer.storage.delayed
        self._pipeline = pipeline
        self._sessions = sessions
        self._access = access
        self._statistics = statistics
        self._live = live
        self._waiting: list[_Waiting] = []  # a heap
        self._count = 0  # including those on their way to the disk
        self._wake: asyncio.Handle | None = None
        self._wakes_at = 0.0
        self._paused_until = 0.0
        self._needs_rules = False  # a message is due, and without rules it is unknown whether it may be published
        self.size_bytes = 0  # of all of them, on disk
        self.is_held = False  # the node must publish nothing now

    def __len__(self) -> int:
        return self._count

    def has_place(self, message: Message, delay_s: int) -> bool:
        """Whether there is room for this message, and its delay is allowed."""
        bounds = self._live.now.delayed
        if delay_s > bounds.delay_max or self._count >= bounds.messages_max:
            return False
        return not bounds.bytes_max or self.size_bytes + message.cost() <= bounds.bytes_max

    def keep(self, message: Message, delay_s: int, user_name: str | None) -> tuple[Callable[[], None], Callable[[], None]]:
        """Write the message in this turn's block; returns the callbacks for its commit and for its rejection."""
        row_id, change = self._rows.put(message, user_name, time() + delay_s)  # without an id: its home publishes it
        self._turn_writer.recorder.change(change)
        home = self._turn_writer.log.shard_of(message.publisher)
        waiting = _Waiting(self._loop.time() + delay_s, row_id, home, message.cost())
        self._add(waiting.size)
        on_refused = partial(self._remove, waiting.size)
        return partial(self._wait, waiting) if row_id else on_refused, on_refused

    def restore(self, stored: StoredMessage, now: float) -> None:
        """Take over a message found at start; one that is overdue is published at once."""
        self._add(stored.message.cost())
        self.await_reserved(stored, now)

    def reserve(self, message: Message) -> bool:
        """Make room for the message of another node's client, which is about to be written; False, and counted, if there is none.

        ``await_reserved`` or ``give_back`` must follow.
        """
        if not self.has_place(message, 0):
            self._statistics.dropped_delayed_full += 1
            self._state.drop("delayed_full", message.publisher, message.topic)
            return False
        self._add(message.cost())
        return True

    def await_reserved(self, stored: StoredMessage, now: float) -> None:
        """Such a message is on disk: publish it when it is due."""
        message = stored.message
        due_at = self._loop.time() + max(0.0, stored.due - now)
        home = self._turn_writer.log.shard_of(message.publisher)
        self._wait(_Waiting(due_at, stored.row_id, home, message.cost()))

    def give_back(self, message: Message) -> None:
        """Such a message could not be written."""
        self._remove(message.cost())

    def _add(self, size: int) -> None:
        self._count += 1
        self.size_bytes += size

    def _remove(self, size: int) -> None:
        self._count -= 1
        self.size_bytes -= size

    def _wait(self, waiting: _Waiting) -> None:
        heapq.heappush(self._waiting, waiting)
        self._wake_at(self._waiting[0].due_at)

    def _wake_at(self, due_at: float) -> None:
        """Schedule ``_run`` at this time, or earlier if it is already scheduled."""
        if self._wake is not None:
            if self._wakes_at <= due_at:
                return
            self._wake.cancel()
        self._wakes_at = due_at
        self._wake = self._loop.call_at(due_at, self._run)

    def _run(self) -> None:
        """Publish due messages for one slice of time."""
        self._wake = None
        now = self._loop.time()
        deadline = monotonic() + _SLICE_S
        while self._waiting:
            if self._waiting[0].due_at > now:
                self._wake_at(self._waiting[0].due_at)
                break
            if self.is_held:
                self._wake_at(now + _HELD_S)
                break
            if now < self._paused_until:
                self._wake_at(self._paused_until)
                break
            self._needs_rules = not self._access.has_rules
            if self._needs_rules:
                break  # ``publish_overdue`` goes on
            if self._turn_writer.recorder.is_congested:
                self._wake_at(now + _RETRY_S)
                break
            self._publish(heapq.heappop(self._waiting))
            if self._waiting and monotonic() >= deadline:
                self._wakes_at = now
                self._wake = self._loop.call_soon(self._run)
                break

    def publish_overdue(self) -> None:
        """The rules are valid again: publish the messages that waited for them and are allowed."""
        if self._needs_rules:
            self._needs_rules = False
            self._wake_at(self._loop.time())

    def _publish(self, waiting: _Waiting) -> None:
        self._remove(waiting.size)
        try:
            stored = self._rows.read(waiting.home, waiting.row_id)
        except Unavailable as problem:  # for example, no file descriptor for a table: it may work in a moment
            log.warning("delayed messages have to wait: %s", problem.detail)
            self._try_again(waiting)
            return
        except BraidError as problem:
            self._give_up(waiting, str(problem))
            return
        if stored is None:
            self._give_up(waiting, "its row is missing")
            return
        message, user_name = stored.message, stored.user_name
        removal = self._rows.remove(message.publisher, waiting.row_id)
        # The right to publish was there when the message came, and must still be.
        rules = self._access.rules_for(message.publisher, user_name)
        if rules.unrestricted or rules.may_publish(message.topic.decode()):
            if self._waits_for_disk(message):
                self._turn_writer.recorder.change(removal)  # as one with the record: it is in either place
            else:
                self._turn_writer.write(removal)
            session = self._sessions.get(message.publisher)
            self._statistics.own_messages += session is not None
            flow = None if session is None else session.flow  # for No Local
            self._pipeline.publish(message, flow, user_name, on_refused=partial(self._try_again, waiting))
            self._lane.flush()
        else:
            self._turn_writer.write(removal)
            self._statistics.dropped_revoked += 1
            self._state.drop("not_authorized", message.publisher, message.topic)

    def _waits_for_disk(self, message: Message) -> bool:
        """Whether it must be recorded or retained before it is delivered."""
        route = self._routes.resolve(message.topic)
        return route is not None and (message.qos >= route.keep_qos or (message.retain and message.qos > 0))

    def _try_again(self, waiting: _Waiting) -> None:
        """The message could not be read or stored: retry it later, and all others after it."""
        self._paused_until = self._loop.time() + _STORE_AGAIN_S
        self._add(waiting.size)
        self._wait(waiting)

    def _give_up(self, waiting: _Waiting, problem: str) -> None:
        log.error("the delayed message %s cannot be published: %s", waiting.row_id.hex(), problem)
        self._state.counters.dropped_not_stored += 1
        self._state.drop("not_stored", "", PREFIX)

    def stop(self) -> None:
        """Stop the timer; stored messages are restored at the next start."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._waiting.clear()
