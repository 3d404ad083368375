"""The life of a session: a CONNECT opens or takes it, its connection leaves it, it ends, expires, or goes to another node.

``open`` takes the steps of ``takeover``; then the newcomer holds the session until ``commit``, ``abandon`` or ``turn_away``. At
most one connection holds or owns a session: ``Session.connection``. Everything runs on the event loop and nothing awaits; tests
use ``take`` to stop after each step.

A node that is not home keeps no session without a client. When a connection ends there, the session's rows are written, the grant
is ended and the session is forgotten; its home has the rest: the will, the timers and the session's end (docs/decisions/0026).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, assert_never

from braidmq.access.contract import Refused
from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.connection.presence import Presence
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.reading import replay
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.opening import Newcomer, Opening
from braidmq.broker.session.ports import Grant, GrantEnding, Registry
from braidmq.broker.session.revocation import Revocation
from braidmq.broker.session.session import NEVER, Session, SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.session.takeover import FOLLOW_CLOSE, NEW, Facts, Step, resolve
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.broker.timers import Timers
from braidmq.lane.path.lane import Lane
from braidmq.mqtt.packets import Will
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection


_PROTECTED = Refused(Reason.NOT_AUTHORIZED, "the session of this client id belongs to a user: log in, or use another id")
_SUPERSEDED = Refused(Reason.SERVER_BUSY, "a newer connection has this client id")


class Takeover:
    """A takeover under way: the session that its steps have come to, and the connection that they have closed."""

    __slots__ = ("closed", "newcomer", "old", "session")

    def __init__(self, old: Session | None, newcomer: Newcomer) -> None:
        self.old = old
        self.newcomer = newcomer
        self.session = old
        self.closed: Connection | None = None  # if its client had been told of the session


class Lifecycle:
    """Opens, takes over, leaves and ends the sessions of this node."""

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
        flows: Flows,
        revocation: Revocation,
        has_users: Callable[[], bool],
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
        self._flows = flows
        self._revocation = revocation
        self._has_users = has_users
        self._is_home = is_home

    # Coming

    def open(self, newcomer: Newcomer, grant: Grant) -> Opening | Refused:
        """Let the newcomer hold the session of its client id; the old connection and perhaps the old state end.

        A new session is durable if it is to outlive its connection. If the newcomer is refused, nothing has happened.
        """
        taking = self.take(newcomer, grant)
        while True:
            try:
                next(taking)
            except StopIteration as end:
                opened: Opening | Refused = end.value
                return opened

    def take(self, newcomer: Newcomer, grant: Grant) -> Generator[Step, None, Opening | Refused]:
        """The same in steps: yields each step after it was taken, and returns what ``open`` returns.

        If it fails, or is closed before its end, the session waits on as if the newcomer had not come. It must be closed before
        another connection takes the session.
        """
        old = self._sessions.get(grant.client_id)
        row, steps = NEW if old is None else resolve(self._facts(old, newcomer))
        if row.session_present is not None and not self._registry.commit(grant):
            return _SUPERSEDED
        takeover = Takeover(old, newcomer)
        taken = 0
        try:
            for step in steps:
                self._take(step, takeover)
                taken += 1
                yield step
        except BaseException:
            if row.session_present is not None:
                self._stop(takeover, steps[:taken], steps[taken:], grant)
            raise
        if row.session_present is None:
            return _PROTECTED
        return self._hold(takeover, row.session_present, grant)

    def _hold(self, takeover: Takeover, is_present: bool, grant: Grant) -> Opening:
        """All steps were taken: the newcomer holds the session."""
        old, session, newcomer = takeover.old, takeover.session, takeover.newcomer
        assert session is not None  # the last step has made or resumed it
        session.guard = grant.guard
        session.connection = newcomer.connection
        if newcomer.will is not None:
            self._sessions.set_next_will(session, newcomer.will)
        stays_anonymous = session.stays_anonymous
        if newcomer.user_name is None and session.is_durable and not stays_anonymous:
            # What a client without credentials may have planted must not reach a user.
            had_user = grant.replaces_user or (old is not None and old.user_name is not None)
            stays_anonymous = had_user or self._has_users()
            if not is_present:
                session.stays_anonymous = stays_anonymous
        return Opening(session, newcomer, is_present, stays_anonymous)

    def _take(self, step: Step, takeover: Takeover) -> None:
        session, newcomer = takeover.session, takeover.newcomer
        if step is Step.CREATE:
            takeover.session = self._create(newcomer)
            return
        assert session is not None  # all other steps are about an old session
        match step:
            case Step.REFUSE:
                self._statistics.owners_protected += 1
            case Step.CLOSE:
                takeover.closed = self._close(session)
            case Step.RETURN_LEASES:
                self._groups.redispatch(session.flow, is_over=False)
                self._holdings.left(session.flow)
            case Step.PUBLISH_PROMPT_WILL:
                if session.will_delay_s == 0:
                    self._wills.publish(session)
            case Step.TELL_CLOSED:
                if takeover.closed is not None:
                    self._presence.tell_closed(takeover.closed, Reason.SESSION_TAKEN_OVER)
            case Step.END:
                self.end(session)
            case Step.DISCARD:
                self._statistics.discarded += 1
                self.end(session)
            case Step.RESUME:
                self._resume(session)
            case _:
                assert_never(step)

    def _stop(self, takeover: Takeover, taken: tuple[Step, ...], left: tuple[Step, ...], grant: Grant) -> None:
        """The newcomer has left between two steps: complete the end of the old connection, and keep the old session waiting."""
        if Step.CLOSE in taken:
            for step in left:
                if step in FOLLOW_CLOSE:
                    self._take(step, takeover)
        session = takeover.session
        if session is None or self._sessions.get(grant.client_id) is not session:
            self._registry.end(grant, keeps_session=False, ending=GrantEnding.WITHDRAWN)
            return
        session.guard = grant.guard  # the registry has committed it, and rejects lower ones
        if session.is_provisional:
            self.end(session, GrantEnding.WITHDRAWN)
        elif session.connection is None:
            session.cancel_timers()
            self.abandon(session)

    def _facts(self, session: Session, newcomer: Newcomer) -> Facts:
        owner, user_name = session.user_name, newcomer.user_name
        return Facts(
            has_session=True,
            is_connected=session.connection is not None,
            expiry_s=session.expiry_s,
            is_protected=owner is not None and user_name is None and self._has_users(),
            # Its subscriptions and messages are for its user, not for every client that knows the client id.
            is_open=session.is_open_to(user_name),
            clean_start=newcomer.clean_start,
        )

    def _close(self, session: Session) -> Connection | None:
        """A newer connection on this node has the client id; as ``_cut``."""
        closed = self._cut(session)
        self._registry.end(session.grant, keeps_session=True, ending=GrantEnding.TAKEN)
        return closed

    def _cut(self, session: Session) -> Connection | None:
        """Close the session's connection with its reason; returns the connection if its client had been told of the session."""
        connection = session.connection
        assert connection is not None  # the case is that of a connected session
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

    def _create(self, newcomer: Newcomer) -> Session:
        client_id = newcomer.client_id
        now = monotonic()
        session = Session(client_id, self._flows.make(client_id, is_durable=newcomer.expiry_s > 0), now)
        session.user_name = newcomer.user_name
        session.expiry_s = newcomer.expiry_s
        session.is_clean = newcomer.clean_start
        session.ended_at = now
        self._sessions.add(session)
        self._statistics.created += 1
        self._hooks.tell("session_created", client_id)
        return session

    def _resume(self, session: Session) -> None:
        self._wills.publish_if_due(session)
        session.cancel_timers()
        self._statistics.resumed += 1
        self._hooks.tell("session_resumed", session.client_id)

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

    # Going

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
        session.feeds = None
        if session.is_durable:
            self._writer.write(*self._storage.ended(session))
        session.flow.is_over = True
        self._subscriptions.end(session)
        self._sessions.remove(session)
        self._registry.end(session.grant, keeps_session=False, ending=ending)
        self._statistics.ended += 1
        self._hooks.tell("session_ended", session.client_id)

    # Moving

    def hand_over(self, session: Session) -> Will | None:
        """Give the session to another node: this one forgets it. Returns its will.

        A connection is closed as by a takeover. A durable session's rows stay and are up to date when the log has written what
        it has by now; the other node restores the session from them. No will is published and no row of one removed: the
        caller publishes the will, or leaves it to the next owner. ``Lane.flush`` must follow.
        """
        had_connection = session.connection is not None
        closed = self._cut(session) if had_connection else None
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
        session.feeds = None
        session.flow.is_over = True
        self._sessions.remove(session)
        if session.is_durable:
            self._subscriptions.hand_over(session)
            session.flow.hand_over()
        else:
            self._subscriptions.end(session)
