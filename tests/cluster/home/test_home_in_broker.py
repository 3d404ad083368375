"""A node's blocks in a whole core: its log, its rows, its subscribers and its retained messages."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.broker.messages.producer_books import KeySender, NewKey
from braidmq.broker.ports import Change, CursorRow, SessionRow
from braidmq.cluster.home.blocks.block_marks import BlockMarks
from braidmq.cluster.home.blocks.block_ports import ChannelClient
from braidmq.cluster.home.blocks.blocks import HomeBlocks
from braidmq.cluster.home.blocks.operations import AppliedRows, Effect, HomeRows
from braidmq.cluster.home.blocks.publishing import EntryPublisher
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.blocks import FENCED, NOT_RECORDED, BlockMark
from braidmq.cluster.protocol.operations import Operation, PutCursor, PutReceived, PutSession
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import encode_record
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AnswerBody, BlockBody, BlockEntry, PresenceEntry, PublishEntry, RowsEntry, SentNumber
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World

UNHEARD = 0x10  # the reason code: no matching subscribers

NODE = 7, 1
CLIENT = "ann"


class CorePort:
    """A core and its side of one node, whose only client has channel 1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[tuple[int, dict[int, int]]] = []
        self.effects: list[Effect] = []
        self.start()

    def start(self) -> None:
        broker = self.world.broker
        writer = broker.turn_writer
        self._rows = HomeRows(writer.storage)
        self._marks = BlockMarks(self.world.log)
        recorder, lane = writer.recorder, broker.lane
        publisher = EntryPublisher(recorder, recorder.outcomes, broker.pipeline, broker.routes, lane.flush)
        marks = self._marks.load(*NODE)
        self.blocks = HomeBlocks(self.world.log.shards, self, publisher, writer.recorder, marks, on_room=lambda: None)
        self.blocks.connected(self._send)

    def _send(self, kind: FrameKind, shard: int, body: bytes, flags: int) -> None:
        answer = msgspec.msgpack.decode(body, type=AnswerBody)
        self.answers.append((answer.number, answer.outcomes))

    def client_of(self, channel: int) -> ChannelClient | None:
        return ChannelClient(CLIENT, None) if channel == 1 else None

    def mark_row(self, shard: int, mark: BlockMark) -> Change:
        return self._marks.put(shard, *NODE, mark)

    def apply(self, found: list[Operation], client_id: str | None) -> AppliedRows:
        return self._rows.apply(found, client_id)

    def carry_out(self, effects: list[Effect]) -> None:
        self.effects += effects

    def release(self, channel: int, ending: Ending) -> None:
        raise AssertionError("nothing is released")

    def tell_presence(self, entry: PresenceEntry) -> None:
        raise AssertionError("no client connects")

    def withdraw(self, request: ClaimRequest) -> None:
        raise AssertionError("nothing is withdrawn")

    def when_known(self, effects: list[Effect], on_done: Callable[[], None]) -> None:
        on_done()

    def when_retained(self, shard: int, on_done: Callable[[], None]) -> None:
        on_done()

    def when_forwarded(self, on_done: Callable[[], None]) -> None:
        on_done()

    def producer_sequence(self, shard: int, name: bytes) -> int:
        return self.world.log.producer_mark(shard, name).sequence

    def reserve(self, message: Message) -> bool:
        return True

    def give_back(self, message: Message) -> None: ...

    def is_batch_open(self, name: str, base: int, user_name: str | None) -> bool:
        return True

    def new_key(self, name: str, base: int, key: bytes, sender: KeySender) -> NewKey | None:
        raise AssertionError("no message has a key")

    def note_live(self, name: bytes, sequence: int) -> None: ...

    def is_congested(self) -> bool:
        return self.world.log.is_congested

    @property
    def shard(self) -> int:
        return self.world.log.shard_of(CLIENT)

    def send(self, number: int, *entries: BlockEntry, next_number: int = 0) -> None:
        body = msgspec.msgpack.encode(BlockBody(number, 0, next_number, list(entries)))
        self.blocks.on_frame(self.shard, 0, body)


def message(topic: bytes, text: bytes, *, retain: bool = False) -> bytes:
    return encode_record(topic, text, 1, retain, CLIENT)


def make() -> tuple[World, CorePort]:
    world = World(history={"topics": ["kept/#"]})
    return world, CorePort(world)


def recorded(world: World) -> list[bytes]:
    scan = world.log.replay(["#"], 0, with_session_only=True)
    return [record.payload for _, record in scan.next(100, slice_s=1.0)]


def test_messages_of_a_node_reach_subscribers_of_the_core_and_the_log() -> None:
    world, core = make()
    with world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("#", qos=0)

        core.send(1, PublishEntry(1, message(b"kept/a", b"1")), PublishEntry(1, message(b"live", b"2")), PublishEntry(2, b""))
        world.settle()

        assert core.answers == [(1, {1: NOT_RECORDED, 2: FENCED})]
        assert sorted(payloads(subscriber.take())) == [b"1", b"2"]
        assert recorded(world) == [b"1"]


def test_a_crash_before_the_answer_records_nothing_twice() -> None:
    world, core = make()
    with world:
        entries = [
            PublishEntry(1, message(b"kept/a", b"1"), SentNumber(b"mqtt/ann", 5, 9)),
            PublishEntry(1, message(b"live", b"2")),
        ]
        core.blocks.lost()
        core.send(1, *entries)
        world.settle()

        world.crash()
        core.start()
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("#", qos=0)
        core.send(1, *entries, next_number=2)
        world.settle()

        assert core.answers == [(1, {1: NOT_RECORDED})]
        assert recorded(world) == [b"1"]
        assert payloads(subscriber.take()) == [b"2"], "it may not have been delivered before the crash"
        assert world.log.producer_mark(core.shard, b"mqtt/ann") == (5, 9)


def test_a_retained_message_of_a_node_is_stored_with_its_block() -> None:
    world, core = make()
    with world:
        core.send(
            1, PublishEntry(1, message(b"live", b"old", retain=True)), PublishEntry(1, message(b"kept/a", b"1", retain=True))
        )
        core.send(2, PublishEntry(1, message(b"live", b"new", retain=True)))
        world.settle()
        assert core.answers == [(1, {0: UNHEARD, 1: UNHEARD}), (2, {0: UNHEARD})]

        world.crash()

        assert {each.message.topic: each.message.payload for each in world.broker.turn_writer.storage.retained.load()} == {
            b"live": b"new",
            b"kept/a": b"1",
        }


def test_rows_of_a_node_are_written_with_its_message() -> None:
    world, core = make()
    with world:
        session = PutSession(SessionRow(CLIENT, None, 60, False, 1.0, 0.0, 3))
        rows = operations.encode([session, PutCursor(CLIENT, CursorRow((1, 1), ())), PutReceived(CLIENT, 9)])
        core.send(1, PublishEntry(1, message(b"kept/a", b"1")), RowsEntry(1, rows))
        assert core.effects == []

        world.settle()

        assert core.answers == [(1, {0: UNHEARD})]
        assert len(core.effects) == 1
        (stored,) = world.broker.turn_writer.storage.sessions.load()
        assert (stored.session.guard, stored.received) == (3, [9])


def test_a_full_disk_refuses_the_block_as_a_whole() -> None:
    world, core = make()
    with world:
        world.fill_disk()
        core.send(1, PublishEntry(1, message(b"kept/a", b"1")), PublishEntry(1, message(b"live", b"2")))
        world.settle()
        world.free_disk()
        core.send(2, PublishEntry(1, message(b"kept/a", b"2")))
        world.settle()

        assert core.answers == [(1, {1: NOT_RECORDED, -1: 0x97}), (2, {-1: 0x97})]
        assert recorded(world) == []
