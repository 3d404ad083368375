"""The stores of rows: what is changed through the log's own and through a home, as operations of a node, is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.broker.ports import (
    RELEASED,
    SENT,
    Change,
    CursorRow,
    DelayedRows,
    GroupRow,
    GroupStore,
    InFlight,
    RetainedRows,
    SessionRow,
    SessionStore,
    Storage,
    StoredMessage,
    StoredSession,
    SubscriptionRow,
)
from braidmq.cluster.home.blocks.operations import HomeRows, RetainedSent
from braidmq.cluster.protocol.operations import decode, encode
from braidmq.cluster.remote.log.rows import (
    OWN,
    NodeChange,
    RemoteDelayed,
    RemoteGroups,
    RemoteRetained,
    RemoteSessions,
)
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.storage.reading.positions import parse_start
from braidmq.storage.rows.changes import Delete, Put
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from tests.storage.kept import fields_of, make_message
from tests.storage.message_log import Stage, unexpected
from tests.storage.session_values import cursors, session_rows, subscription_rows, wills

SESSION = SessionRow("c", "bob", 60, False, 1.5, 2.5, 7)
CURSOR = CursorRow((300, 0), (InFlight(1, 1, SENT, True, 1, 258), InFlight(2, 2, RELEASED, False)))
SUBSCRIPTION = SubscriptionRow("a/#", 1, True, False, b"\x0b\x05", (300, 1), (2, 3), True)
OTHER = SubscriptionRow("b", 2, False, True, b"", (300, 1))
WILL = Will("w", b"x", 1, True, Properties(will_delay_interval=5))


class Stores:
    """The ports under test, and the log's own stores, which show what was written."""

    def __init__(self, stage: Stage) -> None:
        log = self._log = stage.log
        self._stage = stage
        self.kept = Storage(
            log, LogSessions(log), LogRetained(log), LogDelayed(log), LogGroups(log), parse_start, LogProducers(log)
        )
        self.sessions: SessionStore = self.kept.sessions
        self.retained: RetainedRows = self.kept.retained
        self.delayed: DelayedRows = self.kept.delayed
        self.groups: GroupStore = self.kept.groups

    def write(self, *changes: Change) -> None:
        """Let the rows be on disk."""
        self._log.change(changes, on_commit=lambda: None, on_refused=unexpected)
        self._stage.settle()


class RemoteStores(Stores):
    """The same on a node: each change becomes bytes that a home carries out."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        shards = stage.log.shards
        self._home = HomeRows(self.kept)
        self.sessions = RemoteSessions(shards)
        self.retained = RemoteRetained(shards)
        self.delayed = RemoteDelayed(shards)
        self.groups = RemoteGroups(shards)

    def write(self, *changes: Change) -> None:
        """Send each change, and write what the home makes of it, in the shard that the node has named."""
        for change in changes:
            assert isinstance(change, NodeChange)
            done = self._home.apply(decode(encode([change.operation])), None if change.client_id == OWN else change.client_id)
            sent = [effect.stored for effect in done.effects if isinstance(effect, RetainedSent)]
            if sent:  # its row is written by the home of the topic, in the order of the messages
                super().write(*(self._retain(each) for each in sent))
            else:
                assert {each.shard for each in done.changes if isinstance(each, Put | Delete)} == {change.shard}
            super().write(*done.changes)

    def _retain(self, stored: StoredMessage) -> Change:
        message, rows = stored.message, self.kept.retained
        return rows.put(message, stored.user_name) if message.payload else rows.remove(message.topic)


@pytest.fixture(params=[Stores, RemoteStores], ids=["log", "home"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    make: Callable[[Stage], Stores] = request.param
    with Stage(tmp_path) as stage:
        yield make(stage)


def all_sessions(stores: Stores) -> list[StoredSession]:
    return list(stores.kept.sessions.load())


def put_whole_session(stores: Stores) -> None:
    sessions = stores.sessions
    stores.write(
        sessions.put_session(SESSION),
        sessions.put_cursor("c", CURSOR),
        sessions.put_subscription("c", SUBSCRIPTION),
        sessions.put_subscription("c", OTHER),
        sessions.put_will("c", WILL),
        sessions.put_received("c", 7),
        sessions.put_received("c", 65_535),
    )


def test_a_session_is_stored_with_all_its_rows(stores: Stores) -> None:
    put_whole_session(stores)

    assert all_sessions(stores) == [StoredSession(SESSION, CURSOR, [SUBSCRIPTION, OTHER], WILL, [7, 65_535])]


def test_single_rows_of_a_session_are_replaced_and_removed(stores: Stores) -> None:
    put_whole_session(stores)
    sessions = stores.sessions

    stores.write(
        sessions.put_subscription("c", SubscriptionRow("b", 0, False, False, b"", (1, 1))),
        sessions.remove_subscription("c", "a/#"),
        sessions.put_cursor("c", CursorRow((1, 2), ())),
        sessions.remove_will("c"),
        sessions.remove_received("c", 7),
        sessions.remove_received("c", 8),
    )

    again = SubscriptionRow("b", 0, False, False, b"", (1, 1))
    assert all_sessions(stores) == [StoredSession(SESSION, CursorRow((1, 2), ()), [again], None, [65_535])]


def test_a_session_is_removed_and_its_neighbours_stay(stores: Stores) -> None:
    put_whole_session(stores)
    neighbour = SessionRow("c2", None, 60, True, 1.0, 0.0, 1)
    stores.write(stores.sessions.put_session(neighbour), stores.sessions.put_received("c2", 7))

    stores.write(*stores.sessions.remove_session("c", ["a/#", "b"], [7, 65_535]))

    assert all_sessions(stores) == [StoredSession(neighbour, CursorRow((), ()), [], None, [7])]


def test_one_session_is_loaded_of_many(stores: Stores) -> None:
    put_whole_session(stores)
    for client_id in ("b", "c\x01", "cc", "d"):
        stores.write(stores.sessions.put_session(SessionRow(client_id, None, 1, True, 1.0, 0.0, 1)))

    kept = stores.kept.sessions

    assert kept.load_one("c") == StoredSession(SESSION, CURSOR, [SUBSCRIPTION, OTHER], WILL, [7, 65_535])
    assert [each.session.client_id for name in ("c\x01", "cc") if (each := kept.load_one(name))] == ["c\x01", "cc"]
    assert kept.load_one("a") is None


@given(session_rows("c"), cursors, st.lists(subscription_rows(), max_size=3, unique_by=lambda each: each.written), wills)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_any_rows_of_a_session_arrive(
    stores: Stores, session: SessionRow, cursor: CursorRow, subscriptions: list[SubscriptionRow], will: Will
) -> None:
    rows = stores.sessions
    changes: Iterable[Change] = [
        rows.put_session(session),
        rows.put_cursor("c", cursor),
        rows.put_will("c", will),
        *(rows.put_subscription("c", each) for each in subscriptions),
    ]

    stores.write(*changes)
    stored = stores.kept.sessions.load_one("c")
    stores.write(*rows.remove_session("c", [each.written for each in subscriptions], []))

    assert stored is not None
    assert (stored.session, stored.cursor, stored.will) == (session, cursor, will)
    assert {each.written: each for each in stored.subscriptions} == {each.written: each for each in subscriptions}
    assert all_sessions(stores) == []


def test_retained_messages_are_kept_replaced_and_removed(stores: Stores) -> None:
    retained = stores.retained
    stores.write(retained.put(make_message("a/b", b"first"), "bob"), retained.put(make_message("c", b"other"), None))

    stores.write(retained.put(make_message("a/b", b"second"), "eve"), retained.remove(b"c"), retained.remove(b"none"))

    (found,) = stores.kept.retained.load()
    assert (fields_of(found.message), found.user_name) == (fields_of(make_message("a/b", b"second")), "eve")
    assert found.stored_at > 0


def test_delayed_messages_are_kept_with_their_time(stores: Stores) -> None:
    _, change = stores.delayed.put(make_message("a", b"later", retain=False), "bob", 1234.5)

    stores.write(change)

    (found,) = stores.kept.delayed.load()
    assert (found.message.payload, found.user_name, found.due) == (b"later", "bob", 1234.5)
    assert found.row_id


def test_groups_are_set_loaded_and_removed(stores: Stores) -> None:
    row = GroupRow("g", "a/#", (4, 5), ((0, 3),), (9, 9))
    stores.write(stores.groups.put(row), stores.groups.put(GroupRow("g", "b", (1, 1), ())))

    assert stores.kept.groups.load_one("g", "a/#") == row
    assert stores.kept.groups.load_one("g", "a") is None

    stores.write(stores.groups.remove("g", "a/#"))

    assert [each.topic_filter for each in stores.kept.groups.load()] == ["b"]


def test_a_node_loads_nothing_at_its_start(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        remote = RemoteStores(stage)
        put_whole_session(remote)

        loaded = (remote.sessions.load(), remote.retained.load(), remote.delayed.load(), remote.groups.load())
        assert [list(each) for each in loaded] == [[]] * 4
