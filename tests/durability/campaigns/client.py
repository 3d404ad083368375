"""A durable client of a campaign, on ``Wire``: it comes back whenever its connection or the node is gone.

All clients of a campaign share one event loop, so that a node can be killed before any of them reads another byte; a ``Wire`` is
read when the loop says that it is readable. Publishers and subscribers say what is sent and which answers are right.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import NamedTuple

from braidmq.mqtt.packets import MQTT5, Connack, Connect, Disconnect, Packet, Pingreq, Pingresp, Will
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from tests.durability.campaigns.ledger import Ledger
from tests.support.clients.wire import Wire

EXPIRY_S = 3600
ANSWER_S = 10.0


class ServedPort:
    """The port of the node, while it serves."""

    def __init__(self) -> None:
        self._port = 0
        self._is_open = asyncio.Event()

    def open(self, port: int) -> None:
        """The node serves."""
        self._port = port
        self._is_open.set()

    def close(self) -> None:
        """The node is gone."""
        self._is_open.clear()

    async def port(self) -> int:
        """The port, as soon as there is one."""
        await self._is_open.wait()
        return self._port


def _always() -> bool:
    return True


class Scene(NamedTuple):
    """What the clients of a campaign share; ``on_packet`` counts its progress. ``endings``: reason codes with which a node may
    refuse or disconnect a client. ``may_publish``: whether new messages may be published now.
    """

    seed: int
    ledger: Ledger
    served: ServedPort
    on_packet: Callable[[], None]
    endings: frozenset[int] = frozenset()
    may_publish: Callable[[], bool] = _always


class DurableClient:
    """One client id with a session that outlives connections; ``run`` until cancelled.

    State that the protocol asks a client to keep lives in the subclasses and survives connections. The client itself cuts its
    connection after one in ``drop_one_in`` reads; 0: never.
    """

    def __init__(self, name: str, version: int, scene: Scene, drop_one_in: int) -> None:
        self.name = name
        self.version = version
        self.ledger = scene.ledger
        self.random = random.Random(f"{scene.seed} {name}")
        self.connections = 0
        self._served = scene.served
        self._on_packet = scene.on_packet
        self._endings = scene.endings
        self._drop_one_in = drop_one_in
        self._wire: Wire | None = None
        self._arrived = asyncio.Event()  # there is something to read, or the connection was cut
        self._is_connected = asyncio.Event()  # since the CONNACK
        self._has_session = False
        self._pong: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Connect, serve the connection to its end, and begin again."""
        while True:
            port = await self._served.port()
            with contextlib.suppress(OSError):
                await self._serve(port)
            if self._pong is not None and not self._pong.done():
                self._pong.set_exception(ConnectionError("the connection ended"))
            # A node that was killed this moment may still be thought to be there.
            await asyncio.sleep(0.002)

    async def ping(self) -> None:
        """Return when everything that the broker had sent before was dealt with; raises OSError if the connection ends first."""
        await self._is_connected.wait()
        self._pong = asyncio.get_running_loop().create_future()
        self.send(Pingreq())
        await asyncio.wait_for(self._pong, ANSWER_S)

    def send(self, *packets: Packet) -> None:
        """Send, if connected; what is lost with a connection is for the session to bring again."""
        if self._wire is not None and self._is_connected.is_set() and packets:
            try:
                self._wire.send(*packets)
            except OSError:
                self.cut()

    def cut(self) -> None:
        """Lose the connection with everything that is under way on it."""
        if self._wire is not None:
            asyncio.get_running_loop().remove_reader(self._wire.transport)
            self._wire.close()
            self._wire = None
            self._is_connected.clear()
            self._arrived.set()

    def complain(self, what: str) -> None:
        """Note that the broker did what the protocol forbids."""
        self.ledger.violations.append(f"{self.name}, connection {self.connections}: {what}")

    def properties(self) -> Properties:
        """Those of CONNECT, for MQTT 5."""
        return Properties(session_expiry_interval=EXPIRY_S)

    def will(self) -> Will | None:
        """That of CONNECT."""
        return None

    def connected(self) -> None:
        """The broker has let us in; the session is there, or new at the very first time."""
        raise NotImplementedError

    def received(self, packet: Packet) -> None:
        """Deal with a packet."""
        raise NotImplementedError

    async def _serve(self, port: int) -> None:
        self._wire = wire = Wire("127.0.0.1", port, self.version)
        self._arrived.clear()
        asyncio.get_running_loop().add_reader(wire.transport, self._arrived.set)
        try:
            properties = self.properties() if self.version == MQTT5 else NO_PROPERTIES
            wire.send(Connect(self.name, self.version, clean_start=False, properties=properties, will=self.will()))
            is_in = False  # not the event: what arrived before a cut is dealt with after it
            while (packets := await self._next_packets(wire)) is not None:
                for packet in packets:
                    if is_in:
                        self._handle(packet)
                    else:
                        self._let_in(packet)
                        is_in = True
                if packets and self._drop_one_in and self.random.randrange(self._drop_one_in) == 0:
                    return
        finally:
            self.cut()

    async def _next_packets(self, wire: Wire) -> list[Packet] | None:
        """What has arrived, perhaps nothing whole; None at the end of the connection."""
        await self._arrived.wait()
        self._arrived.clear()
        return wire.take_arrived() if self._wire is wire else None

    def _let_in(self, packet: Packet) -> None:
        assert isinstance(packet, Connack), f"{self.name} got {packet} for CONNECT"
        if packet.reason in self._endings:
            raise ConnectionRefusedError(f"0x{packet.reason:02X}")
        assert packet.reason == 0, f"{self.name} was refused with 0x{packet.reason:02X}"
        # The other way round is legal: a CONNACK that was lost with the node.
        if self._has_session and not packet.session_present:
            self.complain("the session is gone")
        self._has_session = True
        self._is_connected.set()
        self.connections += 1
        self.connected()
        self._on_packet()

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Pingresp():
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(None)
            case Disconnect() if packet.reason not in self._endings:
                self.complain(f"DISCONNECT with 0x{packet.reason:02X}")
            case Disconnect():
                pass  # the end of the connection follows
            case _:
                self.received(packet)
                self._on_packet()
