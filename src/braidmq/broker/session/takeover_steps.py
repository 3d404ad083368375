"""Takes the steps of a takeover: closes the old connection, and resumes, ends or creates the session of a CONNECT's client id.

``takeover`` decides which steps a CONNECT takes. Everything runs on the event loop and nothing awaits; tests use ``take`` to stop
after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from typing import assert_never

from braidmq.access.contract import Refused
from braidmq.broker.bounds.holdings import Holdings
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.presence import Presence
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.opening import Newcomer, Opening
from braidmq.broker.session.ports import Grant, GrantEnding, Registry
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.takeover import FOLLOW_CLOSE, NEW, Facts, Step, resolve
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.mqtt.reasons import Reason

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


class TakeoverSteps:
    """Opens the session of a client id for its newest connection."""

    def __init__(
        self,
        sessions: SessionTable,
        registry: Registry,
        lifecycle: Lifecycle,
        wills: Wills,
        *,
        groups: Groups,
        holdings: Holdings,
        hooks: Hooks,
        presence: Presence,
        statistics: Statistics,
        flows: Flows,
        has_users: Callable[[], bool],
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._lifecycle = lifecycle
        self._wills = wills
        self._groups = groups
        self._holdings = holdings
        self._hooks = hooks
        self._presence = presence
        self._statistics = statistics
        self._flows = flows
        self._has_users = has_users

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
                self._lifecycle.end(session)
            case Step.DISCARD:
                self._statistics.discarded += 1
                self._lifecycle.end(session)
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
            self._lifecycle.end(session, GrantEnding.WITHDRAWN)
        elif session.connection is None:
            session.cancel_timers()
            self._lifecycle.abandon(session)

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
        """A newer connection on this node has the client id; as ``Lifecycle.cut``."""
        closed = self._lifecycle.cut(session)
        self._registry.end(session.grant, keeps_session=True, ending=GrantEnding.TAKEN)
        return closed

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
