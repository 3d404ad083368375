"""The broker of a node: keeps the time of its parts and passes changed settings and rules on to them.

Everything here runs on the event loop and nothing awaits between a check and the act that relies on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, time

from braidmq.base.config.settings import Settings
from braidmq.base.deadline_clock import after_reading
from braidmq.broker.assembly import BrokerParts
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.deadlines import TICK_S
from braidmq.broker.connection.rates import TokenBucket
from braidmq.broker.listeners.origin import ListenerInfo
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.ports import Storage
from braidmq.broker.session.ports import AccessControl, NodePorts
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.broker")

_EXPIRIES_MAX = 5000  # retained messages removed in one tick: about 5 ms
_LOCAL = NodePorts()
_STOP_S = 2.0  # how long clients have to take their DISCONNECT when the node stops


class Broker(BrokerParts):
    """Starts, ticks, reconfigures and stops the parts of a node's broker. Made inside a running loop by ``node``."""

    def __init__(
        self,
        settings: Settings,
        access: AccessControl,
        hooks: Hooks,
        storage: Storage,
        clock: Callable[[], float] | None = None,
        ports: NodePorts = _LOCAL,
    ) -> None:
        """``clock`` replaces the ``DeadlineClock`` in tests; ``ports`` are what a cluster replaces."""
        super().__init__(settings, access, hooks, storage, clock, ports)
        self._ticker: asyncio.TimerHandle | None = None
        self._access_epoch = access.epoch
        self._tick()

    # For listeners

    def make_connection(self, listener: ListenerInfo) -> Connection:
        """The protocol object of a new connection."""
        return Connection(self._context, listener)

    def admit(self) -> bool:
        """Whether the rate of new connections allows one more."""
        return self._accepts.admit(monotonic())

    # Start, time and end

    def hold_time(self, is_held: bool) -> None:
        """Let no will, session or delayed message fall due, or go on; those that were due meanwhile are due then."""
        self.timers.is_held = self.delayed.is_held = is_held

    def restore(self, *, decides: bool = True) -> None:
        """Restore sessions and messages from storage, before the listeners open; ``decides``: see `Restoration.run`."""
        now = time()
        for stored in self.turn_writer.storage.retained.load():
            self.pipeline.restore_retained(stored)
        for stored in self.turn_writer.storage.delayed.load():
            self.delayed.restore(stored, now)
        count = self.restoration.run(decides=decides)
        self.enforce_access()  # rights may have been withdrawn meanwhile
        if count or len(self.retained) or len(self.delayed):
            log.info("%d sessions, %d retained and %d delayed messages restored", count, len(self.retained), len(self.delayed))

    def _tick(self) -> None:
        now = monotonic()
        self.state.now = judged_at = self.timers.beat()
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        # Packets that have arrived by now are in time, so they are read before deadlines are judged.
        after_reading(self.loop, partial(self.wheel.turn, judged_at))
        self.retained.expire(now, _EXPIRIES_MAX)
        self.holdings.tick()
        if self.access.epoch != self._access_epoch:
            self.enforce_access()
        self.cursors.tick()
        self.lane.flush()

    async def stop(self) -> None:
        """Disconnect every client and release all resources."""
        for connection in list(self.connections):
            connection.close(Reason.SERVER_SHUTTING_DOWN, "the node is stopping", discard_will=True)
        self.lane.flush()
        if not await self.connections.wait_empty(_STOP_S):
            log.info("%d clients did not read their DISCONNECT in time", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        for session in self.sessions:
            session.cancel_timers()
        self.delayed.stop()
        self.connections.cancel_tasks()
        self.decoding.close()
        self.turn_writer.recorder.outcomes.finish()
        self.cursors.stop()
        self.turn_writer.stop()

    # Changes at run time

    def reconfigure(self, settings: Settings) -> None:
        """Take over settings that can change while clients are connected; the one place that passes them on."""
        self.live.now = settings
        self._connack.reconfigure()
        self.users.reconfigure(settings)
        self.flows.reconfigure(self.sessions)
        self.state.outbox_bytes_max = settings.limits.outbox_bytes_max
        self.state.held_bytes_max = settings.limits.held_bytes_max
        self.state.unread_bytes_max = settings.limits.outboxes_bytes_max
        self.parts.bytes_max = settings.limits.parts_bytes_max
        self.drops.writes = settings.log.drops
        self.groups.use(settings.shared.strategy)
        self.retained.messages_max = settings.retained.messages_max
        self.retained.bytes_max = settings.retained.bytes_max
        if settings.mqtt.topic_levels_max != self.routes.levels_max:
            self.routes.levels_max = settings.mqtt.topic_levels_max
            self.routes.refresh()
        if settings.limits.connections_per_s != self._accepts.rate:
            self._accepts = TokenBucket(settings.limits.connections_per_s, monotonic())
        self.enforce_access()

    def enforce_access(self) -> None:
        """Rules, users or bans have changed: end only what is no longer allowed.

        While the ACL file cannot be used, no client stays, so that nothing is delivered, and sessions keep what they have.
        """
        self._access_epoch = self.access.epoch
        for connection in list(self.connections):
            if not connection.is_open:
                continue
            if connection.is_still_allowed():
                connection.take_rules()
            else:
                connection.close(Reason.NOT_AUTHORIZED, "access was withdrawn")
        if self.access.has_rules:
            for session in list(self.sessions):
                self.revocation.withdraw(session)
            self.wills.publish_due()
            self.delayed.publish_overdue()
        self.lane.flush()
