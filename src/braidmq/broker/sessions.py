"""What outlives a connection: subscriptions, the message flow, the will, and how long all that is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.lane.flow import Flow
from braidmq.lane.routes import Subscription
from braidmq.mqtt.packets import Will

if TYPE_CHECKING:
    import asyncio

    from braidmq.broker.connection import Connection
    from braidmq.broker.retained import RetainedFeed

NEVER = 0xFFFF_FFFF  # the Session Expiry Interval that means: do not expire


class Session:
    """The state of one client id."""

    __slots__ = (
        "client_id", "connection", "created_at", "ended_at", "expiry_s", "expiry_timer", "feeds", "flow", "is_clean",
        "subscriptions", "user_name", "will", "will_timer",
    )  # fmt: skip

    def __init__(self, client_id: str, flow: Flow, now: float) -> None:
        self.client_id = client_id
        self.flow = flow
        self.connection: Connection | None = None
        self.user_name: str | None = None
        self.created_at = now
        self.ended_at = 0.0  # when the last connection ended; 0: connected
        self.expiry_s = 0
        self.is_clean = True  # the last CONNECT asked for a clean start
        self.expiry_timer: asyncio.TimerHandle | None = None
        self.will: Will | None = None  # to be published if the client leaves without a word
        self.will_timer: asyncio.TimerHandle | None = None
        self.subscriptions: dict[str, Subscription] = {}  # by the filter as the client wrote it
        self.feeds: OrderedDict[bytes, RetainedFeed] | None = None  # retained messages still to be delivered, by filter

    @property
    def is_connected(self) -> bool:
        """Whether a client is using it now."""
        return self.connection is not None

    @property
    def will_delay_s(self) -> int:
        """How long the will waits for the client to come back."""
        return 0 if self.will is None else self.will.properties.will_delay_interval or 0

    def cancel_timers(self) -> None:
        """The client is back, or the session is over: neither expiry nor a delayed will is to happen."""
        if self.expiry_timer is not None:
            self.expiry_timer.cancel()
            self.expiry_timer = None
        if self.will_timer is not None:
            self.will_timer.cancel()
            self.will_timer = None


class SessionTable:
    """All sessions of this node by client id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> Session | None:
        """The session of a client id, connected or not."""
        return self._by_id.get(client_id)

    def add(self, session: Session) -> None:
        """Make it the session of its client id."""
        self._by_id[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Forget it, unless another has taken its place."""
        if self._by_id.get(session.client_id) is session:
            del self._by_id[session.client_id]
