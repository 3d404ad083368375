"""The rows of durable sessions: what each of them contains. The callers decide when they are written.

A session whose expiry is above 0 when it is created is durable until it ends. Every acknowledgement waits for the disk: CONNACK
for the session's rows, SUBACK for the subscription's, PUBCOMP for the removal of the packet id (S1). The backlog is not stored:
it consists of the records above the cursor. `restoration` reads the rows at start.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import time

from braidmq.broker.ports import (
    RELEASED,
    SENT,
    Change,
    CursorRow,
    InFlight,
    MessageLog,
    SessionRow,
    SessionStore,
    SubscriptionRow,
)
from braidmq.broker.session.opening import Opening
from braidmq.broker.session.session import Session
from braidmq.broker.shared.leases import is_lease
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import encode_record
from braidmq.mqtt.packets import Will


class SessionStorage:
    """The rows of this node's durable sessions."""

    def __init__(self, rows: SessionStore, log: MessageLog) -> None:
        self._rows = rows
        self._log = log

    def opened(self, opening: Opening) -> list[Change]:
        """Before CONNACK: the client's terms, which the session does not have yet."""
        session, newcomer = opening.session, opening.newcomer
        row = SessionRow(
            session.client_id,
            newcomer.user_name,
            newcomer.expiry_s,
            newcomer.clean_start,
            session.created_wall,
            0.0,
            session.guard,
            opening.stays_anonymous,
        )
        return [self._rows.put_session(row), *self.cursor_changes(session), self._will_row(session.client_id, newcomer.will)]

    def _will_row(self, client_id: str, will: Will | None) -> Change:
        return self._rows.remove_will(client_id) if will is None else self._rows.put_will(client_id, will)

    def put_back(self, session: Session, ended_at: float) -> list[Change]:
        """CONNACK was not sent: the terms that the session still has, and since when it is offline."""
        will = self._will_row(session.client_id, session.will)
        return [self._row_of(session, ended_at), *self.cursor_changes(session), will]

    def left(self, session: Session) -> list[Change]:
        """The connection has ended: since when, and where the session is."""
        changes = [self._row_of(session, ended_at=time()), *self.cursor_changes(session)]
        if session.will is None:
            changes.append(self._rows.remove_will(session.client_id))
        return changes

    def moving(self, session: Session) -> list[Change]:
        """The session goes to another node: packet ids of QoS 2 messages that were not recorded, which only memory has (C24)."""
        return [self._rows.put_received(session.client_id, each) for each in session.flow.settled_ids()]

    def will_is_over(self, session: Session) -> list[Change]:
        """The will was published or withdrawn."""
        return [self._rows.remove_will(session.client_id)]

    def ended(self, session: Session) -> list[Change]:
        """The session is over."""
        return self._rows.remove_session(session.client_id, session.subscriptions, session.flow.received_ids())

    def subscription_row(self, session: Session, written: str) -> Change:
        """A subscription as it is now; written before its SUBACK."""
        running = session.replays.get(written)
        subscription = session.subscriptions[written]
        row = SubscriptionRow(
            written,
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            subscription.identifiers,
            session.starts[written],
            running.cursor if running is not None else None,
            running is not None and running.tells_end,
        )
        return self._rows.put_subscription(session.client_id, row)

    def unsubscribed(self, session: Session, written: str) -> list[Change]:
        """A subscription was removed."""
        return [self._rows.remove_subscription(session.client_id, written)]

    def _row_of(self, session: Session, ended_at: float) -> Change:
        return self._rows.put_session(
            SessionRow(
                session.client_id,
                session.user_name,
                session.expiry_s,
                session.is_clean,
                session.created_wall,
                ended_at,
                session.guard,
                session.stays_anonymous,
            )
        )

    def cursor_changes(self, session: Session) -> list[Change]:
        """The cursors of the session and of its replays, written together because messages in flight come from both."""
        session.flow.is_changed = False
        cursor = self._rows.put_cursor(session.client_id, self._cursor_row(session))
        return [cursor, *(self.subscription_row(session, written) for written in session.replays)]

    def _cursor_row(self, session: Session) -> CursorRow:
        inflight = (
            self._in_flight(packet_id, delivery)
            for packet_id, delivery in session.flow.inflight_items()
            if not is_lease(delivery)  # which is in the row of its group
        )
        return CursorRow(tuple(session.flow.cursor()), tuple(inflight))

    def _in_flight(self, packet_id: int, delivery: Delivery) -> InFlight:
        if delivery.is_released:
            return InFlight(packet_id, delivery.qos, RELEASED, False)
        shard, timestamp = delivery.place()
        message = delivery.message
        if timestamp or message is None:
            return InFlight(packet_id, delivery.qos, SENT, delivery.retain, shard, timestamp)
        return InFlight(packet_id, delivery.qos, SENT, delivery.retain, value=self._encode(message))

    def _encode(self, message: Message) -> bytes:
        """A message that is not in the log, as a record's value."""
        return encode_record(
            message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
            message.wall_expiry(), message.expiry_offset,
        )  # fmt: skip

    def gap_of(self, session: Session) -> str:
        """Up to when retention has deleted records that the session had yet to read, as RFC 3339; empty without a gap (S16)."""
        flow = session.flow
        if flow.is_following or not flow.positions:
            return ""
        filters = [each.topic_filter.decode() for each in session.subscriptions.values()]
        gaps = self._log.gaps(dict(enumerate(flow.positions)), filters) if filters else {}
        if not gaps:
            return ""
        floor = max(gap.floor for gap in gaps.values())
        return datetime.fromtimestamp(floor / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
