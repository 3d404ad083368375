"""What a home does with row operations: it refuses what their channel may not do, and says what follows from the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.base.errors import Unavailable
from braidmq.broker.ports import CursorRow, GroupRow, InFlight, SessionRow, SubscriptionRow
from braidmq.cluster.home.blocks.operations import (
    DelayedAdded,
    GroupChanged,
    HomeRows,
    NotOwned,
    RetainedSent,
    SessionChanged,
    SessionGone,
    SubscriptionChanged,
    WillChanged,
)
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
    RemoveReceived,
    RemoveRetained,
    RemoveSession,
    RemoveSubscription,
    RemoveWill,
    encode_will,
)
from braidmq.cluster.remote.log.rows import RemoteDelayed, RemoteRetained, RemoteSessions
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Will
from tests.support.fakes.storage import FakeChange, FakeLog, fake_storage

SESSION = SessionRow("c", None, 60, False, 1.5, 2.5, 7)
SUBSCRIPTION = SubscriptionRow("a", 1, False, False, b"", (1, 1))
WILL = Will("w", b"x", 1, True)
OF_SESSIONS: list[Operation] = [
    PutSession(SESSION),
    PutSubscription("c", SUBSCRIPTION),
    RemoveSubscription("c", "a"),
    PutCursor("c", CursorRow((), ())),
    PutWill("c", encode_will(WILL)),
    RemoveWill("c"),
    PutReceived("c", 1),
    RemoveReceived("c", 1),
    RemoveSession("c", [], []),
]


class NotedMessages:
    """Fills `ports.RetainedRows` and `ports.DelayedRows`, and notes what it is asked for."""

    def put(self, message: Message, user_name: str | None, due: float | None = None) -> object:
        change = FakeChange(("message", message.topic), message)
        return change if due is None else (b"id", change)

    def remove(self, topic: bytes) -> FakeChange:
        return FakeChange(("message", topic), None)


@pytest.fixture
def home() -> HomeRows:
    storage = fake_storage(FakeLog())
    storage.retained = storage.delayed = NotedMessages()  # type: ignore[assignment]
    return HomeRows(storage)


def message(publisher: str = "c") -> Message:
    return Message(b"t", b"m", 1, True, publisher)


@pytest.mark.parametrize("operation", OF_SESSIONS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("owner", ["d", "", None])
def test_an_operation_on_a_session_of_another_client_is_refused(home: HomeRows, operation: Operation, owner: str | None) -> None:
    assert home.apply([operation], "c").changes

    with pytest.raises(NotOwned):
        home.apply([operation], owner)


def test_one_operation_that_is_not_allowed_refuses_all_of_its_entry(home: HomeRows) -> None:
    with pytest.raises(NotOwned):
        home.apply([PutReceived("c", 1), PutReceived("d", 1)], "c")


@pytest.mark.parametrize("owner", ["d", None])
def test_messages_are_stored_for_the_client_that_has_published_them(home: HomeRows, owner: str | None) -> None:
    retained = RemoteRetained(2).put(message(), None).operation
    delayed = RemoteDelayed(2).put(message(), None, 5.0)[1].operation
    found = home.apply([retained, delayed], "c")
    assert (len(found.changes), len(found.effects)) == (1, 2)

    for each in (retained, delayed):
        with pytest.raises(NotOwned):
            home.apply([each], owner)


def test_a_node_stores_messages_of_its_own(home: HomeRows) -> None:
    assert home.apply([RemoteRetained(2).put(message(""), None).operation], None).effects


def test_the_home_learns_what_has_changed_and_in_which_order(home: HomeRows) -> None:
    will = PutWill("c", encode_will(WILL))
    operations: list[Operation] = [
        PutSession(SESSION),
        PutSubscription("c", SUBSCRIPTION),
        RemoveSubscription("c", "b"),
        will,
        RemoveWill("c"),
    ]

    assert home.apply([*operations, RemoveSession("c", ["a"], [])], "c").effects == [
        SessionChanged(SESSION),
        SubscriptionChanged("c", "a", SUBSCRIPTION),
        SubscriptionChanged("c", "b", None),
        WillChanged("c", WILL),
        WillChanged("c", None),
        SessionGone("c"),
    ]
    group = GroupRow("g", "t", (1,), ())
    changed, removed = home.apply([PutGroup(group), RemoveRetained(b"t")], None).effects
    assert changed == GroupChanged("g", "t", group)
    assert isinstance(removed, RetainedSent)
    assert (removed.stored.message.topic, removed.stored.message.payload) == (b"t", b"")


def test_messages_that_a_home_stores_come_with_their_users_and_times(home: HomeRows) -> None:
    retained = RemoteRetained(2).put(message(), "bob").operation
    delayed = RemoteDelayed(2).put(message(), "bob", 5.0)[1].operation

    first, second = home.apply([retained, delayed], "c").effects

    assert isinstance(first, RetainedSent)
    assert (first.stored.message.topic, first.stored.message.payload, first.stored.user_name) == (b"t", b"m", "bob")
    assert isinstance(second, DelayedAdded)
    assert (second.stored.due, second.stored.row_id, second.stored.user_name) == (5.0, b"id", "bob")


def test_ending_a_session_removes_rows_that_its_node_did_not_name() -> None:
    log = FakeLog()
    storage = fake_storage(log)
    rows = storage.sessions
    kept = [rows.put_session(SESSION), rows.put_subscription("c", SUBSCRIPTION), rows.put_received("c", 9)]
    log.change(kept, on_commit=lambda: None, on_refused=lambda refusal: None)
    log.flush()
    log.commit()

    changes = HomeRows(storage).apply([RemoveSession("c", ["b"], [])], "c").changes

    removed = {each.key for each in changes if isinstance(each, FakeChange)}
    assert {("subscription", "c", "a"), ("subscription", "c", "b"), ("received", "c", 9), ("session", "c")} <= removed


@pytest.mark.parametrize(
    "operation",
    [
        PutSubscription("c", SubscriptionRow("a", 3, False, False, b"", ())),
        PutCursor("c", CursorRow((), (InFlight(1, 5, 0, False),))),
        PutCursor("c", CursorRow((), (InFlight(1, 1, 2, False),))),
        PutWill("c", b""),
        PutWill("c", b"\x01"),
        PutRetained(b""),
        PutRetained(b"\x09later"),
        PutDelayed(b"\x01", 1.0),
        RemoveRetained(b"\xff"),
    ],
    ids=str,
)
def test_rows_that_are_not_valid_are_refused(home: HomeRows, operation: Operation) -> None:
    with pytest.raises(BadOperation):
        home.apply([operation], "c")


def test_what_only_a_home_can_read_is_unavailable_on_a_node() -> None:
    reads: list[Callable[[], object]] = [
        lambda: RemoteSessions(2).load_one("c"),
        lambda: RemoteRetained(2).read(b"t"),
        lambda: RemoteDelayed(2).read(0, b"id"),
    ]

    for read in reads:
        with pytest.raises(Unavailable, match="home"):
            read()
