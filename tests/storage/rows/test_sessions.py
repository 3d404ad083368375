"""Rows of durable sessions: the released bytes, what is read back of them, and which rows belong to whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.broker.ports import RELEASED, SENT, CursorRow, InFlight, SessionRow, StoredSession, SubscriptionRow
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.storage.format import session_rows as rows
from braidmq.storage.rows.changes import Change, Delete, Put
from braidmq.storage.rows.sessions import LogSessions
from tests.storage.golden import golden
from tests.storage.message_log import Stage, unexpected
from tests.storage.session_values import cursors, session_rows, subscription_rows, texts, wills

EPOCH = 1_700_000_000_000_000
SESSION = SessionRow("c1", "bob", 3600, False, 1.5, 2.5, 7)
ANONYMOUS = SessionRow("c1", None, 0xFFFFFFFF, True, 1.5, 0.0, 0)
STAYS_ANONYMOUS = SessionRow("c1", None, 0xFFFFFFFF, True, 1.5, 0.0, 0, stays_anonymous=True)
SUBSCRIPTION = SubscriptionRow("a/#", 1, True, False, b"\x0b\x05", (EPOCH, 1))
LOOK_BACK = SubscriptionRow("a/#", 2, False, True, b"", (EPOCH,), (258,))
CURSOR = CursorRow(
    (EPOCH, 0),
    (
        InFlight(1, 1, SENT, True, 1, EPOCH + 258),
        InFlight(258, 2, RELEASED, False, value=golden("log")["record-plain"]),
    ),
)
WILL = Will("w", b"x", 1, True, Properties(will_delay_interval=5))

READS: dict[str, Callable[[bytes], object]] = {
    "session-row": lambda value: rows.decode_session("c1", value),
    "session-row-anonymous": lambda value: rows.decode_session("c1", value),
    "session-row-stays": lambda value: rows.decode_session("c1", value),
    "subscription-row": lambda value: rows.decode_subscription("c1", "a/#", value),
    "subscription-row-back": lambda value: rows.decode_subscription("c1", "a/#", value),
    "cursor-row": lambda value: rows.decode_cursor("c1", value),
    "will-row": lambda value: rows.decode_will("c1", value),
    "received-row": lambda value: rows.check_received("c1", value),
}
# Where the part begins that is as long as it is: a value cut there is another value, not a broken one.
FIXED_BYTES = {"session-row": 30, "subscription-row": 20, "subscription-row-back": 20, "will-row": 11}

# Ids that begin with each other, and characters at both ends of UTF-8.
NEIGHBOURS = ["", "a", "a\x01", "a\x01b", "aa", "a/", "a\x7f", "a\xff", "a\U0010ffff", "\x01", "\U0010ffff"]


def put(stage: Stage, *changes: Change) -> None:
    stage.log.change(changes, on_commit=lambda: None, on_refused=unexpected)
    stage.settle()


def loaded(stage: Stage) -> dict[str, StoredSession]:
    found = list(LogSessions(stage.log).load())
    assert len({each.session.client_id for each in found}) == len(found)
    return {each.session.client_id: each for each in found}


def all_rows(sessions: LogSessions, client_id: str) -> list[Change]:
    """A row of every kind, and two where there may be many."""
    row = SessionRow(client_id, f"user of {client_id}", 60, False, 1.0, 2.0, 3)
    return [
        sessions.put_session(row),
        *(sessions.put_subscription(client_id, SubscriptionRow(each, 1, False, False, b"", (5,))) for each in ("a", "\x01/+")),
        sessions.put_cursor(client_id, CursorRow((9,), ())),
        sessions.put_will(client_id, WILL),
        *(sessions.put_received(client_id, each) for each in (1, 65_535)),
    ]


def removal(sessions: LogSessions, client_id: str) -> list[Change]:
    """What takes all of those away again."""
    return sessions.remove_session(client_id, ("a", "\x01/+"), (1, 65_535))


def test_rows_of_sessions_are_the_released_bytes() -> None:
    written = {
        "session-key": rows.session_key("c1"),
        "session-row": rows.encode_session(SESSION),
        "session-row-anonymous": rows.encode_session(ANONYMOUS),
        "session-row-stays": rows.encode_session(STAYS_ANONYMOUS),
        "subscription-key": rows.subscription_key("c1", "a/#"),
        "subscription-row": rows.encode_subscription(SUBSCRIPTION),
        "subscription-row-back": rows.encode_subscription(LOOK_BACK),
        "cursor-key": rows.cursor_key("c1"),
        "cursor-row": rows.encode_cursor(CURSOR),
        "will-key": rows.will_key("c1"),
        "will-row": rows.encode_will(WILL),
        "received-key": rows.received_key("c1", 7),
        "received-row": rows.RECEIVED_VALUE,
    }

    assert written == golden("sessions")


def test_released_bytes_of_sessions_are_read() -> None:
    stored = golden("sessions")
    read = {name: reads(stored[name]) for name, reads in READS.items()}

    assert read == {
        "session-row": SESSION,
        "session-row-anonymous": ANONYMOUS,
        "session-row-stays": STAYS_ANONYMOUS,
        "subscription-row": SUBSCRIPTION,
        "subscription-row-back": LOOK_BACK,
        "cursor-row": CURSOR,
        "will-row": WILL,
        "received-row": None,
    }


@pytest.mark.parametrize("name", READS)
def test_a_newer_row_of_a_session_is_rejected_with_a_clear_message(name: str) -> None:
    newer = b"\x02" + golden("sessions")[name][1:]

    for value in (newer, newer[:1], newer + bytes(100)):
        with pytest.raises(UsageError, match=r"client 'c1' has the format 2, newer than 1"):
            READS[name](value)


@pytest.mark.parametrize("name", READS)
def test_a_broken_row_of_a_session_is_corruption_that_names_the_client(name: str) -> None:
    whole = golden("sessions")[name]
    end = FIXED_BYTES.get(name, len(whole))

    for value in (*(whole[:size] for size in range(end)), b"\0" + whole[1:]):
        with pytest.raises(Corruption, match="client 'c1'"):
            READS[name](value)


@pytest.mark.parametrize("name", ["session-row-anonymous", "cursor-row", "received-row"])
def test_a_row_of_a_session_that_is_too_long_is_corruption(name: str) -> None:
    with pytest.raises(Corruption, match="client 'c1'"):
        READS[name](golden("sessions")[name] + b"\0")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("session-row", "01 03 00000e10 3ff8000000000000 4004000000000000 0000000000000007 ff"),
        ("will-row", "01 05 0001 ff 00"),
        ("will-row", "01 05 0001 77 02 1104"),
        ("will-row", "01 05 0001 77 85"),
    ],
    ids=["user name is not UTF-8", "topic is not UTF-8", "property of another packet", "no end of the properties' length"],
)
def test_invalid_text_and_properties_are_corruption(name: str, broken: str) -> None:
    with pytest.raises(Corruption, match="client 'c1'"):
        READS[name](bytes.fromhex(broken))


@given(texts, st.data())
def test_a_session_survives_writing_and_reading(client_id: str, data: st.DataObject) -> None:
    session = data.draw(session_rows(client_id))
    subscription = data.draw(subscription_rows())
    cursor = data.draw(cursors)
    will = data.draw(wills)

    assert rows.decode_session(client_id, rows.encode_session(session)) == session
    assert rows.decode_subscription(client_id, subscription.written, rows.encode_subscription(subscription)) == subscription
    assert rows.decode_cursor(client_id, rows.encode_cursor(cursor)) == cursor
    assert rows.decode_will(client_id, rows.encode_will(will)) == will


@pytest.mark.parametrize(
    "encode",
    [
        lambda: rows.encode_session(SessionRow("c", None, 2**32, False, 0.0, 0.0, 0)),
        lambda: rows.encode_subscription(SubscriptionRow("f", 0, False, False, b"", (-1,))),
        lambda: rows.encode_subscription(SubscriptionRow("f", 0, False, False, b"", (1, 2), (1,))),
        lambda: rows.encode_cursor(CursorRow((), (InFlight(65_536, 1, SENT, False),))),
        lambda: rows.encode_will(Will("t" * 65_536, b"")),
        lambda: rows.session_key("a\0b"),
    ],
    ids=["expiry", "position", "cursor of other shards", "packet id", "topic of a will", "NUL in a client id"],
)
def test_a_session_that_could_not_be_read_back_is_not_written(encode: Callable[[], bytes]) -> None:
    with pytest.raises(UsageError):
        encode()


def test_rows_are_in_the_home_shard_of_their_client(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        sessions = LogSessions(stage.log)
        changes = [*all_rows(sessions, "client-1"), *removal(sessions, "client-1"), sessions.remove_will("client-1")]
        changes += [sessions.remove_subscription("client-1", "a"), sessions.remove_received("client-1", 1)]

        assert {each.shard for each in changes if isinstance(each, Put | Delete)} == {stage.log.shard_of("client-1")}


def test_a_session_without_any_other_row_is_loaded(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        put(stage, LogSessions(stage.log).put_session(SESSION))

    with Stage(tmp_path) as stage:
        assert list(LogSessions(stage.log).load()) == [StoredSession(SESSION, CursorRow((), ()), [], None, [])]


@pytest.mark.parametrize("removed", NEIGHBOURS)
def test_removing_a_session_removes_its_rows_and_no_others(tmp_path: Path, removed: str) -> None:
    with Stage(tmp_path, shards=1) as stage:
        sessions = LogSessions(stage.log)
        put(stage, *(change for client_id in NEIGHBOURS for change in all_rows(sessions, client_id)))
        before = dict(stage.log.rows(0, rows.SESSION_PREFIX, rows.SESSIONS_END))
        own = {change.key for change in all_rows(sessions, removed) if isinstance(change, Put)}

        put(stage, *removal(sessions, removed))

        after = dict(stage.log.rows(0, rows.SESSION_PREFIX, rows.SESSIONS_END))
        assert before.keys() - after.keys() == own
        assert loaded(stage).keys() == set(NEIGHBOURS) - {removed}


def test_removing_a_session_removes_earlier_rows_of_the_batch_and_keeps_later_ones(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        sessions = LogSessions(stage.log)
        put(stage, *all_rows(sessions, "a"), *removal(sessions, "a"), sessions.put_session(ANONYMOUS))

        assert loaded(stage) == {"c1": StoredSession(ANONYMOUS, CursorRow((), ()), [], None, [])}

        put(stage, *removal(sessions, "c1"), sessions.put_session(SESSION))
        assert loaded(stage)["c1"].session == SESSION


def test_sessions_do_not_see_rows_of_their_neighbours(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1) as stage:
        sessions = LogSessions(stage.log)
        put(stage, *(change for client_id in NEIGHBOURS for change in all_rows(sessions, client_id)))

        found = loaded(stage)
        assert found.keys() == set(NEIGHBOURS)
        for client_id, stored in found.items():
            assert stored.session.user_name == f"user of {client_id}"
            assert {each.written for each in stored.subscriptions} == {"a", "\x01/+"}
            assert (stored.cursor, stored.will, stored.received) == (CursorRow((9,), ()), WILL, [1, 65_535])


@pytest.mark.parametrize("kind", range(1, 7))
def test_rows_without_their_session_are_corruption(tmp_path: Path, kind: int) -> None:
    with Stage(tmp_path) as stage:
        sessions = LogSessions(stage.log)
        put(stage, *all_rows(sessions, "a"), all_rows(sessions, "ab")[kind])

        with pytest.raises(Corruption, match=r"client 'ab' .* the row of the session itself is missing"):
            list(sessions.load())


@pytest.mark.parametrize("tail", [b"", b"\0x", b"\x02x", b"\x03x", b"\x04", b"\x04\0\0\0", b"\x05"])
def test_a_row_of_an_unknown_kind_is_corruption(tmp_path: Path, tail: bytes) -> None:
    with Stage(tmp_path) as stage:
        sessions = LogSessions(stage.log)
        own = sessions.put_session(SESSION)
        put(stage, own, Put(own.shard, own.key[:-1] + tail, b"\x01"))

        with pytest.raises(Corruption, match="client 'c1'"):
            list(sessions.load())


@pytest.mark.parametrize("number", range(7))
def test_a_store_with_a_newer_row_is_not_loaded(tmp_path: Path, number: int) -> None:
    with Stage(tmp_path) as stage:
        sessions = LogSessions(stage.log)
        changes = all_rows(sessions, "a")
        newer = changes[number]
        assert isinstance(newer, Put)
        changes[number] = msgspec.structs.replace(newer, value=b"\x02" + newer.value[1:])
        put(stage, *changes)

        with pytest.raises(UsageError, match=r"client 'a' has the format 2, newer than 1"):
            list(sessions.load())
