"""Restores durable sessions and shared groups from their rows: all of them before clients are let in, or one that has moved."""

from __future__ import annotations

from time import monotonic, time
from typing import Protocol

from braidmq.access.contract import Authorizer
from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.ports import (
    RELEASED,
    Fences,
    GroupRow,
    GroupStore,
    InFlight,
    Positions,
    SessionStore,
    StoredSession,
    SubscriptionRow,
)
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.ports import ExclusiveTopics
from braidmq.broker.session.redelivery import Redelivery
from braidmq.broker.session.revocation import Revocation
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.shared.group import Group, Groups
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.packed_deliveries import UNKNOWN
from braidmq.lane.path.message import from_record
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import parse_subscription


class RestoreReplay(Protocol):
    """Continues the replay in a subscription's row, if there is one."""

    def __call__(
        self, session: Session, written: str, subscription: Subscription, tells_end: bool, cursor: list[int] | None
    ) -> None:
        """``cursor``: how far the replay has come."""
        ...


class Restoration:
    """Restores sessions from rows."""

    def __init__(
        self,
        rows: SessionStore,
        group_rows: GroupStore,
        fences: Fences,
        flows: Flows,
        sessions: SessionTable,
        lifecycle: Lifecycle,
        subscriptions: Subscriptions,
        groups: Groups,
        *,
        exclusive: ExclusiveTopics,
        redelivery: Redelivery,
        holdings: Holdings,
        state: State,
        restore_replay: RestoreReplay,
        access: Authorizer,
        revocation: Revocation,
        is_home: bool,
        keeps_groups: bool,
    ) -> None:
        """``is_home``: shared groups are on this node. ``keeps_groups``: they may have members that only other nodes know of."""
        self._rows = rows
        self._group_rows = group_rows
        self._fences = fences
        self._flows = flows
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._subscriptions = subscriptions
        self._groups = groups
        self._exclusive = exclusive
        self._redelivery = redelivery
        self._holdings = holdings
        self._state = state
        self._restore_replay = restore_replay
        self._access = access
        self._revocation = revocation
        self._is_home = is_home
        self._keeps_groups = keeps_groups
        self._orphans: dict[tuple[str, str], GroupRow] = {}  # rows of groups that may have members on other nodes
        self._undecided: list[Session] = []  # those that may have a client on another node

    def run(self, *, decides: bool = True) -> int:
        """Restore every stored session and group; returns the number of sessions. Blocks.

        Without ``decides``, sessions that had a client when their rows were written stay as they are until ``decide``: other
        nodes have to say first which of them they have.
        """
        count = 0
        now = time()
        for stored in self._rows.load():
            session = self._make(stored)
            gone_s = _gone_s(stored, now)
            if decides or stored.session.ended_at:
                self._lifecycle.wait_for_return(session, gone_s)
            else:
                self._lifecycle.note_absence(session, gone_s)
                self._undecided.append(session)
            count += 1
            if self._state.is_pressed:
                self._holdings.relieve()
        orphans = self._groups.restore(self._group_rows.load())
        if decides and not self._keeps_groups:
            self._groups.forget(orphans)
        else:
            self._orphans = {(row.name, row.topic_filter): row for row in orphans}
        return count

    def adopt_group(self, group: Group) -> None:
        """A group was made by a client on another node: if it was there before the restart, it goes on from its row (C25)."""
        row = self._orphans.pop(group.names, None)
        if row is not None:
            self._groups.restore([row])

    def forget_orphans(self) -> None:
        """Other nodes have said which groups their clients are members of: the others are over."""
        orphans, self._orphans = self._orphans, {}
        self._groups.forget(orphans.values())

    def decide(self) -> None:
        """Other nodes have taken the sessions that they have: the others have lost their clients."""
        undecided, self._undecided = self._undecided, []
        for session in undecided:
            if self._sessions.get(session.client_id) is session and session.connection is None:
                self._lifecycle.wait_for_return(session, 0.0)

    def restore(self, stored: StoredSession, *, waits: bool) -> Session:
        """Make a session of rows that another node has left, and take from it what its user may not have (C28).

        ``waits``: for its client, here; otherwise a grant opens it at once. This node must have no session of the client id.
        """
        assert self._sessions.get(stored.session.client_id) is None, "hand the session over before another one replaces it"
        missing = self._missing_groups(stored) if self._is_home else []
        session = self._make(stored)
        rows = (self._group_rows.load_one(*group) for group in missing)
        self._groups.forget(self._groups.restore([row for row in rows if row is not None]))
        gone_s = _gone_s(stored, time())
        if waits:
            self._lifecycle.wait_for_return(session, gone_s)
        else:
            self._lifecycle.note_absence(session, gone_s)
        if self._access.has_rules:
            self._revocation.withdraw(session)
        return session

    def _missing_groups(self, stored: StoredSession) -> list[tuple[str, str]]:
        """The shared groups that the session is a member of and that this node does not have: they go on from their rows."""
        targets = (parse_subscription(each.written) for each in stored.subscriptions)
        shared = {(each.group, each.topic_filter) for each in targets if each.group is not None}
        return [(name, topic_filter) for name, topic_filter in shared if not self._groups.has(name, topic_filter.encode())]

    def _make(self, stored: StoredSession) -> Session:
        row = stored.session
        flow = self._flows.make(row.client_id, is_durable=True)
        flow.fall_behind()
        session = Session(row.client_id, flow, monotonic())
        session.created_wall = row.created_at
        session.user_name = row.user_name
        session.stays_anonymous = row.stays_anonymous
        session.expiry_s = row.expiry_s
        session.is_clean = row.is_clean
        session.guard = row.guard
        session.is_provisional = False
        self._fences.fence(row.client_id, row.guard)
        self._sessions.set_will(session, stored.will)
        flow.positions = self._fit(stored.cursor.positions)
        for each in stored.subscriptions:
            self._restore_subscription(session, each)
        for packet_id in stored.received:
            flow.receive(packet_id)
        for entry in stored.cursor.inflight:
            self._restore_in_flight(session, entry)
        flow.pack()
        self._sessions.add(session)
        return session

    def _fit(self, positions: Positions) -> list[int]:
        """A position for each shard, even if an interrupted start has left too few."""
        return [positions[shard] if shard < len(positions) else mark for shard, mark in enumerate(self._state.marks)]

    def _restore_subscription(self, session: Session, row: SubscriptionRow) -> None:
        target = parse_subscription(row.written)
        topic_filter = target.topic_filter.encode()
        if target.group is not None:
            subscription, _ = self._groups.join(
                target.group,
                session.flow,
                topic_filter,
                row.qos,
                row.retain_as_published,
                row.identifiers,
                owner=session.owner,
            )
        else:
            subscription = Subscription(
                session.flow, topic_filter, row.qos, row.no_local, row.retain_as_published, row.identifiers
            )
            if target.exclusive:
                self._exclusive.take(topic_filter, session.client_id)
        session.hold(row.written, subscription)
        session.starts[row.written] = tuple(self._fit(row.start))
        cursor = None if row.cursor is None else self._fit(row.cursor)
        self._restore_replay(session, row.written, subscription, row.tells_end, cursor)
        if target.group is None:
            self._subscriptions.route(session, topic_filter)

    def _restore_in_flight(self, session: Session, entry: InFlight) -> None:
        """Put back a message in flight; one that is in the log is read when its client is back."""
        delivery = Delivery(None, UNKNOWN, entry.qos, entry.retain)
        delivery.is_released = entry.state == RELEASED
        delivery.shard, delivery.timestamp = entry.shard, entry.timestamp
        # It keeps its place in the order and its packet id until the message is there.
        session.flow.restore(entry.packet_id, delivery)
        if entry.value:
            message = from_record(0, Record(0, entry.value))
            self._redelivery.found(session, entry.packet_id, delivery, message)


def _gone_s(stored: StoredSession, now: float) -> float:
    """Seconds without a client. One that was connected when the rows were written has lost its connection just now."""
    ended_at = stored.session.ended_at
    return max(0.0, now - ended_at) if ended_at else 0.0
