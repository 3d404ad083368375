"""Rows of retained messages: the released bytes, what is read back of them, and when it expires."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.path.message import Message
from braidmq.storage.format import kept_messages
from braidmq.storage.rows.changes import Change, Put
from braidmq.storage.rows.messages import MessageRows
from braidmq.storage.rows.retained import LogRetained
from tests.storage.golden import golden
from tests.storage.kept import Clocks, Fields, fields_of, make_message, messages, put, user_names
from tests.storage.message_log import Stage

TOPICS = ("a", "a/", "a/b", "aa", "\x01", "\U0010ffff", "$SYS/x")


def loaded(stage: Stage) -> dict[bytes, tuple[Fields, str | None]]:
    found = [(each.message, each.user_name) for each in LogRetained(stage.log).load()]
    assert len({message.topic for message, _ in found}) == len(found)
    return {message.topic: (fields_of(message), user_name) for message, user_name in found}


def test_rows_of_kept_messages_are_the_released_bytes() -> None:
    expiring = make_message(retain=False, expires_at=1.0)
    written = {
        "retained-key": kept_messages.retained_key(b"a/b"),
        "retained-row": kept_messages.encode_message(make_message(), "bob", 0, 1_000_000),
        "delayed-key": kept_messages.delayed_key(1_700_000_000_000, 1),
        "delayed-row": kept_messages.encode_message(expiring, None, 2_000_000, 1_000_000),
    }

    assert written == golden("kept messages")


def test_released_bytes_of_kept_messages_are_read() -> None:
    stored = golden("kept messages")
    rows = MessageRows(Clocks(wall=1.0).wall, Clocks(now=10.0).now)

    retained = rows.message_of(stored["retained-row"], "it")
    assert (fields_of(retained.message), retained.user_name) == (fields_of(make_message()), "bob")
    assert retained.message.expires_at == 0.0
    delayed = rows.message_of(stored["delayed-row"], "it")
    assert (fields_of(delayed.message), delayed.user_name) == (fields_of(make_message(retain=False, expires_at=1.0)), None)
    # One second after the wall clock's, that is, one after the monotonic clock's 10.
    assert delayed.message.expires_at == 11.0
    assert kept_messages.delayed_due_ms(stored["delayed-key"]) == 1_700_000_000_000
    assert kept_messages.decode_message(stored["retained-row"])[0].published_at == 1_000_000


def test_the_message_of_a_topic_is_read_and_a_row_of_another_topic_is_reported(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        retained = LogRetained(stage.log)
        put(stage, retained.put(make_message("a/b", b"kept"), "bob"))
        found = retained.read(b"a/b")
        wrong = retained.put(make_message("a/b"), None)
        put(stage, Put(stage.log.shard_of("x"), kept_messages.retained_key(b"x"), wrong.value))

        assert found is not None
        assert (found.message.payload, found.user_name) == (b"kept", "bob")
        assert retained.read(b"a/c") is None
        with pytest.raises(Corruption, match="another topic"):
            retained.read(b"x")


@given(messages(), user_names)
def test_a_kept_message_is_read_back_as_it_was(message: Message, user_name: str | None) -> None:
    stored = MessageRows().message_of(MessageRows().row_of(message, user_name), "it")

    assert (fields_of(stored.message), stored.user_name) == (fields_of(message), user_name)
    assert stored.message.expires_at == 0.0


@given(st.floats(0.001, 1e9), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_message_expires_by_the_wall_clock_whatever_the_other_clock_says_after_a_restart(
    left_s: float, away_s: float, now_after: float
) -> None:
    clocks = Clocks()
    rows = MessageRows(clocks.wall, clocks.now)
    row = rows.row_of(make_message(expires_at=clocks.now() + left_s), None)
    clocks.reboot(away_s, now_after)

    expires_at = rows.message_of(row, "it").message.expires_at

    assert expires_at > 0.0  # 0 would be never
    assert expires_at == pytest.approx(max(now_after + left_s - away_s, 0.0), abs=1e-5)


@pytest.mark.parametrize("name", ["retained-row", "delayed-row"])
def test_a_newer_row_of_a_kept_message_is_rejected_with_a_clear_message(name: str) -> None:
    stored = golden("kept messages")[name]

    for value in (b"\x02" + stored[1:], b"\x02"):
        with pytest.raises(UsageError, match="it cannot be read: its row has the format 2, newer than 1"):
            MessageRows().message_of(value, "it")


def test_a_newer_record_inside_of_a_row_is_rejected_with_a_clear_message() -> None:
    stored = bytearray(golden("kept messages")["delayed-row"])
    stored[2] = 2

    with pytest.raises(UsageError, match=r"it cannot be read: .* newer than 1"):
        MessageRows().message_of(bytes(stored), "it")


@pytest.mark.parametrize(("name", "payload_bytes"), [("retained-row", 2), ("delayed-row", 2)])
def test_a_broken_row_of_a_kept_message_is_corruption(name: str, payload_bytes: int) -> None:
    whole = golden("kept messages")[name]

    # A payload has no length of its own: cut there, it is a shorter one.
    for value in (*(whole[:size] for size in range(len(whole) - payload_bytes)), b"\0" + whole[1:]):
        with pytest.raises(Corruption, match="it cannot be read"):
            MessageRows().message_of(value, "it")


@pytest.mark.parametrize("broken", ["01 01 0001 ff 01 01 0001 0000 61", "01 00 01 01 0001 0001 61 ff"], ids=["user", "publisher"])
def test_names_that_are_not_utf8_are_corruption(broken: str) -> None:
    with pytest.raises(Corruption, match="it cannot be read"):
        MessageRows().message_of(bytes.fromhex(broken), "it")


def test_a_message_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_messages, "VALUE_BYTES_MAX", 1000)
    MessageRows().row_of(make_message(payload=bytes(980)), None)

    with pytest.raises(UsageError, match="cannot be stored"):
        MessageRows().row_of(make_message(payload=bytes(1000)), None)


def test_a_retained_message_is_in_the_shard_of_its_topic_for_any_publisher(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=3) as stage:
        retained = LogRetained(stage.log)
        for topic in TOPICS:
            shard = zlib.crc32(topic.encode()) % 3
            assert {retained.put(make_message(topic, publisher=each), None).shard for each in ("p", "q", "")} == {shard}
            assert retained.remove(topic.encode()).shard == shard


def test_a_retained_message_replaces_the_one_before(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        retained = LogRetained(stage.log)
        put(stage, retained.put(make_message("a", b"1", publisher="p"), "u"), retained.put(make_message("a", b"2"), None))
        put(stage, retained.put(make_message("a", b"3", publisher="q"), "v"))

        assert loaded(stage) == {b"a": (fields_of(make_message("a", b"3", publisher="q")), "v")}


def test_an_expired_message_is_loaded_as_such_so_that_its_row_can_be_removed(tmp_path: Path) -> None:
    clocks = Clocks()
    with Stage(tmp_path) as stage:
        retained = LogRetained(stage.log, wall=clocks.wall, now=clocks.now)
        put(stage, retained.put(make_message("a", expires_at=clocks.now() + 5), None))
        clocks.pass_time(6)

        (stored,) = retained.load()
        assert stored.message.expires_at == pytest.approx(clocks.now() - 1)


def test_a_row_under_another_topic_is_corruption_that_names_the_topic(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        retained = LogRetained(stage.log)
        change = retained.put(make_message("a/b"), None)
        put(stage, msgspec.structs.replace(change, key=kept_messages.retained_key(b"a/c")))

        with pytest.raises(Corruption, match="'a/c'"):
            list(retained.load())


@pytest.mark.parametrize(("version", "error"), [(2, UsageError), (0, Corruption)])
def test_a_message_that_cannot_be_loaded_is_named_by_its_topic(tmp_path: Path, version: int, error: type[Exception]) -> None:
    with Stage(tmp_path) as stage:
        retained = LogRetained(stage.log)
        change = retained.put(make_message("a/b"), None)
        put(stage, Put(change.shard, change.key, bytes((version,)) + change.value[1:]))

        with pytest.raises(error, match="the retained message of topic 'a/b'"):
            list(retained.load())


Step = tuple[str, Message | None, str | None]
steps = st.lists(
    st.sampled_from(TOPICS).flatmap(
        lambda topic: st.tuples(st.just(topic), st.none() | messages(st.just(topic)), user_names),
    ),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(steps, st.integers(1, 5))
def test_loading_returns_what_was_put_and_not_removed(history: list[Step], stride: int) -> None:
    model: dict[bytes, tuple[Fields, str | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with Stage(Path(folder), durability="os") as stage:
            retained = LogRetained(stage.log)
            for begin in range(0, len(history), stride):
                changes: list[Change] = []
                for topic, message, user_name in history[begin : begin + stride]:
                    if message is None:
                        changes.append(retained.remove(topic.encode()))
                        model.pop(topic.encode(), None)
                    else:
                        changes.append(retained.put(message, user_name))
                        model[topic.encode()] = (fields_of(message), user_name)
                put(stage, *changes)
            assert loaded(stage) == model

        with Stage(Path(folder), durability="os") as stage:
            assert loaded(stage) == model
