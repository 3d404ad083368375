"""Storage of durable sessions: which rows are written when, and how they are restored at start.

A session whose expiry is above 0 when it is created is durable until it ends. Every acknowledgement waits for the disk: CONNACK
for the session's rows, SUBACK for the subscription's, PUBCOMP for the removal of the packet id (S1). The backlog is not stored:
it consists of the records above the cursor.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import monotonic, time
from typing import TYPE_CHECKING, cast

from braidmq.broker.ports import (
    RELEASED,
    SENT,
    Change,
    CursorRow,
    InFlight,
    Positions,
    SessionRow,
    StoredSession,
    SubscriptionRow,
)
from braidmq.broker.reading import replay
from braidmq.broker.session.opening import Opening
from braidmq.broker.session.session import Session
from braidmq.broker.shared.cursor import is_lease
from braidmq.lane.path.delivery import Delivery
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.subscription import Subscription
from braidmq.lane.records.records import Record, encode_record
from braidmq.mqtt.packets import Will
from braidmq.mqtt.topics import parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.persistence import TurnWriter

log = logging.getLogger("braidmq.durability")


class SessionStorage:
    """The rows of this node's durable sessions."""

    def __init__(self, broker: Broker, turn_writer: TurnWriter) -> None:
        self._broker = broker
        self._turn_writer = turn_writer
        self._rows = turn_writer.storage.sessions

    # While running

    def opened(self, opening: Opening) -> list[Change]:
        """What to write before a client is told that it has this session: the client's terms, which are not the session's yet."""
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

    def put_back(self, session: Session, ended_at: float) -> None:
        """The client was not told that it has this session: write down the terms that it still has, and since when it waits."""
        self._turn_writer.write(
            self._row_of(session, ended_at), *self.cursor_changes(session), self._will_row(session.client_id, session.will)
        )

    def left(self, session: Session) -> None:
        """The connection has ended: write down since when, and where the session is."""
        self._turn_writer.write(self._row_of(session, ended_at=time()), *self.cursor_changes(session))
        if session.will is None:
            self._turn_writer.write(self._rows.remove_will(session.client_id))

    def will_is_over(self, session: Session) -> None:
        """The will was published or withdrawn."""
        self._turn_writer.write(self._rows.remove_will(session.client_id))

    def ended(self, session: Session) -> None:
        """The session is over."""
        received = session.flow.received_ids()
        self._turn_writer.write(*self._rows.remove_session(session.client_id, session.subscriptions, received))

    def subscription_row(self, session: Session, written: str) -> Change:
        """A subscription as it is now; written before a client is told that it has it."""
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

    def unsubscribed(self, session: Session, written: str) -> None:
        """A subscription was removed; its removal is written with what comes next."""
        self._turn_writer.write(self._rows.remove_subscription(session.client_id, written))

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
        """Where the session is, its replays too: what is in flight came from either, so all is written together."""
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
        """Up to when retention has taken what the session had still to read, as RFC 3339; empty if it has not (S16)."""
        flow = session.flow
        if flow.is_following or not flow.positions:
            return ""
        filters = [each.topic_filter.decode() for each in session.subscriptions.values()]
        gaps = self._turn_writer.log.gaps(dict(enumerate(flow.positions)), filters) if filters else {}
        if not gaps:
            return ""
        floor = max(gap.floor for gap in gaps.values())
        return datetime.fromtimestamp(floor / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # At start

    def restore(self) -> int:
        """Take up every stored session; how many there are. Blocks: call it before clients are let in."""
        count = 0
        now = time()
        for stored in self._rows.load():
            self._restore(stored, now)
            count += 1
            if self._broker.state.is_pressed:
                self._broker.holdings.relieve()
        self._broker.groups.restore(self._turn_writer.storage.groups.load())
        return count

    def _restore(self, stored: StoredSession, now: float) -> None:
        broker = self._broker
        row = stored.session
        flow = broker.make_flow(row.client_id, is_durable=True)
        flow.fall_behind()
        session = Session(row.client_id, flow, monotonic())
        session.created_wall = row.created_at
        session.user_name = row.user_name
        session.stays_anonymous = row.stays_anonymous
        session.expiry_s = row.expiry_s
        session.is_clean = row.is_clean
        session.guard = row.guard
        session.is_provisional = False
        self._turn_writer.log.fences.fence(row.client_id, row.guard)
        broker.sessions.set_will(session, stored.will)
        flow.positions = self._fit(stored.cursor.positions)
        for each in stored.subscriptions:
            self._restore_subscription(session, each)
        for packet_id in stored.received:
            flow.receive(packet_id)
        for entry in stored.cursor.inflight:
            self._restore_in_flight(session, entry)
        broker.sessions.add(session)
        # Who was connected when the process ended has lost its connection just now.
        broker.lifecycle.wait_for_return(session, now - row.ended_at if row.ended_at else 0.0)

    def _fit(self, positions: Positions) -> list[int]:
        """A position for each shard, whatever an interrupted start has left."""
        marks = self._broker.state.marks
        return [positions[shard] if shard < len(positions) else mark for shard, mark in enumerate(marks)]

    def _restore_subscription(self, session: Session, row: SubscriptionRow) -> None:
        broker = self._broker
        target = parse_subscription(row.written)
        topic_filter = target.topic_filter.encode()
        if target.group is not None:
            subscription, _ = broker.groups.join(
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
                broker.exclusive.take(topic_filter, session.client_id)
        session.hold(row.written, subscription)
        session.starts[row.written] = tuple(self._fit(row.start))
        cursor = None if row.cursor is None else self._fit(row.cursor)
        replay.restore(broker.reading, session, row.written, subscription, row.tells_end, cursor)
        if target.group is None:
            broker.route(session, topic_filter)

    def _restore_in_flight(self, session: Session, entry: InFlight) -> None:
        """Put back what was in flight; a message that is in the log is read when its client is back."""
        delivery = Delivery(None, _NOBODYS, entry.qos, entry.retain)
        delivery.is_released = entry.state == RELEASED
        delivery.shard, delivery.timestamp = entry.shard, entry.timestamp
        # It keeps its place in the order and its packet id until the message is there.
        session.flow.restore(entry.packet_id, delivery)
        if entry.value:
            message = from_record(0, Record(0, entry.value))
            self.found(session, entry.packet_id, delivery, message)

    # In flight, and in the log alone

    def found(self, session: Session, packet_id: int, delivery: Delivery, message: Message) -> None:
        """The message of a delivery in flight was read; it may be sent again if the client may still have it."""
        if not session.flow.is_waiting_for(packet_id, delivery):
            return  # the client has settled it without having seen it again
        broker = self._broker
        access = broker.access
        rules = access.rules_for(session.client_id, session.user_name)
        # Without rules nobody is connected whom it could be sent to: then it stays until there are some.
        if access.has_rules and not (rules.unrestricted or rules.may_subscribe(message.topic.decode())):
            broker.statistics.deliveries_withdrawn += 1
            broker.state.drop("not_authorized", session.client_id, message.topic)
            self._let_go(session, packet_id, delivery)
            return
        if broker.hooks.delivers and message.timestamp:  # as it was asked before the message was first sent
            changed = broker.publisher.ask_deliver_hooks(message, session.client_id)
            if changed is None:
                self._let_go(session, packet_id, delivery)
                return
            message = changed
        if delivery.subscription is _NOBODYS:  # from before the start: who knows what it was
            subscription = session.match(message) or _NOBODYS
            session.flow.restore(packet_id, Delivery(message, subscription, delivery.qos, delivery.retain))
        else:
            session.flow.refill(delivery, message)

    def lost(self, session: Session, packet_id: int, delivery: Delivery) -> None:
        """A message in flight was deleted by retention before it was read."""
        if not session.flow.is_waiting_for(packet_id, delivery):
            return
        self._let_go(session, packet_id, delivery)
        session.lost += 1
        self._broker.statistics.lost_to_retention += 1

    def _let_go(self, session: Session, packet_id: int, delivery: Delivery) -> None:
        """It is not to be sent again."""
        if delivery.qos == 2:
            # The client may know it by its packet id, which must not come back with another message: let it go by PUBREL.
            delivery.is_released = True
            session.flow.note_change()
        else:
            session.flow.forget(packet_id)


# In the place of the subscription, where a message was in flight for one that is no longer there.
_NOBODYS = Subscription(cast("Flow", None), b"#", 2)
