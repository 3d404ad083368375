"""What a core and a replicant have in common: the parts that serve clients and operators."""

from __future__ import annotations

import asyncio

from braidmq.access.local import LocalAccess
from braidmq.api.server import ApiServer
from braidmq.base.config.addresses import Address
from braidmq.base.config.sources import Config
from braidmq.base.file_descriptors import Room
from braidmq.broker.bounds.loop_watch import LoopWatch
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.node.process import Rooms


class ServingNode:
    """The parts of a node that do not depend on its role. The subclass makes and ends them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings = config.settings
        self._broker: Broker | None = None
        self._access: LocalAccess | None = None
        self._listeners: ListenerSet | None = None
        self._api: ApiServer | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watch: LoopWatch | None = None
        self._rooms = Rooms()

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The address of each listener, by a name such as ``"tcp:default"``."""
        return self._listeners.addresses() if self._listeners is not None else {}

    @property
    def api_address(self) -> Address | None:
        """The address of status and metrics."""
        return self._api.address if self._api is not None else None

    @property
    def broker(self) -> Broker:
        """The broker, once started."""
        assert self._broker is not None, "the node is not started"
        return self._broker

    @property
    def listeners(self) -> ListenerSet:
        """The listeners, once started."""
        assert self._listeners is not None, "the node is not started"
        return self._listeners

    @property
    def access(self) -> LocalAccess:
        """Access control, once started."""
        assert self._access is not None, "the node is not started"
        return self._access

    @property
    def client_room(self) -> Room:
        """The file descriptors for clients."""
        return self._rooms.clients

    @property
    def api_room(self) -> Room:
        """The file descriptors for the API."""
        return self._rooms.api

    @property
    def control_room(self) -> Room:
        """The file descriptors for the control socket."""
        return self._rooms.control
