"""Rows of sessions against a dict: whatever is put and removed, what is loaded is what is in the dict, reopened or not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from braidmq.broker.ports import CursorRow, SessionRow, StoredSession, SubscriptionRow
from braidmq.mqtt.packets import Will
from braidmq.storage.rows.changes import Change
from braidmq.storage.rows.sessions import LogSessions
from tests.storage.message_log import Stage, unexpected
from tests.storage.session_values import cursors, session_rows, subscription_rows, wills

# In one shard and in each other's way: ids that others begin with, filters that look like what follows an id.
CLIENTS = ("a", "a\x01", "aa", "\U0010ffff", "b")
FILTERS = ("#", "a", "a/\x01", "+/a", "\x01")

clients = st.sampled_from(CLIENTS)
packet_ids = st.sampled_from((1, 2, 256, 65_535))
filters = st.sampled_from(FILTERS)


class SessionMachine(RuleBasedStateMachine):
    """A log with sessions beside the sessions as they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[str, StoredSession] = {}
        self._open()

    def _open(self) -> None:
        self.stage = Stage(Path(self.folder.name), shards=2, durability="os")
        self.sessions = LogSessions(self.stage.log)

    def _change(self, change: Change) -> None:
        self.stage.log.change([change], on_commit=lambda: None, on_refused=unexpected)

    def _known(self, data: st.DataObject) -> StoredSession:
        return self.model[data.draw(st.sampled_from(sorted(self.model)))]

    @rule(row=clients.flatmap(session_rows))
    def put_session(self, row: SessionRow) -> None:
        self._change(self.sessions.put_session(row))
        if row.client_id in self.model:
            self.model[row.client_id].session = row
        else:
            self.model[row.client_id] = StoredSession(row, CursorRow((), ()), [], None, [])

    @rule(client_id=clients)
    def remove_session(self, client_id: str) -> None:
        stored = self.model.pop(client_id, None)
        written = [each.written for each in stored.subscriptions] if stored is not None else []
        for change in self.sessions.remove_session(client_id, written, stored.received if stored is not None else []):
            self._change(change)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), row=subscription_rows(filters))
    def put_subscription(self, data: st.DataObject, row: SubscriptionRow) -> None:
        stored = self._known(data)
        self._change(self.sessions.put_subscription(stored.session.client_id, row))
        stored.subscriptions = [each for each in stored.subscriptions if each.written != row.written] + [row]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), written=filters)
    def remove_subscription(self, data: st.DataObject, written: str) -> None:
        stored = self._known(data)
        self._change(self.sessions.remove_subscription(stored.session.client_id, written))
        stored.subscriptions = [each for each in stored.subscriptions if each.written != written]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), row=cursors)
    def put_cursor(self, data: st.DataObject, row: CursorRow) -> None:
        stored = self._known(data)
        self._change(self.sessions.put_cursor(stored.session.client_id, row))
        stored.cursor = row

    @precondition(lambda self: self.model)
    @rule(data=st.data(), will=st.none() | wills)
    def put_or_remove_will(self, data: st.DataObject, will: Will | None) -> None:
        stored = self._known(data)
        client_id = stored.session.client_id
        self._change(self.sessions.remove_will(client_id) if will is None else self.sessions.put_will(client_id, will))
        stored.will = will

    @precondition(lambda self: self.model)
    @rule(data=st.data(), packet_id=packet_ids)
    def put_received(self, data: st.DataObject, packet_id: int) -> None:
        stored = self._known(data)
        self._change(self.sessions.put_received(stored.session.client_id, packet_id))
        stored.received = sorted({*stored.received, packet_id})

    @precondition(lambda self: self.model)
    @rule(data=st.data(), packet_id=packet_ids)
    def remove_received(self, data: st.DataObject, packet_id: int) -> None:
        stored = self._known(data)
        self._change(self.sessions.remove_received(stored.session.client_id, packet_id))
        stored.received = [each for each in stored.received if each != packet_id]

    @rule()
    def compare(self) -> None:
        self.stage.settle()
        loaded = list(self.sessions.load())

        assert len(loaded) == len(self.model)
        for stored in loaded:
            expected = self.model[stored.session.client_id]
            expected.subscriptions.sort(key=lambda each: each.written.encode())
            assert stored == expected

    @rule()
    def reopen(self) -> None:
        self.stage.log.close()
        self._open()
        self.compare()

    def teardown(self) -> None:
        self.reopen()
        self.stage.log.close()
        self.folder.cleanup()


SessionMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSessionRows = SessionMachine.TestCase
