"""Messages of other nodes' clients: plain ones are recorded at once, all others are left to the pipeline."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from braidmq.lane.path.message import Message
from braidmq.lane.peers.node_entries import END, FIRST, EntryWaiter, NodeEntries, NodeEntry, read_plain, read_run
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.records.records import VALUE_BYTES_MAX, Record, encode_record
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


class Sent(NamedTuple):
    """What a node sends of a message; `net.proto_v1.PublishEntry`."""

    channel: int
    value: bytes
    producer: object | None = None
    received: int = 0


class Sender(NamedTuple):
    """The client of a channel."""

    client_id: str


def read(entries: list[object], start: int = 0, clients: dict[int, Sender | None] | None = None) -> tuple[list[int], int]:
    """The indexes of the messages that are read in one call, and where it ends."""
    found: list[NodeEntry] = []
    end = read_run(entries, start, Sent, {1: Sender("c"), 2: Sender("d")} if clients is None else clients, found)
    assert all(each.is_plain and each.entry is entries[each.index] for each in found)
    return [each.index for each in found], end


def test_plain_messages_that_follow_each_other_are_read_at_once() -> None:
    entries: list[object] = [Sent(1, value_of()), Sent(2, value_of(publisher="d")), Sent(1, value_of(b"other"))]

    assert read(entries) == ([0, 1, 2], 3)
    assert read(entries, 2) == ([2], 3)
    assert read(entries, 3) == ([], 3)


@pytest.mark.parametrize(
    "other",
    [
        "no message",
        Sent(1, value_of(), producer="a number"),
        Sent(1, value_of(), received=9),
        Sent(1, value_of(expires_at=10**15)),
        Sent(1, value_of(publisher="d")),
        Sent(2, value_of()),
        Sent(3, value_of()),
        Sent(4, value_of()),
    ],
    ids=["other", "numbered", "noted", "expires", "name", "channel", "unknown channel", "fenced channel"],
)
def test_reading_ends_at_anything_else(other: object) -> None:
    clients = {1: Sender("c"), 2: Sender("d"), 4: None}

    assert read([Sent(1, value_of()), other, Sent(1, value_of())], 0, clients) == ([0], 1)


def test_a_message_keeps_what_the_home_has_to_know() -> None:
    found: list[NodeEntry] = []
    sender, value = Sender("c"), value_of(b"a/b")

    read_run([Sent(1, value)], 0, Sent, {1: sender}, found)

    assert (found[0].client, found[0].value, found[0].message.topic) == (sender, value, b"a/b")


def entries_of(bench: Bench, *, history_qos: int = 3, flags: int = 0) -> tuple[NodeEntries, Recorder]:
    bench.state.marks = [0]
    bench.routes.history_qos = history_qos
    bench.routes.inspector = lambda topic: flags
    recorder = Recorder(bench.lane, lambda: None)
    return NodeEntries(recorder, bench.routes), recorder


def sent(index: int, topic: bytes = b"t", qos: int = 1, value: bytes | None = None, **more: bool) -> NodeEntry:
    """A message as the home has read it."""
    is_plain = more.pop("is_plain", True)
    message = Message(topic, b"payload", qos, more.get("retain", False), "c")
    return NodeEntry(index, None, message, value_of(topic, qos) if value is None else value, None, is_plain)


def test_messages_that_no_durable_session_wants_are_shown_at_once() -> None:
    entries, recorder = entries_of(Bench())
    waiter = Waiter()

    assert entries.publish([sent(0), sent(3)], 0, 0, waiter) == 2

    assert recorder.take() is None
    assert (waiter.live, waiter.is_written) == ([0, 3], False)
    assert (waiter.codes, waiter.left) == ({0: 0x10, 3: 0x10}, 1), "nobody has subscribed, and the caller has the last part"


def test_a_message_that_is_shown_later_is_waited_for() -> None:
    bench = Bench()
    entries, recorder = entries_of(bench)
    recorder.outcomes.on_more = lambda: None
    bench.state.work_max = 0
    waiter = Waiter()

    entries.publish([sent(0), sent(1)], 0, 0, waiter)
    assert (waiter.left, waiter.codes) == (3, {})
    recorder.outcomes.finish()

    assert (waiter.left, waiter.codes) == (1, {0: 0x10, 1: 0x10})


def test_messages_that_must_be_kept_are_recorded_and_settled_when_they_are_shown() -> None:
    bench = Bench()
    entries, recorder = entries_of(bench)
    bench.routes.keep_all = True
    waiter = Waiter()

    assert entries.publish([sent(5), sent(6)], 0, 0, waiter) == 2
    assert (waiter.live, waiter.is_written) == ([], True)
    block = recorder.take()
    assert block is not None
    assert [Record(7, value).payload for _, value in block.entries[0]] == [b"payload", b"payload"]
    block.committed({0: [7, 8]})

    assert waiter.codes == {5: 0x10, 6: 0x10}, "nobody has subscribed"
    assert (waiter.left, waiter.heard) == (1, [])


def test_publishing_goes_on_behind_a_message_that_took_another_way() -> None:
    entries, recorder = entries_of(Bench())
    waiter = Waiter()
    messages = [sent(0), sent(1, is_plain=False), sent(2)]

    assert entries.publish(messages, 0, 0, waiter) == 1
    assert entries.publish(messages, 1, 0, waiter) == 1
    assert entries.publish(messages, 2, 0, waiter) == 3

    assert waiter.live == [0, 2]
    assert recorder.take() is None


@pytest.mark.parametrize(
    "other",
    [
        sent(0, b"a/+"),
        sent(0, b""),
        sent(0, retain=True),
        sent(0, is_plain=False),
        sent(0, value=bytes(VALUE_BYTES_MAX + 1)),
    ],
    ids=["wildcard", "no topic", "retained", "numbered", "too large"],
)
def test_any_other_message_is_left_to_the_pipeline(other: NodeEntry) -> None:
    bench = Bench()
    entries, recorder = entries_of(bench)
    bench.routes.keep_all = True
    waiter = Waiter()

    assert entries.publish([other], 0, 0, waiter) == 0

    assert recorder.take() is None
    assert (waiter.live, waiter.is_written, waiter.left) == ([], False, 1)


def test_a_message_whose_route_has_flags_is_left_to_the_pipeline() -> None:
    entries, recorder = entries_of(Bench(), flags=FLAGGED)

    assert entries.publish([sent(0)], 0, 0, Waiter()) == 0
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
