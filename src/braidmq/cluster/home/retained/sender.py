"""Takes intents to the homes of their topics, from their commit on until those have them, over restarts of either side (C14)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from braidmq.base.errors import BraidError, Unavailable
from braidmq.broker.messages.retained import Retained, RetainedStore
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change
from braidmq.cluster.home.retained.intent_rows import IntentRows, StoredIntent
from braidmq.cluster.home.retained.intents import BATCH_BYTES, IntentQueue, OnSettled, OpenIntent
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.lane.path.message import Message
from braidmq.net.proto_v1_intents import IntentPiece, IntentsTaken, SentIntent, TakeIntents
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.messages import MessageRows

log = logging.getLogger("braidmq.cluster")

TAKE: Final = "take retained"
TAKE_PIECE: Final = "take piece of retained"
_ANSWER_S: Final = 2.0  # after which a home counts as away: publishers wait no longer
_AGAIN_S: Final = 1.0
_MEMORY_BYTES: Final = 4096  # rows up to this size stay in memory while the home is away
_encode: Final = msgspec.msgpack.encode
_taken: Final = msgspec.msgpack.Decoder(IntentsTaken)


class AskTopicHome(Protocol):
    """Asks a core, perhaps this one. Raises Unavailable, UsageError."""

    def __call__(self, core: str, operation: str, arguments: bytes, timeout_s: float) -> Awaitable[bytes]:
        """Its answer."""


class NewIntent:
    """A retained message for another shard; implements `broker.messages.retained_homes.RetainedIntent`."""

    __slots__ = ("_intent", "_message", "_sender", "_user_name", "row")

    def __init__(self, sender: IntentSender, intent: OpenIntent, row: Change, message: Message, user_name: str | None) -> None:
        self.row = row
        self._sender = sender
        self._intent = intent
        self._message = message
        self._user_name = user_name

    def committed(self, on_settled: OnSettled | None = None) -> None:
        """The row is on disk."""
        self._intent.waiters = [] if on_settled is None else [on_settled]
        self._sender.add(self._intent, self._message, self._user_name)

    def refused(self, on_settled: OnSettled | None = None) -> None:
        """The row could not be written."""
        if on_settled is not None:
            on_settled()


class _Running(NamedTuple):
    """What it needs of the broker."""

    writer: TurnWriter
    loop: asyncio.AbstractEventLoop
    ask: AskTopicHome


class IntentSender:
    """The intents of all shards that this core leads."""

    def __init__(self, led: LedShards, message_log: DurableLog) -> None:
        self._led = led
        self._log = message_log
        self._rows = IntentRows(message_log)
        self._messages = MessageRows()
        self._queues: dict[str, IntentQueue] = {name: IntentQueue() for name in led.leaders}
        self._index = RetainedStore(0)  # the newest intent of each topic
        self._last: dict[int, int] = {}  # the highest number so far, by publisher's shard
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._removed: dict[int, int] = {}  # the highest number of those that were removed, by publisher's shard
        self._superseded: list[OpenIntent] = []  # whose rows are still to be removed
        self._running: _Running | None = None
        for source in led:
            self._load(source)

    def _load(self, source: int) -> None:
        """Take over what earlier processes have left, in the order of the numbers, which is that of the commits."""
        self._removed[source] = self._last[source] = self._rows.load_removed(source)
        for stored in sorted(self._rows.load(source), key=lambda each: each.number):
            self._last[source] = max(self._last[source], stored.number)
            found = self._messages.message_of(stored.value, "a retained message on its way")
            size = len(stored.value)
            value = stored.value if size <= _MEMORY_BYTES else None
            intent = OpenIntent(source, stored.target, stored.number, found.message.topic, size, value, is_late=True, waiters=[])
            self.add(intent, found.message, found.user_name)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def size_bytes(self) -> int:
        """The bytes of all rows."""
        return sum(queue.size_bytes for queue in self._queues.values())

    # Making

    def next_number(self, source: int) -> int:
        """A number above all earlier ones of a publisher's shard: about the time, in microseconds since 1970."""
        number = max(self._last[source] + 1, self._log.now())
        self._last[source] = number
        return number

    def make(self, source: int, message: Message, user_name: str | None) -> NewIntent:
        """What takes a message to the home of its topic. Raises UsageError if it is too large to be stored."""
        number, target = self.next_number(source), self._led.shard_of(message.topic.decode())
        value = self._messages.row_of(message, user_name, number / 1e6)
        row = self._rows.put(source, StoredIntent(target, number, value))
        intent = OpenIntent(source, target, number, message.topic, len(value), value)
        return NewIntent(self, intent, row, message, user_name)

    def add(self, intent: OpenIntent, message: Message, user_name: str | None) -> None:
        """An intent is on disk."""
        core = self._led.leaders[intent.target]
        queue = self._queues[core]
        held = self._index.get(intent.topic)
        if held is None or held.number < intent.number:
            self._index.put(message.unrecorded(), user_name, intent.number / 1e6, is_on_disk=True)
        older = queue.add(intent)
        if older is not None:
            self._superseded.append(older)
        if queue.is_away and intent.size > _MEMORY_BYTES:
            intent.value = None
        self._run(core)

    # Driving

    def serve(self, writer: TurnWriter, loop: asyncio.AbstractEventLoop, ask: AskTopicHome) -> None:
        """Drive from now on; other cores have some time to connect before they count as away."""
        self._running = _Running(writer, loop, ask)
        for core in self._queues:
            if core != self._led.local:
                self._timers[core] = loop.call_later(_ANSWER_S, self.up, core)
        self._run(self._led.local)

    def up(self, core: str) -> None:
        """A core is connected, perhaps again."""
        if (timer := self._timers.pop(core, None)) is not None:
            timer.cancel()
        self._run(core)

    def close(self) -> None:
        """The core stops."""
        self._running = None
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks.values():
            task.cancel()

    def _run(self, core: str) -> None:
        running = self._running
        if running is None:
            return
        if self._superseded:
            self._remove_rows(running.writer, self._superseded)
            self._superseded = []
        if not len(self._queues[core]) or core in self._tasks or core in self._timers:
            return
        self._tasks[core] = task = running.loop.create_task(self._drive(core, running))
        task.add_done_callback(partial(self._on_end, core))

    def _on_end(self, core: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(core, None)
        running = self._running
        if running is None or task.cancelled():
            return
        if (problem := task.exception()) is not None:
            log.error("retained messages for core %s cannot be sent", core, exc_info=problem)
            self._queues[core].failed(_MEMORY_BYTES)
        if self._queues[core].is_away:
            self._timers[core] = running.loop.call_later(_AGAIN_S, self.up, core)
        else:
            self._run(core)

    async def _drive(self, core: str, running: _Running) -> None:
        queue = self._queues[core]
        while batch := queue.batch():
            try:
                await self._send(core, batch, running.ask)
            except BraidError as problem:
                if not queue.is_away:
                    log.warning("retained messages wait for core %s: %s", core, problem)
                queue.failed(_MEMORY_BYTES)
                return
            self._remove_rows(running.writer, batch)
            queue.taken(batch)
            for intent in batch:
                self._reindex(intent)

    async def _send(self, core: str, batch: list[OpenIntent], ask: AskTopicHome) -> None:
        sent: list[SentIntent] = []
        for intent in batch:
            value = intent.value or self._rows.value(intent.source, intent.target, intent.number)
            if value is None:
                raise Unavailable(f"the row of a retained message for {intent.topic.decode()!r} is missing", _AGAIN_S)
            if len(value) > BATCH_BYTES:  # it is alone
                for start in range(0, len(value), BATCH_BYTES):
                    piece = IntentPiece(self._led.local, intent.number, not start, value[start : start + BATCH_BYTES])
                    await ask(core, TAKE_PIECE, _encode(piece), _ANSWER_S)
                value = b""
            sent.append(SentIntent(intent.source, intent.target, intent.number, value))
        asked = TakeIntents(self._led.local, batch[0].is_late, sent)
        answer = await ask(core, TAKE, _encode(asked), _ANSWER_S)
        try:
            found = _taken.decode(answer)
        except msgspec.MsgspecError as problem:
            raise Unavailable(f"the answer of core {core} cannot be read: {problem}", _AGAIN_S) from None
        if found.count != len(batch):
            raise Unavailable(f"core {core} has answered for {found.count} of {len(batch)} retained messages", _AGAIN_S)

    def _remove_rows(self, writer: TurnWriter, intents: list[OpenIntent]) -> None:
        changes: list[Change] = [self._rows.remove(each.source, each.target, each.number) for each in intents]
        highest: dict[int, int] = {}
        for each in intents:
            highest[each.source] = max(highest.get(each.source, 0), each.number)
        for source, number in highest.items():
            if number > self._removed[source]:
                self._removed[source] = number
                changes.append(self._rows.removed(source, number))
        writer.write(*changes)

    # Questions

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The newest open intent of each topic that matches, removals included; None for each stretch without one."""
        return self._index.match(topic_filter)

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no such intent."""
        return self._index.may_match(topic_filter)

    def load(self, held: Retained) -> Retained | None:
        """An intent that was found, with its payload; None if it is open no more, or its first attempt is still under way."""
        intent = self._newest(held.message.topic)
        if intent is None or intent.waiters is not None or intent.number != held.number:
            return None
        if not held.is_on_disk:
            return held
        value = self._rows.value(intent.source, intent.target, intent.number)
        if value is None:
            return None
        stored = self._messages.message_of(value, "a retained message on its way")
        return Retained(stored.message, stored.user_name, stored.stored_at)

    def floor(self, core: str) -> int:
        """All intents for this core that are still to come have higher numbers, from whichever shard."""
        lowest = self._queues[core].lowest
        if lowest:
            return lowest - 1
        floor = self._log.now()
        for source in self._led:
            self._last[source] = max(self._last[source], floor)
        return floor

    def when_settled(self, callback: Callable[[], None], source: int | None = None) -> None:
        """Call back, perhaps at once, when those that are open now are taken or late, those of one shard or all."""
        waiting = [each for queue in self._queues.values() for each in queue.unsettled() if source in (None, each.source)]
        left = len(waiting)
        if not left:
            callback()
            return

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback()

        for each in waiting:
            assert each.waiters is not None
            each.waiters.append(settled)

    def _newest(self, topic: bytes) -> OpenIntent | None:
        queue = self._queues[self._led.leaders[self._led.shard_of(topic.decode())]]
        found = [intent for source in self._led if (intent := queue.newest(source, topic)) is not None]
        return max(found, key=lambda each: each.number, default=None)

    def _reindex(self, gone: OpenIntent) -> None:
        """An intent is taken: another one of its topic may be left."""
        left = self._newest(gone.topic)
        if left is None:
            self._index.remove(gone.topic)
