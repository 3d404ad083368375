"""Takes intents as the home of their topics: once each, in the order of their numbers, one batch per core at a time (S9, C26).

The value of a topic is what arrived last. Only an intent that is late may come after a newer value; the numbers say which is the
newer one. A number is about the time of its commit, and stands in the row of the value as the time when it was stored.

A removal leaves a row without payload, or a late intent would bring the older value back. It goes when no core can have such an
intent any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.broker.broker import Broker
from braidmq.cluster.home.retained.intent_rows import IntentRows
from braidmq.cluster.home.retained.sender import AskTopicHome
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.lane.path.message import Message
from braidmq.net.proto_v1_intents import AskFloor, IntentFloor, IntentPiece, IntentsTaken, SentIntent, TakeIntents
from braidmq.storage.format.record import VALUE_BYTES_MAX
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.messages import MessageRows

log = logging.getLogger("braidmq.cluster")

FLOOR: Final = "floor of retained"
REMOVALS_MAX: Final = 100_000  # beyond it the oldest is forgotten: a late intent could bring its topic back
_ANSWER_S: Final = 2.0
_SWEEP_S: Final = 5.0
_RETRY_S: Final = 1.0
_NO_MESSAGE: Final = Message(b"", b"", 0, False, "")
_VALUE_BYTES_MAX: Final = VALUE_BYTES_MAX + 128 * 1024  # a row has a user name as well
_take: Final = msgspec.msgpack.Decoder(TakeIntents)
_piece: Final = msgspec.msgpack.Decoder(IntentPiece)
_ask_floor: Final = msgspec.msgpack.Decoder(AskFloor)
_floor: Final = msgspec.msgpack.Decoder(IntentFloor)
_encode: Final = msgspec.msgpack.encode
_Body = TypeVar("_Body")


class _Pending(NamedTuple):
    """Messages of a topic that wait for the disk, and the number of the last one."""

    pending: int
    number: int


class IntentTaker:
    """The topics of the shards that this core leads."""

    def __init__(self, led: LedShards, message_log: DurableLog) -> None:
        self.superseded = 0  # late intents that came after a newer value
        self._led = led
        self._rows = IntentRows(message_log)
        self._messages = MessageRows()
        self._taken = {(target, source): number for target in led for source, number in self._rows.load_taken(target).items()}
        self._waiting: dict[bytes, _Pending] = {}
        self._removed: dict[bytes, int] = {}  # topics without a message, with the number of the removal
        self._locks: dict[str, asyncio.Lock] = {}
        self._pieces: dict[str, tuple[int, bytearray]] = {}
        self._broker: Broker | None = None
        self._ask: AskTopicHome | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def removals(self) -> int:
        """Topics whose removal is remembered."""
        return len(self._removed)

    def serve(self, broker: Broker, ask: AskTopicHome) -> None:
        """Take intents from now on."""
        self._broker, self._ask = broker, ask
        self._sweep_later()

    def close(self) -> None:
        """The core stops."""
        self._broker = None
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()

    # Values

    def expect(self, topic: bytes, number: int) -> None:
        """A message of a topic waits for the disk; ``end`` follows."""
        before = self._waiting.get(topic)
        self._waiting[topic] = _Pending(1 if before is None else before.pending + 1, number)

    def end(self, topic: bytes) -> None:
        """It is written, or refused."""
        before = self._waiting.get(topic)
        if before is not None and before.pending > 1:
            self._waiting[topic] = before._replace(pending=before.pending - 1)
        elif before is not None:
            del self._waiting[topic]

    def note_removed(self, topic: bytes, number: int) -> None:
        """The message of a topic was removed."""
        self._removed.pop(topic, None)
        self._removed[topic] = number
        if len(self._removed) > REMOVALS_MAX and self._broker is not None:
            self._forget(self._broker, next(iter(self._removed)))
        self._sweep_later()

    def _number(self, topic: bytes) -> int:
        """That of a topic's value, or of its removal; 0 if nothing is known of it."""
        assert self._broker is not None
        if (waiting := self._waiting.get(topic)) is not None:
            return waiting.number
        held = self._broker.retained.get(topic)
        return self._removed.get(topic, 0) if held is None else held.number

    # Taking

    async def take(self, arguments: bytes) -> bytes:
        """Answer a core when everything that it has sent is on disk, or is not wanted. Raises Unavailable, UsageError."""
        asked = _decode(_take, arguments)
        lock = self._locks.setdefault(asked.core, asyncio.Lock())
        async with lock:  # an earlier batch may still be on its way to the disk, and its core has given up waiting for it
            await self._take_batch(asked)
        return _encode(IntentsTaken(len(asked.intents)))

    async def _take_batch(self, asked: TakeIntents) -> None:
        broker = self._broker
        if broker is None:
            raise Unavailable("this core does not take retained messages yet", _RETRY_S)
        values = [each.value or self._whole(asked.core, each) for each in asked.intents]
        for each in asked.intents:
            if each.target not in self._led:
                raise UsageError(f"another core than {self._led.local} leads shard {each.target}")
        noted: dict[tuple[int, int], int] = {}
        for each, value in zip(asked.intents, values, strict=True):
            if each.number <= max(self._taken.get((each.target, each.source), 0), noted.get((each.target, each.source), 0)):
                continue
            self._take_one(broker, each, value, is_late=asked.is_late)
            noted[each.target, each.source] = each.number
        if noted:
            await self._commit(broker, noted)

    def _take_one(self, broker: Broker, sent: SentIntent, value: bytes, *, is_late: bool) -> None:
        stored = self._messages.message_of(value, "a retained message from another core")
        message = stored.message
        if self._led.shard_of(message.topic.decode()) != sent.target:
            raise UsageError(f"the topic of a retained message is not in shard {sent.target}")
        if is_late and self._number(message.topic) >= sent.number:
            self.superseded += 1
            return
        if not broker.pipeline.may_retain(message, is_here=True):
            return  # it is recorded and delivered: an error would make its publisher send it again
        pending = broker.turn_writer.recorder.await_rows(_NO_MESSAGE, None, None, 0, 0)
        pending.is_delivered = False
        broker.pipeline.retain_here(pending, message, stored.user_name, sent.number / 1e6)

    async def _commit(self, broker: Broker, noted: dict[tuple[int, int], int]) -> None:
        """Write how far each publisher's shard was taken, in the batch of what it has set, and wait for the disk."""
        done: asyncio.Future[None] = broker.loop.create_future()

        def on_commit() -> None:
            self._taken.update(noted)
            if not done.done():
                done.set_result(None)

        def on_refused() -> None:
            if not done.done():
                done.set_exception(Unavailable("the core cannot store retained messages now", _RETRY_S))

        recorder = broker.turn_writer.recorder
        for (target, source), number in noted.items():
            recorder.change(self._rows.taken(target, source, number))
        pending = recorder.await_rows(_NO_MESSAGE, None, None, 0, 0)
        pending.is_delivered = False
        pending.on_commit, pending.on_refused = on_commit, on_refused
        await asyncio.shield(done)

    async def take_piece(self, arguments: bytes) -> bytes:
        """Keep a piece of a large value until the rest has come. Raises UsageError."""
        piece = _decode(_piece, arguments)
        number, value = self._pieces.get(piece.core, (0, bytearray()))
        if piece.is_first:
            number, value = self._pieces[piece.core] = piece.number, bytearray()
        if number != piece.number:
            raise Unavailable("the beginning of a retained message is missing", _RETRY_S)
        if len(value) + len(piece.piece) > _VALUE_BYTES_MAX:
            del self._pieces[piece.core]
            raise UsageError("a retained message is too large")
        value += piece.piece
        return b""

    def _whole(self, core: str, sent: SentIntent) -> bytes:
        number, value = self._pieces.pop(core, (0, bytearray()))
        if number != sent.number:
            raise Unavailable("a part of a retained message is missing", _RETRY_S)
        return bytes(value)

    # Removals

    def _sweep_later(self) -> None:
        broker = self._broker
        if broker is not None and self._removed and self._timer is None and self._sweeping is None:
            self._timer = broker.loop.call_later(_SWEEP_S, self._sweep, broker)

    def _sweep(self, broker: Broker) -> None:
        self._timer = None
        self._sweeping = broker.loop.create_task(self._forget_removals(broker))
        self._sweeping.add_done_callback(self._on_swept)

    def _on_swept(self, task: asyncio.Task[None]) -> None:
        self._sweeping = None
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("removals of retained messages cannot be forgotten", exc_info=problem)
        self._sweep_later()

    async def _forget_removals(self, broker: Broker) -> None:
        """Forget those that no intent can come after; those that may are kept until all cores were heard."""
        assert self._ask is not None
        lowest: int | None = None
        with suppress(BraidError):
            for core in sorted(set(self._led.leaders)):
                answer = await self._ask(core, FLOOR, _encode(AskFloor(self._led.local)), _ANSWER_S)
                number = _decode(_floor, answer).number
                lowest = number if lowest is None else min(lowest, number)
            self._forget_below(broker, lowest or 0)

    def _forget_below(self, broker: Broker, floor: int) -> None:
        for topic in [topic for topic, number in self._removed.items() if number <= floor]:
            self._forget(broker, topic)

    def _forget(self, broker: Broker, topic: bytes) -> None:
        if topic in self._waiting:
            return  # another row is about to take its place
        del self._removed[topic]
        if broker.retained.get(topic) is None:
            broker.turn_writer.write(broker.turn_writer.storage.retained.remove(topic))


def floor_answer(floor_of: Callable[[str], int], arguments: bytes, cores: Iterable[str]) -> bytes:
    """The answer to a core that asks for the floor of what it may still be sent. Raises UsageError."""
    core = _decode(_ask_floor, arguments).core
    if core not in cores:
        raise UsageError(f"there is no core {core}")
    return _encode(IntentFloor(floor_of(core)))


def _decode(decoder: msgspec.msgpack.Decoder[_Body], body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"a message about retained messages cannot be read: {problem}") from None
