"""Makes the message flows of sessions, with the limits of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.ports import MessageLog
from braidmq.broker.session.session import Session
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.state import State


class Flows:
    """Makes flows, and passes changed limits on to those that exist."""

    def __init__(self, live: LiveSettings, state: State, log: MessageLog) -> None:
        self._live = live
        self._state = state
        self._log = log

    def make(self, client_id: str, *, is_durable: bool) -> LogFlow:
        """The flow of a session, which follows the log from now on."""
        limits = self._live.now.session
        flow = LogFlow(client_id, self._state, limits.queue_messages_max, limits.queue_bytes_max, limits.queue_qos0, is_durable)
        flow.home_shard = self._log.shard_of(client_id)
        return flow

    def reconfigure(self, sessions: Iterable[Session]) -> None:
        """The limits may have changed: apply them to the flows of these sessions."""
        limits = self._live.now.session
        for session in sessions:
            session.flow.queue_messages_max = limits.queue_messages_max
            session.flow.queue_bytes_max = limits.queue_bytes_max
            session.flow.queue_qos0 = limits.queue_qos0
