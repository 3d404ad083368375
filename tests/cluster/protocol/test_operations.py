"""Row operations and stored sessions as bytes: the released ones never change, and nothing else is understood."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.broker.ports import RELEASED, SENT, CursorRow, GroupRow, InFlight, SessionRow, StoredSession, SubscriptionRow
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.operations import (
    BadOperation,
    Operation,
    PutCursor,
    PutDelayed,
    PutGroup,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    RemoveGroup,
    RemoveReceived,
    RemoveRetained,
    RemoveSession,
    RemoveSubscription,
    RemoveWill,
    client_of,
    decode,
    decode_session,
    decode_will,
    encode,
    encode_session,
    encode_will,
)
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from tests.storage.session_values import cursors, session_rows, subscription_rows, wills

SESSION = SessionRow("c", "bob", 60, False, 1.5, 2.5, 7)
SUBSCRIPTION = SubscriptionRow("a/#", 1, True, False, b"\x0b\x05", (300, 1), (2, 3), True)
CURSOR = CursorRow((300, 0), (InFlight(1, 1, SENT, True, 1, 258), InFlight(2, 2, RELEASED, False, value=b"r")))
WILL = Will("w", b"x", 1, True, Properties(will_delay_interval=5))
# version 1, QoS 1 and retain, topic of 1 byte, five bytes of properties: Will Delay Interval of 5 s, payload
WILL_BYTES = "01 05 0001 77 05 18 00000005 78"

# MessagePack by hand: an array with the name of the operation, then its fields. 9n: array of n, an: text of n bytes,
# c4 n: n bytes, cb: a double, c0: nil, c2 and c3: false and true, cd: two bytes of a number.
GOLDEN: list[tuple[Operation, str]] = [
    (
        PutSession(SESSION),
        "92 aa" + b"PutSession".hex() + "98 a163 a3626f62 3c c2 cb3ff8000000000000 cb4004000000000000 07 c2",
    ),
    (
        PutSubscription("c", SUBSCRIPTION),
        "93 af" + b"PutSubscription".hex() + "a163 98 a3612f23 01 c3 c2 c4020b05 92cd012c01 920203 c3",
    ),
    (RemoveSubscription("c", "a/#"), "93 b2" + b"RemoveSubscription".hex() + "a163 a3612f23"),
    (
        PutCursor("c", CURSOR),
        "93 a9" + b"PutCursor".hex() + "a163 92 92cd012c00 92 97010100c301cd0102c400 97020201c20000c40172",
    ),
    (PutWill("c", encode_will(WILL)), "93 a7" + b"PutWill".hex() + "a163 c40c" + WILL_BYTES),
    (RemoveWill("c"), "92 aa" + b"RemoveWill".hex() + "a163"),
    (PutReceived("c", 258), "93 ab" + b"PutReceived".hex() + "a163 cd0102"),
    (RemoveReceived("c", 1), "93 ae" + b"RemoveReceived".hex() + "a163 01"),
    (RemoveSession("c", ["t"], [5]), "94 ad" + b"RemoveSession".hex() + "a163 91a174 9105"),
    (PutRetained(b"v"), "92 ab" + b"PutRetained".hex() + "c40176"),
    (RemoveRetained(b"t"), "92 ae" + b"RemoveRetained".hex() + "c40174"),
    (PutDelayed(b"v", 1.5), "93 aa" + b"PutDelayed".hex() + "c40176 cb3ff8000000000000"),
    (PutGroup(GroupRow("g", "t", (4,), ((0, 3),), (9,))), "92 a8" + b"PutGroup".hex() + "95 a167 a174 9104 91920003 9109"),
    (RemoveGroup("g", "t"), "93 ab" + b"RemoveGroup".hex() + "a167 a174"),
]
STORED = StoredSession(SESSION, CURSOR, [SUBSCRIPTION], WILL, [258])


@pytest.mark.parametrize(("operation", "digits"), GOLDEN, ids=lambda each: type(each).__name__)
def test_the_bytes_of_an_operation(operation: Operation, digits: str) -> None:
    released = b"\x91" + bytes.fromhex(digits)

    assert encode([operation]) == released
    assert decode(released) == [operation]


def test_every_operation_has_its_bytes_written_down() -> None:
    kinds = {type(operation).__name__ for operation, _ in GOLDEN}

    assert kinds == {name for name in vars(operations) if name.startswith(("Put", "Remove"))}


def test_the_bytes_of_a_session() -> None:
    session = bytes.fromhex("98 a163 a3626f62 3c c2 cb3ff8000000000000 cb4004000000000000 07 c2")
    cursor = bytes.fromhex("92 92cd012c00 92 97010100c301cd0102c400 97020201c20000c40172")
    subscriptions = bytes.fromhex("91 98 a3612f23 01 c3 c2 c4020b05 92cd012c01 920203 c3")
    rest = bytes.fromhex("c40c" + WILL_BYTES + "91cd0102")

    released = b"\x95" + session + cursor + subscriptions + rest

    assert encode_session(STORED) == released
    assert decode_session(released) == STORED


def test_no_session_and_no_will_are_no_bytes() -> None:
    assert encode_session(None) == encode_will(None) == b""
    assert decode_session(b"") is None
    assert decode_will(b"") is None


@given(session_rows("c"), cursors, st.lists(subscription_rows(), max_size=3), st.none() | wills, st.lists(st.integers(1, 65_535)))
def test_a_session_is_read_as_it_was_written(
    session: SessionRow, cursor: CursorRow, subscriptions: list[SubscriptionRow], will: Will | None, received: list[int]
) -> None:
    stored = StoredSession(session, cursor, subscriptions, will, received)

    assert decode_session(encode_session(stored)) == stored


@pytest.mark.row("F8")
@pytest.mark.parametrize(
    "sent",
    [
        [["PutNothing", "c"]],  # an operation of a later version
        [["RemoveWill", "c", 1]],  # with a field of a later version
        [["PutReceived", "c", 0]],
        [["PutReceived", "c", 65_536]],
        [["PutReceived", "c"]],
        [["PutSession", ["c", None, 1, True, 0.0, 0.0, 0, False, "later"]]],
        [["RemoveWill", 5]],
        ["RemoveWill"],
        {"RemoveWill": "c"},
    ],
    ids=str,
)
def test_c35_what_is_not_understood_is_refused_as_a_whole(sent: object) -> None:
    with pytest.raises(BadOperation):
        decode(msgspec.msgpack.encode(sent))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_rejected_as_a_bad_operation(data: bytes) -> None:
    for read in (decode, decode_session, decode_will):
        try:
            read(data)
        except BadOperation:
            continue


def test_cut_bytes_are_refused() -> None:
    whole = encode([operation for operation, _ in GOLDEN])

    for length in range(len(whole)):
        with pytest.raises(BadOperation):
            decode(whole[:length])
    for length in range(1, len(encode_session(STORED))):
        with pytest.raises(BadOperation):
            decode_session(encode_session(STORED)[:length])


def test_what_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode([RemoveWill("c")] * 3)

    monkeypatch.setattr(operations, "BYTES_MAX", len(data) - 1)
    with pytest.raises(UsageError, match="maximum"):
        encode([RemoveWill("c")] * 3)
    with pytest.raises(BadOperation, match="maximum"):
        decode(data)


def test_too_many_operations_are_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode([RemoveWill("c")] * 3)

    monkeypatch.setattr(operations, "COUNT_MAX", 2)
    with pytest.raises(UsageError, match="maximum"):
        encode([RemoveWill("c")] * 3)
    with pytest.raises(BadOperation, match="maximum"):
        decode(data)


def test_operations_on_a_session_name_their_client() -> None:
    clients = {client_of(operation) for operation, _ in GOLDEN[:9]}

    assert clients == {"c"}
    assert {client_of(operation) for operation, _ in GOLDEN[9:]} == {None}
