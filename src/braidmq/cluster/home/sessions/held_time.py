"""A core that is alone lets nothing fall due (C3, C15, C34).

Its clients and nodes cannot reach it: a will would be published of a client that was here in time, if it could. After it is back,
nodes have a lease to return with the claims that have waited.
"""

from __future__ import annotations

import asyncio

from braidmq.broker.broker import Broker


class HeldTime:
    """Holds the broker's timers from `hold` until some time after `resume`."""

    def __init__(self, broker: Broker, lease_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._lease_s = lease_s
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """The core is alone."""
        self.close()
        self._broker.hold_time(True)

    def resume(self) -> None:
        """The core is back."""
        self.close()
        self._timer = self._loop.call_later(self._lease_s, self._broker.hold_time, False)

    def close(self) -> None:
        """The core stops, or its state has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
