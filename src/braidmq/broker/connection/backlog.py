"""Gives clients the messages that wait for them elsewhere: retained messages, catch-up, replays and shared groups.

Each client has a turn (``bounds.turns``) in which it gets a slice, as much as it accepts. It asks for the next turn when an
acknowledgement or the transport makes room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from braidmq.base.errors import Corruption
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.connection import Connection
from braidmq.broker.session.session import Session
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")


class BacklogFeeder:
    """Feeds the clients that have something waiting, in turn; fills `connection.context.BacklogTurns`."""

    def __init__(
        self,
        turns: Turns,
        *,
        feed_retained: Callable[[Connection], bool],
        feed_catch_up: Callable[[Session], bool],
        feed_replays: Callable[[Session], bool],
        feed_groups: Callable[[Session], bool],
    ) -> None:
        """Each ``feed`` gives a slice and tells whether it can continue at once in another turn."""
        self._turns = turns
        self._feed_retained = feed_retained
        self._feed_catch_up = feed_catch_up
        self._feed_replays = feed_replays
        self._feed_groups = feed_groups

    def give_soon(self, connection: Connection) -> None:
        """Give the client what waits for it, when it has its turn."""
        if not connection.is_feeding:
            connection.is_feeding = True
            self._turns.add(connection, partial(self.give, connection))

    def give(self, connection: Connection) -> None:
        """Give the client a slice of what waits for it, as much as it accepts."""
        connection.is_feeding = False
        session = connection.session
        if session is None or not connection.is_open:
            return
        goes_on = self._feed_retained(connection)
        try:
            goes_on |= self._feed_catch_up(session)
            goes_on |= self._feed_replays(session)
        except Corruption as problem:
            log.error("cannot read recorded messages for %s: %s", connection.client_id, problem)
            connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the log cannot be read")
        goes_on |= self._feed_groups(session) and connection.has_room() and session.flow.has_room()
        connection.lane.flush()
        connection.wants_room = session.wants_room
        if goes_on and connection.wants_room:
            self.give_soon(connection)  # else an acknowledgement or the transport asks for the next turn
