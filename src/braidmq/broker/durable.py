"""Sessions that outlive the process: which rows are written when, and how they are taken up again at start.

A session whose expiry is above 0 when it is made is durable until it ends. What a client was told is on disk before it is told:
CONNACK waits for the session's rows, SUBACK for the subscription's, PUBCOMP for the removal of the packet id (S1). Its backlog is
not stored at all: it is what the log has above its cursor.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING

from braidmq.broker import look_back
from braidmq.broker.ports import RELEASED, Change, InFlight, Positions, SessionRow, StoredSession, SubscriptionRow
from braidmq.broker.sessions import Session
from braidmq.lane.flow import Delivery
from braidmq.lane.message import Message, from_record
from braidmq.lane.records import Record
from braidmq.lane.routes import Subscription
from braidmq.mqtt.topics import parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.keeping import Keeper

log = logging.getLogger("braidmq.durability")


class DurableSessions:
    """The rows of this node's durable sessions."""

    def __init__(self, broker: Broker, keeper: Keeper) -> None:
        self._broker = broker
        self._keeper = keeper
        self._rows = keeper.storage.sessions

    # While running

    def opened(self, session: Session) -> list[Change]:
        """What to write before a client is told that it has this session."""
        changes = [self._row_of(session, ended_at=0.0), *self.cursor_changes(session)]
        if session.will is not None:
            changes.append(self._rows.put_will(session.client_id, session.will))
        else:
            changes.append(self._rows.remove_will(session.client_id))
        return changes

    def left(self, session: Session) -> None:
        """The connection has ended: write down since when, and where the session is."""
        self._keeper.write(self._row_of(session, ended_at=time()), *self.cursor_changes(session))
        if session.will is None:
            self._keeper.write(self._rows.remove_will(session.client_id))

    def will_is_over(self, session: Session) -> None:
        """The will was published or withdrawn."""
        self._keeper.write(self._rows.remove_will(session.client_id))

    def ended(self, session: Session) -> None:
        """The session is over."""
        received = session.flow.received_ids()
        self._keeper.write(*self._rows.remove_session(session.client_id, session.subscriptions, received))

    def subscription_row(self, session: Session, written: str) -> Change:
        """A subscription as it is now; written before a client is told that it has it."""
        running = session.look_backs.get(written)
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
        self._keeper.write(self._rows.remove_subscription(session.client_id, written))

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
            )
        )

    def cursor_changes(self, session: Session) -> list[Change]:
        """Where the session is, its look-backs too: what is in flight came from either, so all is written together."""
        session.flow.is_changed = False
        cursor = self._rows.put_cursor(session.client_id, self._keeper.cursor_row(session))
        return [cursor, *(self.subscription_row(session, written) for written in session.look_backs)]

    def gap_of(self, session: Session) -> str:
        """Up to when retention has taken what the session had still to read, as RFC 3339; empty if it has not (S16)."""
        flow = session.flow
        if flow.is_following or not flow.positions:
            return ""
        filters = [each.topic_filter.decode() for each in session.subscriptions.values()]
        gaps = self._keeper.log.gaps(dict(enumerate(flow.positions)), filters) if filters else {}
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
        self._broker.groups.restore(self._keeper.storage.groups.load())
        return count

    def _restore(self, stored: StoredSession, now: float) -> None:
        broker = self._broker
        row = stored.session
        flow = broker.make_flow(row.client_id, is_durable=True)
        flow.fall_behind()
        session = Session(row.client_id, flow, broker.state.now)
        session.created_wall = row.created_at
        session.user_name = row.user_name
        session.expiry_s = row.expiry_s
        session.is_clean = row.is_clean
        session.guard = row.guard
        self._keeper.log.fences.fence(row.client_id, row.guard)
        session.will = stored.will
        flow.positions = self._fit(stored.cursor.positions)
        for each in stored.subscriptions:
            self._restore_subscription(session, each)
        for packet_id in stored.received:
            flow.receive(packet_id)
        session.unread = [each for each in stored.cursor.inflight if not self._restore_known(session, each)]
        broker.sessions.add(session)
        # Who was connected when the process ended has lost its connection just now.
        broker.wait_for_return(session, now - row.ended_at if row.ended_at else 0.0)

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
                target.group, session.flow, topic_filter, row.qos, row.retain_as_published, row.identifiers
            )
        else:
            subscription = Subscription(
                session.flow, topic_filter, row.qos, row.no_local, row.retain_as_published, row.identifiers
            )
            if target.exclusive:
                broker.exclusive[topic_filter] = session
        session.hold(row.written, subscription)
        session.starts[row.written] = tuple(self._fit(row.start))
        cursor = None if row.cursor is None else self._fit(row.cursor)
        look_back.restore(broker, session, row.written, subscription, row.tells_end, cursor)
        if target.group is None:
            broker.route(session, topic_filter)

    def _restore_known(self, session: Session, entry: InFlight) -> bool:
        """Put back what can be put back without the log; False if its message must be read there."""
        flow = session.flow
        if entry.state == RELEASED:
            delivery = Delivery(None, _NOBODYS, entry.qos, entry.retain)
            delivery.is_released = True
        elif entry.value:
            self.found(session, entry, from_record(0, Record(0, entry.value), self._broker.state.wall_offset))
            return True
        else:
            # It keeps its place in the order and its packet id until the message is there.
            delivery = Delivery(None, _NOBODYS, entry.qos, entry.retain)
            flow.restore(entry.packet_id, delivery)
            return False
        flow.restore(entry.packet_id, delivery)
        return True

    def found(self, session: Session, entry: InFlight, message: Message) -> None:
        """A message that was in flight when the process ended has been read."""
        access = self._broker.access
        rules = access.rules_for(session.client_id, session.user_name)
        # Without rules nobody is connected whom it could be sent to: then it stays until there are some.
        if access.has_rules and not (rules.unrestricted or rules.may_subscribe(message.topic.decode())):
            self._broker.state.drop("not_authorized", session.client_id, message.topic)
            self._let_go(session, entry)
            return
        flow = session.flow
        flow.restore(entry.packet_id, Delivery(message, session.match(message) or _NOBODYS, entry.qos, entry.retain))

    def lost(self, session: Session, entry: InFlight) -> None:
        """A message that was in flight is no longer in the log: retention was faster."""
        self._let_go(session, entry)
        session.lost += 1
        self._broker.statistics.lost_to_retention += 1

    def _let_go(self, session: Session, entry: InFlight) -> None:
        """It is not to be sent again."""
        flow = session.flow
        if entry.qos == 2:
            # The client may know it by its packet id, which must not come back with another message: let it go by PUBREL.
            delivery = Delivery(None, _NOBODYS, 2, entry.retain)
            delivery.is_released = True
            flow.restore(entry.packet_id, delivery)
        else:
            flow.forget(entry.packet_id)


# In the place of the subscription, where a message was in flight for one that is no longer there.
_NOBODYS = Subscription(None, b"#", 2)
