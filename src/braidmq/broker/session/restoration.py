"""Restores the durable sessions and shared groups of a node from their rows, before clients are let in."""

from __future__ import annotations

from time import monotonic, time
from typing import Protocol

from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.ports import RELEASED, Fences, GroupStore, InFlight, Positions, SessionStore, StoredSession, SubscriptionRow
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.ports import ExclusiveTopics
from braidmq.broker.session.redelivery import Redelivery
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.shared.group import Groups
from braidmq.lane.path.delivery import Delivery
from braidmq.lane.path.log_flow import UNKNOWN
from braidmq.lane.path.message import from_record
from braidmq.lane.path.state import State
from braidmq.lane.path.subscription import Subscription
from braidmq.lane.records.records import Record
from braidmq.mqtt.topics import parse_subscription


class RestoreReplay(Protocol):
    """Continues the replay that a subscription's row tells of, if it tells of one."""

    def __call__(
        self, session: Session, written: str, subscription: Subscription, tells_end: bool, cursor: list[int] | None
    ) -> None:
        """``cursor``: how far the replay has come."""
        ...


class Restoration:
    """Makes sessions of rows."""

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
    ) -> None:
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

    def run(self) -> int:
        """Restore every stored session and group; returns the number of sessions. Blocks."""
        count = 0
        now = time()
        for stored in self._rows.load():
            self._restore(stored, now)
            count += 1
            if self._state.is_pressed:
                self._holdings.relieve()
        self._groups.restore(self._group_rows.load())
        return count

    def _restore(self, stored: StoredSession, now: float) -> None:
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
        # A client that was connected when the process ended has lost its connection just now.
        self._lifecycle.wait_for_return(session, now - row.ended_at if row.ended_at else 0.0)

    def _fit(self, positions: Positions) -> list[int]:
        """A position for each shard, whatever an interrupted start has left."""
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
