"""The MQTT client of tests within one process: packets in, packets out, nothing done behind the test's back.

What a kind of client does on top of its connection is beside it: ``producers`` (functions), ``receiver`` (the receiving half of a
session over many connections), ``strict_receiver`` (the same as an oracle, which opens no connection), ``model_publisher``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from braidmq.base.config.settings import ListenerSettings
from braidmq.broker.broker import Broker
from braidmq.broker.connection.connection import Connection
from braidmq.broker.listeners.origin import ListenerInfo
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import (
    MQTT5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
    Unsuback,
    Unsubscribe,
    Will,
)
from braidmq.mqtt.properties import NO_PROPERTIES, Properties

FRAME_MAX = 268_435_460

AnyPacket = TypeVar("AnyPacket")


class Pipe:
    """A transport that hands what is written to the client at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, on_written: Callable[[], None]) -> None:
        self._loop = loop
        self._connection = connection
        self._on_written = on_written
        self.written = bytearray()
        self.is_reading = True
        self.is_closed = False
        self.is_lost = False  # as with asyncio's, what is written then goes nowhere

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written to after close"
        if not self.is_lost:
            self.written += data
            self._on_written()

    def close(self) -> None:
        if not self.is_closed and not self.is_lost:
            self.is_closed = True
            self._loop.call_soon(self._connection.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed or self.is_lost

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer."""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else None


class Peer:
    """One connection. Methods that wait for an answer let the world ``settle``; ``send`` only hands bytes over."""

    def __init__(
        self,
        broker: Broker,
        version: int,
        loop: asyncio.AbstractEventLoop,
        *,
        settle: Callable[[], None] | None = None,
        on_packet: Callable[[Packet], None] | None = None,
    ) -> None:
        """``settle`` runs the loop until nothing happens any more. ``on_packet`` is given each packet as it arrives; without it
        packets wait for ``take``.
        """
        listener = ListenerInfo("ws", "test", ListenerSettings(bind="127.0.0.1:0"), is_on_loopback=True)
        self.connection = broker.make_connection(listener)
        self.version = version
        self._settle = settle
        self._on_packet = on_packet
        self.client_id = ""
        self.connack = Connack(reason=0xFF, session_present=False)
        self._pipe = Pipe(loop, self.connection, self._on_written)
        self._splitter = FrameSplitter(FRAME_MAX)
        self._inbox: list[Packet] = []
        self._ids = itertools.count(1)
        self.connection.connection_made(self._pipe)  # type: ignore[arg-type]

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self._pipe.is_closing()

    @property
    def is_read(self) -> bool:
        """Whether the broker takes more of what this client sends."""
        return self._pipe.is_reading

    # Single packets

    def send(self, *packets: Packet) -> None:
        """Hand packets to the broker in one piece; nothing else happens."""
        assert not self.is_closed, "sent to a closed connection"
        self.connection.feed(b"".join(encode(packet, self.version) for packet in packets))

    def take(self) -> list[Packet]:
        """What has arrived since the last call."""
        data = bytes(self._pipe.written)
        self._pipe.written.clear()
        if data:
            self._inbox += [decode(first, body, self.version) for first, body in self._splitter.feed(data)]
        taken, self._inbox = self._inbox, []
        return taken

    def _on_written(self) -> None:
        if self._on_packet is not None:
            for packet in self.take():
                self._on_packet(packet)

    def settle(self) -> None:
        """Let everything happen that follows from what was sent."""
        assert self._settle is not None, "the loop runs already: await what you wait for"
        self._settle()

    def receive(self) -> list[Packet]:
        """What has arrived when nothing happens any more."""
        self.settle()
        return self.take()

    def cut(self) -> None:
        """The network is gone; what is on its way to this client is lost."""
        if not self.is_closed:
            self._pipe.is_lost = True
            self.connection.connection_lost(None)

    def expect(self, kind: type[AnyPacket]) -> AnyPacket:
        """The one packet that arrives, which must be of this kind."""
        packets = self.receive()
        assert len(packets) == 1, f"wanted one {kind.__name__}, got {packets!r}"
        assert isinstance(packets[0], kind), f"wanted {kind.__name__}, got {packets!r}"
        return packets[0]

    # Whole exchanges

    def request_connect(
        self,
        client_id: str,
        *,
        clean: bool = False,
        expiry: int = 1000,
        receive_maximum: int | None = None,
        will: Will | None = None,
    ) -> None:
        """CONNECT, without waiting for the answer; the session is durable unless told otherwise."""
        self.client_id = client_id
        properties = NO_PROPERTIES
        if self.version == MQTT5:
            properties = Properties(session_expiry_interval=expiry or None, receive_maximum=receive_maximum)
        self.send(Connect(client_id, self.version, clean, 0, None, None, will, properties=properties))

    def connect(self, client_id: str, **fields: Any) -> Peer:
        """CONNECT and CONNACK; what follows the CONNACK is kept for ``take``."""
        self.request_connect(client_id, **fields)
        packets = self.receive()
        assert packets, "no CONNACK"
        assert isinstance(packets[0], Connack), packets
        self.connack, self._inbox = packets[0], packets[1:]
        assert self.connack.reason == 0, f"CONNECT refused with 0x{self.connack.reason:02X}"
        return self

    def subscribe(self, *filters: str | SubscribeOption, qos: int = 2, **properties: Any) -> list[Packet]:
        """SUBSCRIBE and SUBACK, which must grant everything; what else arrived."""
        options = [SubscribeOption(each, qos) if isinstance(each, str) else each for each in filters]
        self.send(Subscribe(next(self._ids), options, Properties(**properties) if properties else NO_PROPERTIES))
        packets = self.receive()
        (suback,) = [packet for packet in packets if isinstance(packet, Suback)]
        assert all(reason <= 2 for reason in suback.reasons), suback
        return [packet for packet in packets if packet is not suback]

    def unsubscribe(self, *filters: str) -> list[Packet]:
        """UNSUBSCRIBE and UNSUBACK; what else arrived."""
        self.send(Unsubscribe(next(self._ids), list(filters)))
        packets = self.receive()
        (unsuback,) = [packet for packet in packets if isinstance(packet, Unsuback)]
        return [packet for packet in packets if packet is not unsuback]

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """PUBLISH with its whole handshake, which must succeed."""
        if qos == 0:
            self.send(Publish(topic, payload, 0, retain))
            self.settle()
            return
        packet_id = next(self._ids)
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id))
        if qos == 1:
            puback = self.expect(Puback)
            assert (puback.packet_id, puback.reason) in ((packet_id, 0), (packet_id, 0x10)), puback
            return
        pubrec = self.expect(Pubrec)
        assert (pubrec.packet_id, pubrec.reason) in ((packet_id, 0), (packet_id, 0x10)), pubrec
        self.send(Pubrel(packet_id))
        assert self.expect(Pubcomp) == Pubcomp(packet_id)

    def disconnect(self) -> None:
        """Say goodbye."""
        self.send(Disconnect())
        self.settle()

    def acknowledge_all(self) -> list[Publish]:
        """Take and acknowledge until nothing comes any more; what was published, in order."""
        got: list[Publish] = []
        while packets := self.receive():
            for packet in packets:
                match packet:
                    case Publish(qos=0):
                        got.append(packet)
                    case Publish(qos=1):
                        got.append(packet)
                        assert packet.packet_id is not None
                        self.send(Puback(packet.packet_id))
                    case Publish(qos=2):
                        got.append(packet)
                        assert packet.packet_id is not None
                        self.send(Pubrec(packet.packet_id))
                    case Pubrel():
                        self.send(Pubcomp(packet.packet_id))
                    case _:
                        raise AssertionError(f"unexpected {packet!r}")
        return got


def payloads(packets: list[Packet] | list[Publish]) -> list[bytes]:
    """The payloads of the PUBLISH packets among these."""
    return [packet.payload for packet in packets if isinstance(packet, Publish)]
