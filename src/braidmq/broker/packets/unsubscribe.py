"""UNSUBSCRIBE."""

from __future__ import annotations

from functools import partial
from operator import length_hint
from time import monotonic

from braidmq.base.errors import ProtocolViolation
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.connection import Connection
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.packets.slices import answer_when_kept, on_not_kept, work_off
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change
from braidmq.broker.session.session import Session
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.statistics import Statistics
from braidmq.mqtt.packets import Unsuback, Unsubscribe
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import check_filter, parse_subscription


class UnsubscribeHandler:
    """Removes subscriptions."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        session_storage: SessionStorage,
        turn_writer: TurnWriter,
        turns: Turns,
        statistics: Statistics,
        live: LiveSettings,
    ) -> None:
        self._subscriptions = subscriptions
        self._session_storage = session_storage
        self._turn_writer = turn_writer
        self._rows = turn_writer.storage.sessions
        self._turns = turns
        self._statistics = statistics
        self._live = live

    def on_unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """Remove filters, compared literally [MQTT-3.10.4-1]; one UNSUBACK with a reason for each."""
        work_off(self._turns, connection, _Unsubscribing(self, connection, packet))

    def unsubscribe(self, session: Session, written: str, changes: list[Change]) -> int:
        """Remove one filter; the reason for UNSUBACK. The row of a durable session goes with ``changes``."""
        subscription = session.subscriptions.get(written)
        if subscription is not None:
            self._statistics.unsubscribed += 1
            if session.is_durable:
                # If the connection ends before the packet is worked off, the rows in ``changes`` are not written.
                self._turn_writer.write(*self._session_storage.unsubscribed(session, written))
            self._subscriptions.remove(session, written, subscription)
            if session.is_durable:
                changes.append(self._rows.remove_subscription(session.client_id, written))
            return Reason.SUCCESS
        try:
            check_filter(parse_subscription(written).topic_filter, self._live.now.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            return violation.reason
        return Reason.NO_SUBSCRIPTION_EXISTED

    def write(self, connection: Connection, changes: list[Change], packet: _Unsubscribing) -> None:
        """Write the removals; the client is answered when they are on disk."""
        on_commit = answer_when_kept(connection, packet.send)
        self._turn_writer.change(changes, on_commit, partial(on_not_kept, connection))


class _Unsubscribing:
    """An UNSUBSCRIBE being worked off."""

    __slots__ = ("_changes", "_connection", "_filters", "_handler", "_packet_id", "_reasons", "_session")

    def __init__(self, handler: UnsubscribeHandler, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None  # the connection is open
        self._handler = handler
        self._connection = connection
        self._session = session
        self._packet_id = packet.packet_id
        self._filters = iter(packet.topic_filters)
        self._reasons: list[int] = []
        self._changes: list[Change] = []

    def run(self, deadline: float) -> bool:
        """Handle filters until then, one in any case; True when all are done."""
        for written in self._filters:
            self._reasons.append(self._handler.unsubscribe(self._session, written, self._changes))
            if monotonic() >= deadline:
                return not length_hint(self._filters)
        return True

    def answer(self) -> None:
        """Send the UNSUBACK; that of a durable session when the removal is on disk."""
        if self._session.is_durable:
            self._session.restart_catch_up()
            self._handler.write(self._connection, self._changes, self)
        else:
            self.send()

    def send(self) -> None:
        """Send the UNSUBACK now."""
        self._connection.send_packet(Unsuback(self._packet_id, self._reasons))
