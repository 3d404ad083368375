"""The homes of retained messages, as one of several cores sees them: its own topics, and what it has for those of others."""

from __future__ import annotations

from braidmq.broker.broker import Broker
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.home.retained.sender import TAKE, TAKE_PIECE, IntentSender, NewIntent
from braidmq.cluster.home.retained.taker import FLOOR, IntentTaker, floor_answer
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.lane.path.message import Message
from braidmq.storage.log import DurableLog


class CoreRetainedHomes:
    """Implements `broker.messages.retained_homes.RetainedHomes`."""

    def __init__(self, led: LedShards, message_log: DurableLog, calls: CoreCalls) -> None:
        self.sender = IntentSender(led, message_log)
        self.taker = IntentTaker(led, message_log)
        self._led = led
        self._calls = calls
        self._broker: Broker | None = None
        self._operations = {TAKE: self.taker.take, TAKE_PIECE: self.taker.take_piece, FLOOR: self._floor}
        for name, operation in self._operations.items():
            calls.serve(name, operation)

    def serve(self, broker: Broker) -> None:
        """The broker is made: drive and take from now on."""
        self._broker = broker
        self.taker.serve(broker, self._ask)
        self.sender.serve(broker.turn_writer, broker.loop, self._ask)

    def close(self) -> None:
        """The core stops."""
        self.sender.close()
        self.taker.close()

    async def _ask(self, core: str, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        if core == self._led.local:
            return await self._operations[operation](arguments)
        return await self._calls.ask(core, operation, arguments, timeout_s)

    async def _floor(self, arguments: bytes) -> bytes:
        return floor_answer(self.sender.floor, arguments, self._led.leaders)

    # The broker's port

    def _source(self, message: Message) -> int:
        """The shard that a message is recorded in; for what no client of this core has published, any that it leads."""
        shard = self._led.shard_of(message.publisher) if message.publisher else self._target(message)
        return shard if shard in self._led else min(self._led)

    def _target(self, message: Message) -> int:
        return self._led.shard_of(message.topic.decode())

    def is_elsewhere(self, message: Message) -> bool:
        """Whether the message is kept in another shard than that of its publisher."""
        return self._source(message) != self._target(message)

    def has_room(self, message: Message) -> bool:
        """Whether such a message may be on its way: within the bounds of what this core may keep."""
        assert self._broker is not None
        retained, sender = self._broker.retained, self.sender
        if retained.messages_max and len(sender) >= retained.messages_max:
            return False
        return not retained.bytes_max or sender.size_bytes + message.cost() <= retained.bytes_max

    def intent(self, message: Message, user_name: str | None) -> NewIntent:
        """What takes such a message to the home of its topic."""
        return self.sender.make(self._source(message), message, user_name)

    def begin(self, topic: bytes) -> float:
        """A message of a topic of this core is about to be written; when it counts as stored."""
        return self.sender.next_number(self._led.shard_of(topic.decode())) / 1e6

    def expect(self, topic: bytes, stored_at: float) -> None:
        """It waits for the disk; ``end`` follows."""
        self.taker.expect(topic, round(stored_at * 1e6))

    def end(self, topic: bytes) -> None:
        """It is written, or refused."""
        self.taker.end(topic)

    def note_removed(self, topic: bytes, stored_at: float) -> None:
        """The message of a topic was removed."""
        self.taker.note_removed(topic, round(stored_at * 1e6))
