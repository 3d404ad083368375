"""A core's side of a node's blocks: what it refuses to read, what it leaves unanswered, and what it remembers."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.base.errors import BraidError
from braidmq.broker.ports import CursorRow
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.blocks import FENCED, FRESH, BlocksOutOfOrder, UsedIncarnation
from braidmq.cluster.protocol.operations import BadOperation, PutCursor
from braidmq.cluster.protocol.parts import MORE, BodyParts, split
from braidmq.cluster.registry.messages import Ending
from braidmq.lane.records.records import Record, encode_record
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import (
    AnswerBody,
    BlockBody,
    BlockEntry,
    KeyOfBatch,
    PresenceEntry,
    PublishEntry,
    ReleaseEntry,
    RowsEntry,
    SentNumber,
)
from braidmq.storage.rows.changes import WriteRefusal
from tests.support.simulator.blocks import Client, Home, Wire, payloads
from tests.support.simulator.lane import Bench
from tests.support.simulator.network import Network

UNHEARD = 0x10  # the reason code: no matching subscribers


class Core:
    """A home with one client on a node, whose frames the test makes."""

    def __init__(self) -> None:
        self.ann = Client(Bench(), "ann", 1, 0)
        self.home = Home(Network[Wire](1), {1: self.ann})
        self.answers: list[tuple[int, dict[int, int]]] = []
        self.flags: list[int] = []
        self.connect()

    def connect(self) -> None:
        self.home.blocks.connected(self._send)

    def _send(self, kind: FrameKind, shard: int, body: bytes, flags: int) -> None:
        assert kind is FrameKind.BLOCK_ANSWERS
        answer = msgspec.msgpack.decode(body, type=AnswerBody)
        self.answers.append((answer.number, answer.outcomes))
        self.flags.append(flags)

    def send(self, number: int, *entries: BlockEntry, confirmed: int = 0, next_number: int = 0, flags: int = 0) -> None:
        body = msgspec.msgpack.encode(BlockBody(number, confirmed, next_number, list(entries)))
        self.home.blocks.on_frame(0, flags, body)

    def commit(self) -> None:
        self.home.end_turn()
        self.home.disk.commit()


def message(text: bytes = b"m", topic: bytes = b"kept", publisher: str = "ann", qos: int = 1, **more: int) -> bytes:
    return encode_record(topic, text, qos, False, publisher, **more)  # type: ignore[arg-type]


def test_a_block_is_answered_after_its_commit() -> None:
    core = Core()
    core.send(1, PublishEntry(1, message()))
    core.home.end_turn()
    assert core.answers == []

    core.home.disk.commit()

    assert core.answers == [(1, {0: UNHEARD})]


def test_a_commit_that_is_in_doubt_is_not_answered() -> None:
    core = Core()
    core.send(1, PublishEntry(1, message()))
    core.home.end_turn()

    core.home.disk.written.pop().refused(WriteRefusal("unknown", 60.0, is_in_doubt=True))
    core.send(1, PublishEntry(1, message()), next_number=2)

    assert core.answers == []


def test_a_release_in_a_block_that_the_home_had_before_it_restarted_has_no_will() -> None:
    core = Core()
    core.send(1, PublishEntry(1, message()), ReleaseEntry(1, "publish"))
    core.home.end_turn()
    core.home.crash(kept=1)
    core.connect()

    core.send(1, PublishEntry(1, message()), ReleaseEntry(1, "publish"), next_number=2)

    assert core.home.released == [(1, Ending.PUBLISH), (1, Ending.REPEATED)]
    assert core.answers == [(1, {})]
    assert payloads(core.home, core.ann) == [b"m"]


EVENT = PresenceEntry("ann", [1, 0, 0, 0], False, 7, None, "10.0.0.1", 4000, "tcp:default", 5, 60, True, 0)


def test_r20_an_event_of_a_block_that_the_home_had_before_it_restarted_is_told_again() -> None:
    core = Core()
    core.send(1, PublishEntry(1, message()), EVENT)
    core.home.end_turn()
    core.home.crash(kept=1)  # perhaps before subscribers were told
    core.connect()

    core.send(1, PublishEntry(1, message()), EVENT, next_number=2)

    assert core.home.told == [EVENT, EVENT]
    assert core.answers == [(1, {})]


def test_r20_an_event_is_told_once_while_the_home_lives_and_leaves_nothing_on_disk() -> None:
    core = Core()
    core.send(1, EVENT)
    assert core.answers == [(1, {})]
    assert core.home.disk.written == []

    core.connect()
    core.send(1, EVENT, next_number=2)

    assert core.home.told == [EVENT]
    assert core.answers == [(1, {}), (1, {})]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (PublishEntry(1, b"\x01"), BadFrame),
        (PublishEntry(1, message(publisher="bob")), BadFrame),
        (PublishEntry(1, message(topic=b"\xff")), BadFrame),
        (RowsEntry(1, b"\x91\x91\xa4Evil"), BadOperation),
        (ReleaseEntry(1, "whatever"), BadFrame),
    ],
)
def test_a_block_with_an_invalid_entry_is_not_taken_however_often_it_comes(entry: BlockEntry, error: type[BraidError]) -> None:
    core = Core()

    for _ in range(2):
        with pytest.raises(error):
            core.send(1, PublishEntry(1, message()), entry)
    core.commit()

    assert core.answers == []
    assert core.home.disk.records == []
    assert core.home.blocks.unanswered_bytes == 0


EMPTY_BLOCK = msgspec.msgpack.encode(BlockBody(1, 0, 0, []))


@pytest.mark.parametrize("body", [b"", b"\xc1", EMPTY_BLOCK[:-1], EMPTY_BLOCK + b"\0", EMPTY_BLOCK[:-1] + b"\x91\x91\xa1X"])
def test_a_block_that_cannot_be_read_closes_the_connection(body: bytes) -> None:
    core = Core()

    with pytest.raises(BadFrame):
        core.home.blocks.on_frame(0, 0, body)
    with pytest.raises(BadFrame):
        core.home.blocks.on_frame(7, 0, EMPTY_BLOCK)
    core.home.blocks.on_frame(0, 0, EMPTY_BLOCK)

    assert core.answers == [(1, {})]


def test_a_gap_in_block_numbers_and_a_reused_incarnation_close_the_connection() -> None:
    core = Core()
    with pytest.raises(BlocksOutOfOrder):
        core.send(2, PublishEntry(1, message()))
    core.send(1, PublishEntry(1, message()))

    with pytest.raises(UsedIncarnation):
        core.send(1, PublishEntry(1, message()), next_number=1)


def test_rows_of_another_client_are_fenced() -> None:
    core = Core()
    rows = operations.encode([PutCursor("bob", CursorRow((1,), ()))])

    core.send(1, RowsEntry(1, rows), RowsEntry(9, rows), PublishEntry(9, message()), PublishEntry(1, message()))
    core.commit()

    assert core.answers == [(1, {0: FENCED, 1: FENCED, 2: FENCED, 3: UNHEARD})]
    assert core.home.disk.cursors == {}


def test_c32_a_producers_message_that_is_not_above_the_last_one_is_fenced() -> None:
    core = Core()
    core.home.sequences = {b"p": 97}

    core.send(
        1, PublishEntry(1, message(b"97"), SentNumber(b"p", 97, 1)), PublishEntry(1, message(b"98"), SentNumber(b"p", 98, 2))
    )
    core.send(2, PublishEntry(1, message(b"again"), SentNumber(b"p", 98, 2)))
    core.home.end_turn()
    marks = core.home.disk.written[0].marks()
    core.home.disk.commit()

    assert sorted(core.answers) == [(1, {0: FENCED, 1: UNHEARD}), (2, {0: FENCED})]
    assert payloads(core.home, core.ann) == [b"98"]
    assert marks == [(0, b"p", 98, 2)]


def test_a_producers_message_that_was_refused_may_come_again() -> None:
    core = Core()
    core.home.disk.is_full = True
    core.send(1, PublishEntry(1, message(b"1"), SentNumber(b"p", 1, 1)))
    core.home.end_turn()
    core.home.disk.is_full = False

    core.send(2, PublishEntry(1, message(b"1"), SentNumber(b"p", 1, 1)), flags=1)
    core.commit()

    assert core.answers == [(1, {-1: 0x97}), (2, {0: UNHEARD})]
    assert payloads(core.home, core.ann) == [b"1"]


def test_a_node_with_much_unanswered_is_not_read_from_until_there_is_room() -> None:
    core = Core()
    core.home.blocks._bytes_max = 1000
    core.send(1, PublishEntry(1, message(bytes(2000))))
    before = core.home.blocks.is_full, core.home.rooms

    core.commit()

    assert before == (True, 0)
    assert not core.home.blocks.is_full
    assert core.home.rooms == 1


def test_answers_are_dropped_while_the_node_is_away_and_given_when_it_asks_again() -> None:
    core = Core()
    core.send(1, PublishEntry(1, message()))
    core.home.blocks.lost()
    core.commit()
    assert core.answers == []

    core.connect()
    core.send(1, PublishEntry(1, message()), next_number=2)

    assert core.answers == [(1, {})]
    assert payloads(core.home, core.ann) == [b"m"]


def test_c39_a_message_expires_by_the_clock_of_the_home() -> None:
    core = Core()
    wrong = 4_000_000_000_000_000  # the node's wall clock is far ahead
    value = encode_record(b"kept", b"m", 1, False, "ann", b"\x02\x00\x00\x00\x3c", wrong, 1)

    core.send(1, PublishEntry(1, value))
    core.home.end_turn()

    (((_, stored),),) = core.home.disk.written[0].entries.values()
    assert Record(1, stored).expires_at < wrong
    assert Record(1, stored).expiry_offset == 1


def test_a_body_in_parts_is_bounded_for_all_destinations_together() -> None:
    parts = BodyParts(whole_bytes_max=100)
    assert parts.add(1, MORE, bytes(60)) is None
    assert parts.add(2, 0, b"whole") == b"whole"
    with pytest.raises(BadFrame):
        parts.add(3, MORE, bytes(41))

    assert parts.add(1, 0, b"end") == bytes(60) + b"end"
    assert [(len(part), flags) for part, flags in split(bytes(25), 10)] == [(10, MORE), (10, MORE), (5, 0)]
    assert list(split(b"", 10)) == [(b"", 0)]


def stopping(sequence: int) -> SentNumber:
    return SentNumber(b"p", sequence, 1, stops=True)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_c18_nothing_is_recorded_after_a_rejected_message_of_a_producer_that_stops(is_restarted: bool) -> None:
    core = Core()
    core.home.retained_full = True
    rejected = PublishEntry(1, encode_record(b"kept", b"2", 1, True, "ann"), stopping(2))
    first = [PublishEntry(1, message(b"1"), stopping(1)), rejected]
    core.send(1, *first)
    core.home.end_turn()
    if is_restarted:
        core.home.crash(kept=1)
        core.home.sequences = {b"p": 1}
        core.connect()
        core.send(1, *first, next_number=2)

    core.send(2, PublishEntry(1, message(b"3"), stopping(3)))
    core.commit()

    assert (2, {0: FENCED}) in core.answers
    assert payloads(core.home, core.ann) == [b"1"]


def test_nothing_is_recorded_after_a_block_that_was_refused_unread_with_a_producer_that_stops() -> None:
    core = Core()
    core.home.disk.is_full = True
    core.send(1, PublishEntry(1, message(b"other")))
    core.home.end_turn()
    core.home.disk.is_full = False
    core.send(2, PublishEntry(1, message(b"1"), stopping(1)))

    core.send(3, PublishEntry(1, message(b"2"), stopping(2)), flags=FRESH)
    core.commit()

    assert core.answers == [(1, {-1: 0x97}), (2, {-1: 0x97}), (3, {0: FENCED})]
    assert payloads(core.home, core.ann) == []


def test_a_message_of_a_batch_that_is_closed_is_fenced() -> None:
    core = Core()
    core.home.batches = {"n": 5}

    core.send(1, PublishEntry(1, message(b"1"), SentNumber(b"p", 1, 1, key=KeyOfBatch("n", 4, b"k"))))
    core.commit()

    assert core.answers == [(1, {0: FENCED})]
    assert payloads(core.home, core.ann) == []
