"""The life of a session once a CONNECT has it: its connection leaves it, it ends, expires, or moves to another node.

``TakeoverSteps.open`` gives the session to a newcomer, which holds it until ``commit``, ``abandon`` or ``turn_away``. At most one
connection holds or owns a session: ``Session.connection``. Everything runs on the event loop and nothing awaits.

A node that is not home keeps no session without a client. When a connection ends there, the node writes the session's rows, ends
the grant and forgets the session; its home does the rest: the will, the timers and the session's end (docs/decisions/0026).
"""

from __future__ import annotations

from functools import partial
from time import monotonic, time

from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.presence import Presence
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.reading import replay
from braidmq.broker.session.opening import Opening
from braidmq.broker.session.ports import GrantEnding, Registry
from braidmq.broker.session.revocation import Revocation
from braidmq.broker.session.session import NEVER, Session, SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.broker.timers import Timers
from braidmq.lane.path.lane import Lane
from braidmq.mqtt.packets import Will
from braidmq.mqtt.reasons import Reason


class Lifecycle:
    """Commits, leaves, ends and hands over the sessions of this node."""

    def __init__(
        self,
        sessions: SessionTable,
        registry: Registry,
        subscriptions: Subscriptions,
        wills: Wills,
        storage: SessionStorage,
        writer: TurnWriter,
        *,
        groups: Groups,
        holdings: Holdings,
        timers: Timers,
        hooks: Hooks,
        presence: Presence,
        statistics: Statistics,
        lane: Lane,
        revocation: Revocation,
        is_home: bool,
    ) -> None:
        """``is_home``: sessions wait for their clients on this node."""
        self._sessions = sessions
        self._registry = registry
        self._subscriptions = subscriptions
        self._wills = wills
        self._storage = storage
        self._writer = writer
        self._groups = groups
        self._holdings = holdings
        self._timers = timers
        self._hooks = hooks
        self._presence = presence
        self._statistics = statistics
        self._lane = lane
        self._revocation = revocation
        self._is_home = is_home

    # A newcomer holds the session

    def commit(self, opening: Opening) -> None:
        """CONNACK is about to be sent: the session has the newcomer's terms from now on."""
        session, newcomer = opening.session, opening.newcomer
        if session.user_name != newcomer.user_name:
            # The session is from before there were users: a fleet that is given passwords keeps its sessions.
            session.user_name = newcomer.user_name
            self._revocation.withdraw(session)
            session.flow.note_change()
        session.stays_anonymous = opening.stays_anonymous
        session.expiry_s = newcomer.expiry_s
        session.is_clean = newcomer.clean_start
        session.ended_at = 0.0
        session.is_provisional = False
        if newcomer.will is not None or session.will is not None:
            self._sessions.adopt_will(session, newcomer.will)  # [MQTT-3.1.3-9]: an old one that is delayed is not published

    def abandon(self, session: Session) -> None:
        """The client that held the session has left before its CONNACK: the session keeps waiting, as if it had not come."""
        session.connection = None
        self._sessions.set_next_will(session, None)
        if session.expiry_s == 0 and (self._is_home or not session.is_durable):
            self.end(session, GrantEnding.WITHDRAWN)
            return
        gone_s = self._gone_s(session)
        if session.is_durable:
            self._writer.write(*self._storage.put_back(session, ended_at=time() - gone_s))
        if self._is_home:
            self.wait_for_return(session, gone_s)
        else:
            self._forget(session)
        self._registry.end(session.grant, keeps_session=True, ending=GrantEnding.WITHDRAWN)

    def _gone_s(self, session: Session) -> float:
        """Seconds since its last connection ended."""
        return self._timers.now() - session.away_since if session.away_since is not None else 0.0

    def turn_away(self, session: Session, connection: Connection) -> None:
        """The client is rejected after all: when it returns, it must not find the session it was denied [MQTT-3.2.2-4]."""
        if session.connection not in (None, connection) or self._sessions.get(session.client_id) is not session:
            return  # another connection has it, or it has ended
        if session.is_provisional:
            self._detach(session)
            self.end(session, GrantEnding.WITHDRAWN)
        elif session.connection is connection:
            self.abandon(session)

    def set_down(self, session: Session) -> None:
        """The session was restored for a newcomer that is refused: it waits on, here or at its home."""
        if self._is_home:
            self.wait_for_return(session, self._gone_s(session))
        else:
            self._forget(session)

    # The connection ends, or the session

    def leave(self, session: Session, ending: GrantEnding) -> None:
        """Its connection has ended: publish the will now or later, and end the session now or later."""
        self._detach(session)
        if not self._is_home:
            self._go_home(session, ending)
            return
        if ending is not GrantEnding.PUBLISH:
            self._sessions.set_will(session, None)
        if session.expiry_s == 0:
            self.end(session, ending)
            return
        self._groups.redispatch(session.flow, is_over=False)
        if session.is_durable:
            self._writer.write(*self._storage.left(session))
        self._holdings.left(session.flow)
        if session.will_delay_s == 0:
            self._wills.publish(session)
        self.wait_for_return(session, 0.0)
        # Last: a registry may give the session to another node at once.
        self._registry.end(session.grant, keeps_session=True, ending=ending)

    def _go_home(self, session: Session, ending: GrantEnding) -> None:
        """Write the rows of a durable session and forget it: its home restores it, and publishes its will as ``ending`` says."""
        if ending is GrantEnding.DISCARD:
            self._sessions.set_will(session, None)
        if session.is_durable:
            self._groups.redispatch(session.flow, is_over=False)
            self._writer.write(*self._storage.left(session), *self._storage.moving(session))
        else:
            self._statistics.ended += 1
            self._hooks.tell("session_ended", session.client_id)
        self._forget(session)
        self._registry.end(session.grant, keeps_session=session.is_durable, ending=ending)

    def cut(self, session: Session) -> Connection | None:
        """Close the connection of a connected session, for a takeover; returns it if its client had been told of the session."""
        connection = session.connection
        assert connection is not None
        was_open = connection.is_open
        self._statistics.taken_over += 1
        connection.session = None  # so that ``close`` does nothing to the session
        connection.close(Reason.SESSION_TAKEN_OVER, detail := "another connection uses this client id")
        self._detach(session)
        if not was_open:
            return None  # it only held the session, which has taken nothing from it
        self._presence.count_closed(connection, Reason.SESSION_TAKEN_OVER, detail)
        session.ended_at = monotonic()
        session.away_since = self._timers.now()
        return connection

    def _detach(self, session: Session) -> None:
        session.connection = None
        if session.next_will is not None:
            self._sessions.set_next_will(session, None)
        session.restart_catch_up()
        if session.recall is not None:
            session.recall.close()
            session.recall = None
        replay.pause_all(session)
        session.flow.detach()

    def wait_for_return(self, session: Session, gone_s: float) -> None:
        """The session has been without a client for this long: schedule its will and its expiry."""
        self.note_absence(session, gone_s)
        delay_s = session.will_delay_s
        if session.will is not None and (delay_s < session.expiry_s or session.expiry_s == NEVER):
            session.will_timer = self._timers.after(max(0.0, delay_s - gone_s), partial(self._wills.publish, session))
        if session.expiry_s != NEVER:
            session.expiry_timer = self._timers.after(max(0.0, session.expiry_s - gone_s), partial(self._expire, session))

    def note_absence(self, session: Session, gone_s: float) -> None:
        """The session has been without a client for this long."""
        session.ended_at = monotonic() - gone_s
        session.away_since = self._timers.now() - gone_s

    def _expire(self, session: Session) -> None:
        self._statistics.expired += 1
        self.end(session)
        self._lane.flush()

    def end(self, session: Session, ending: GrantEnding = GrantEnding.PUBLISH) -> None:
        """End the session and remove its state; its home publishes a will that still waits [MQTT-3.1.2-8]."""
        session.cancel_timers()
        if session.will is not None and self._is_home:
            self._wills.publish(session)
        elif session.will is not None:
            self._sessions.set_will(session, None)
        session.end_feeds()
        if session.is_durable:
            self._writer.write(*self._storage.ended(session))
        session.flow.is_over = True
        self._subscriptions.end(session)
        self._sessions.remove(session)
        self._registry.end(session.grant, keeps_session=False, ending=ending)
        self._statistics.ended += 1
        self._hooks.tell("session_ended", session.client_id)

    # The session moves to another node

    def hand_over(self, session: Session) -> Will | None:
        """Give the session to another node: this one forgets it. Returns its will.

        A connection is closed as by a takeover. A durable session's rows stay and are up to date when the log has written what
        it has by now; the other node restores the session from them. No will is published and no row of one removed: the
        caller publishes the will, or leaves it to the next owner. ``Lane.flush`` must follow.
        """
        had_connection = session.connection is not None
        closed = self.cut(session) if had_connection else None
        will = session.will
        if session.is_durable:
            self._groups.redispatch(session.flow, is_over=False)
            if closed is not None:
                changes = self._storage.left(session)
            elif had_connection:  # its client was not told of it: the session has kept its own terms
                changes = self._storage.put_back(session, ended_at=time() - self._gone_s(session))
            else:
                changes = self._storage.cursor_changes(session)
            self._writer.write(*changes, *self._storage.moving(session))
        self._forget(session)
        if had_connection:
            self._registry.end(session.grant, keeps_session=True, ending=GrantEnding.TAKEN)
        if closed is not None:
            self._presence.tell_closed(closed, Reason.SESSION_TAKEN_OVER)
        return will

    def _forget(self, session: Session) -> None:
        """Free what this node has of a session without a connection; its rows stay."""
        session.cancel_timers()
        self._wills.forget(session)
        self._sessions.set_will(session, None)
        session.end_feeds()
        session.flow.is_over = True
        self._sessions.remove(session)
        if session.is_durable:
            self._subscriptions.hand_over(session)
            session.flow.hand_over()
        else:
            self._subscriptions.end(session)
