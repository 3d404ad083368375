"""Wills of clients on nodes: what becomes of a will when the channel of its client ends.

The client of a drained node is sent away and comes back elsewhere. Its will waits for it, and is dropped when its client id is
granted again (C30).
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Final

from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import SessionStore
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.session import NEVER, Session, SessionTable
from braidmq.broker.session.wills import Wills
from braidmq.broker.timers import Timers
from braidmq.cluster.home.sessions.held_session import NodeClaim
from braidmq.cluster.registry.messages import Ending

_NO_WILL: Final = frozenset({Ending.DISCARD, Ending.WITHDRAWN, Ending.REPEATED})  # the will is not due, or was published
_MOVED_S: Final = 30  # how long a client that was sent away has to come back, at least (C30)


class HomeWills:
    """The wills of clients whose channels end."""

    def __init__(self, table: SessionTable, flows: Flows, wills: Wills, timers: Timers, writer: TurnWriter) -> None:
        self._table = table
        self._flows = flows
        self._wills = wills
        self._timers = timers
        self._writer = writer
        self._rows: SessionStore = writer.storage.sessions
        self._moved: dict[str, Session] = {}  # their wills wait for the clients to come back elsewhere

    def end_claim(self, claim: NodeClaim, ending: Ending) -> None:
        """A channel has ended whose session is not on disk: its will is the one of its claim."""
        if claim.will is None or ending in _NO_WILL:
            return
        session = self._stand_in(claim.request.client_id, claim.user_name)
        self._table.set_will(session, claim.will)
        if ending is Ending.MOVED:
            self._await_client(session)
        else:
            self._wills.publish(session)

    def end_channel(self, session: Session, ending: Ending) -> None:
        """The channel of a durable session has ended; the session is the core's again."""
        if ending is Ending.DISCARD and session.will is not None:  # the row of the will could not be removed
            self._remove(session)
        elif ending is Ending.MOVED:
            self._defer(session)
        elif ending not in _NO_WILL and session.will_delay_s == 0:
            self._wills.publish(session)

    def _stand_in(self, client_id: str, user_name: str | None) -> Session:
        """A session that only carries a will."""
        session = Session(client_id, self._flows.make(client_id, is_durable=False), monotonic())
        session.user_name = user_name
        return session

    def _remove(self, session: Session) -> None:
        self._table.set_will(session, None)
        self._writer.write(self._rows.remove_will(session.client_id))

    def _defer(self, session: Session) -> None:
        """Let the will of a durable session wait, even if the session ends before that."""
        will, grace_s = session.will, _grace_s(session)
        if will is None:
            return
        if session.expiry_s == NEVER or session.expiry_s > grace_s:
            self._await_client(session)
            return
        stand_in = self._stand_in(session.client_id, session.user_name)
        self._remove(session)
        self._table.set_will(stand_in, will)
        self._await_client(stand_in)

    def _await_client(self, session: Session) -> None:
        """Publish the will unless its client is back within the will's delay, and at least 30 seconds."""
        if session.will_timer is not None:
            session.will_timer.cancel()
        self._moved[session.client_id] = session
        session.will_timer = self._timers.after(_grace_s(session), partial(self._publish_moved, session))

    def _publish_moved(self, session: Session) -> None:
        if self._moved.get(session.client_id) is session:
            del self._moved[session.client_id]
            self._wills.publish(session)

    def note_grant(self, client_id: str) -> None:
        """A client id is granted: the will of a client that was sent away is dropped, whatever becomes of its session."""
        session = self._moved.pop(client_id, None)
        if session is None:
            return
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will_timer = None
        self._table.set_will(session, None)
        if session.is_durable:
            self._writer.write(self._rows.remove_will(client_id))


def _grace_s(session: Session) -> int:
    return max(session.will_delay_s, _MOVED_S)
