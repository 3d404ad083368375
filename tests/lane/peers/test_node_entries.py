"""Messages of other nodes' clients: plain ones are recorded at once, all others are left to the pipeline."""

from __future__ import annotations

import pytest

from braidmq.lane.path.message import Message
from braidmq.lane.peers.node_entries import END, FIRST, LIVE, LONG_WAY, TAKEN, EntryWaiter, NodeEntries, read_plain
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.records.records import VALUE_BYTES_MAX, encode_record
from tests.support.simulator.lane import Bench

FLAGGED = 1


class Waiter(EntryWaiter):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def on_end(self) -> None:
        self.heard.append("end")

    def on_ready(self) -> None:
        self.heard.append("ready")


def value_of(topic: bytes = b"t", qos: int = 1, publisher: str = "c", expires_at: int = 0, retain: bool = False) -> bytes:
    properties = bytes((2, 0, 0, 0, 9)) if expires_at else b""
    return encode_record(topic, b"payload", qos, retain, publisher, properties, expires_at, 1 if expires_at else -1)


def test_a_plain_record_becomes_its_message() -> None:
    message = read_plain(value_of(b"a/b", 2), "c")

    assert message is not None
    assert (message.topic, message.payload, message.qos, message.publisher) == (b"a/b", b"payload", 2, "c")


@pytest.mark.parametrize(
    "value",
    [
        value_of(qos=0),
        value_of(publisher="another"),
        value_of(expires_at=10**15),
        value_of(b"\xff"),
        value_of()[:5],
        b"",
        bytes((99,)) + value_of()[1:],
    ],
    ids=["QoS 0", "another client's", "it expires", "no UTF-8", "cut", "empty", "newer"],
)
def test_any_other_record_is_left_to_the_caller(value: bytes) -> None:
    assert read_plain(value, "c") is None


def entries_of(bench: Bench, *, history_qos: int = 3, flags: int = 0) -> tuple[NodeEntries, Recorder]:
    bench.state.marks = [0]
    bench.routes.history_qos = history_qos
    bench.routes.inspector = lambda topic: flags
    recorder = Recorder(bench.lane, lambda: None)
    return NodeEntries(recorder, bench.routes), recorder


def test_a_message_that_no_durable_session_wants_is_live() -> None:
    entries, recorder = entries_of(Bench())

    assert entries.record(Message(b"t", b"", 1, False, "c"), value_of(), 0, Waiter(), FIRST) == LIVE
    assert recorder.take() is None


def test_a_message_that_must_be_kept_is_recorded_and_settled_when_it_is_shown() -> None:
    bench = Bench()
    entries, recorder = entries_of(bench)
    bench.routes.keep_all = True
    waiter = Waiter()

    assert entries.record(Message(b"t", b"payload", 1, False, "c"), value_of(), 0, waiter, FIRST + 5) == TAKEN
    block = recorder.take()
    assert block is not None
    block.committed({0: [7]})

    assert waiter.codes == {5: 0x10}, "nobody has subscribed"
    assert (waiter.left, waiter.heard) == (1, [])


@pytest.mark.parametrize("topic", [b"a/+", b""])
def test_a_message_with_an_invalid_topic_takes_the_long_way(topic: bytes) -> None:
    entries, _ = entries_of(Bench())

    assert entries.record(Message(topic, b"", 1, False, "c"), value_of(topic), 0, Waiter(), FIRST) == LONG_WAY


def test_retained_flagged_and_too_large_messages_take_the_long_way() -> None:
    bench = Bench()
    entries, recorder = entries_of(bench)
    bench.routes.keep_all = True

    assert entries.record(Message(b"t", b"", 1, True, "c"), value_of(retain=True), 0, Waiter(), FIRST) == LONG_WAY
    assert entries.record(Message(b"t", b"", 1, False, "c"), bytes(VALUE_BYTES_MAX + 1), 0, Waiter(), FIRST) == LONG_WAY
    flagged, _ = entries_of(Bench(), flags=FLAGGED)
    assert flagged.record(Message(b"t", b"", 1, False, "c"), value_of(), 0, Waiter(), FIRST) == LONG_WAY
    assert recorder.take() is None


def test_a_block_waits_for_messages_that_are_not_written_and_for_nothing_else() -> None:
    waiter = Waiter()
    waiter.left = 2

    waiter.settle(None, 0, FIRST, 0)
    waiter.settle(None, 1, FIRST + 1, 0x10)
    assert (waiter.left, waiter.heard) == (1, [])
    waiter.settle(None, 1, FIRST + 2, 0)

    assert (waiter.heard, waiter.codes) == (["ready"], {1: 0x10})


def test_the_end_of_a_block_is_told() -> None:
    waiter = Waiter()

    waiter.settle(None, 1, END, 0)

    assert (waiter.heard, waiter.left) == (["end"], 1)
