"""What the core's registry asks about the core's own broker: its bans, its waiting sessions and its own connections."""

from __future__ import annotations

from braidmq.access.contract import Credentials
from braidmq.broker.broker import Broker
from braidmq.cluster.home.sessions.held_session import NodeClaim
from braidmq.mqtt.reasons import Reason


class OwnClients:
    """Answers for the broker, once it is made."""

    def __init__(self) -> None:
        self.broker: Broker | None = None

    def is_banned(self, claim: NodeClaim) -> bool:
        """Whether an operator's ban applies to the client of a node."""
        assert self.broker is not None
        shown = Credentials(client_id=claim.request.client_id, user_name=claim.user_name, peer_host=claim.peer_host)
        return self.broker.access.is_banned(shown)

    def guard_of(self, client_id: str) -> int:
        """The guard of a session that waits here, as in its row; 0 if there is none."""
        session = None if self.broker is None else self.broker.sessions.get(client_id)
        return 0 if session is None else session.guard

    def close(self, client_id: str, is_kicked: bool) -> None:
        """A node claims a client id that the core's own client has, or an operator ends its connection."""
        assert self.broker is not None
        session = self.broker.sessions.get(client_id)
        if session is None or session.connection is None:
            return
        if is_kicked:
            session.connection.close(Reason.ADMINISTRATIVE_ACTION, "closed by the operator")
        else:
            session.connection.close(Reason.SESSION_TAKEN_OVER, "another connection uses this client id")
        self.broker.lane.flush()
