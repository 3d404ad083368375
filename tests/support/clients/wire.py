"""The MQTT client of tests over a network: blocking, a deadline on every wait, nothing done behind the test's back.

Frames are cut here and not by the broker's own splitter, so that a fault in one cannot hide a fault in the other. Only well
formed packets go through ``braidmq.mqtt.codec``; a test of malformed input sends bytes that it built itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.packets import (
    MQTT5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
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
from tests.support.clients.transports import DEADLINE_S as DEADLINE_S
from tests.support.clients.transports import TcpTransport, WebSocketTransport

AnyPacket = TypeVar("AnyPacket")

_numbers = itertools.count(1)


def unique(stem: str = "c") -> str:
    """A name that no other test uses, made of letters and digits only."""
    return f"{stem}{os.getpid():x}x{next(_numbers)}"


class Frame(NamedTuple):
    """One packet as it came: the first byte, what follows the remaining length, and all bytes together."""

    first_byte: int
    body: bytes
    raw: bytes

    @property
    def kind(self) -> int:
        """The packet type in the high nibble."""
        return self.first_byte >> 4


class Closed(Exception):
    """The broker closed the connection while the test waited for a packet."""


class Wire:
    """One connection under the test's full control. A context manager; leaving it closes the socket without DISCONNECT."""

    def __init__(
        self,
        host: str,
        port: int,
        version: int = MQTT5,
        *,
        source: str | None = None,
        transport: TcpTransport | None = None,
    ) -> None:
        """``source`` is the address to connect from; ``transport`` replaces a plain TCP connection to host and port."""
        self.version = version
        self.client_id = ""
        self.connack = Connack(reason=0xFF, session_present=False)
        self.transport = TcpTransport(host, port, source) if transport is None else transport
        self._buffer = bytearray()
        self._held: deque[Frame] = deque()
        self._packet_ids = itertools.cycle(range(1, 65536))

    @classmethod
    def over_websocket(cls, host: str, port: int, version: int = MQTT5, *, request: bytes | None = None) -> Wire:
        """MQTT over a WebSocket, opened by this HTTP request."""
        return cls(host, port, version, transport=WebSocketTransport(host, port, request=request))

    @property
    def websocket(self) -> WebSocketTransport:
        """The WebSocket of this connection, to send frames of the test's own."""
        assert isinstance(self.transport, WebSocketTransport)
        return self.transport

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket at once, as a broken network would."""
        self.transport.close()

    def finish_sending(self) -> None:
        """Send FIN and keep on reading."""
        self.transport.finish_sending()

    def next_packet_id(self) -> int:
        """A packet identifier that this connection has not used for the last 65,535 packets."""
        return next(self._packet_ids)

    # sending

    def send(self, *parts: Packet | bytes) -> None:
        """Send packets and raw bytes in one write."""
        self.transport.send(b"".join(part if isinstance(part, bytes) else encode(part, self.version) for part in parts))

    def send_request(self, **fields: Any) -> None:
        """Send a CONNECT made of ``connect``'s arguments and do not wait for the answer."""
        self.send(self._connect_packet(**fields))

    def _connect_packet(
        self,
        client_id: str | None = None,
        *,
        clean_start: bool = True,
        persistent: bool = False,
        keep_alive: int = 60,
        user_name: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        **properties: Any,
    ) -> Connect:
        self.client_id = unique() if client_id is None else client_id
        if persistent:
            clean_start = False
            if self.version == MQTT5:
                properties.setdefault("session_expiry_interval", 60)
        assert self.version == MQTT5 or not properties, "properties are for MQTT 5"
        return Connect(
            client_id=self.client_id,
            version=self.version,
            clean_start=clean_start,
            keep_alive=keep_alive,
            user_name=user_name,
            password=password,
            will=will,
            properties=Properties(**properties) if properties else NO_PROPERTIES,
        )

    # receiving

    def _fill(self, deadline: float) -> bool:
        """Read some bytes into the buffer; False at the end of the stream."""
        try:
            data = self.transport.receive(deadline)
        except TimeoutError:
            raise TimeoutError(f"nothing came before the deadline; unread: {bytes(self._buffer[:64])!r}") from None
        self._buffer += data or b""
        return data is not None

    def receive_frame(self, timeout_s: float = DEADLINE_S) -> Frame:
        """The next packet undecoded. Raises ``Closed`` or ``TimeoutError``."""
        return self._held.popleft() if self._held else self._read_frame(timeout_s)

    def _read_frame(self, timeout_s: float = DEADLINE_S) -> Frame:
        deadline = time.monotonic() + timeout_s
        while (frame := self._take_frame()) is None:
            if not self._fill(deadline):
                raise Closed(f"closed with {bytes(self._buffer)!r} unread")
        return frame

    def _take_frame(self) -> Frame | None:
        buffer = self._buffer
        length = 0
        for place in range(1, 5):
            if place >= len(buffer):
                return None
            length |= (buffer[place] & 0x7F) << 7 * (place - 1)
            if buffer[place] < 0x80:
                # [MQTT-1.5.5-1]: whatever the broker sends must have the shortest length there is.
                assert buffer[place] or place == 1, f"remaining length not minimal: {bytes(buffer[:5])!r}"
                break
        else:
            raise AssertionError(f"remaining length of more than four bytes: {bytes(buffer[:6])!r}")
        end = 1 + place + length
        if len(buffer) < end:
            return None
        raw = bytes(buffer[:end])
        del buffer[:end]
        return Frame(raw[0], raw[1 + place :], raw)

    def has_news(self, within_s: float) -> bool:
        """Whether a packet or the end of the stream comes within this time."""
        if self._held or self._buffer:
            return True
        return self._is_readable(within_s)

    def _is_readable(self, within_s: float) -> bool:
        return bool(select.select([self.transport], [], [], within_s)[0])

    def take_arrived(self) -> list[Packet] | None:
        """Read once without waiting: the packets that are whole then, or None at the end of the stream."""
        if self._is_readable(0) and not self._fill(time.monotonic() + DEADLINE_S):
            return None
        frames = iter(self._take_frame, None)
        return [decode(frame.first_byte, frame.body, self.version) for frame in frames]

    def receive_any(self, timeout_s: float = DEADLINE_S) -> Packet:
        """The next packet, of any kind."""
        frame = self.receive_frame(timeout_s)
        return decode(frame.first_byte, frame.body, self.version)

    def receive(self, kind: type[AnyPacket], timeout_s: float = DEADLINE_S) -> AnyPacket:
        """The next packet, which must be of this kind."""
        packet = self.receive_any(timeout_s)
        assert isinstance(packet, kind), f"wanted {kind.__name__}, got {packet!r}"
        return packet

    def receive_publish(self, timeout_s: float = DEADLINE_S) -> Publish:
        """The next packet, which must be a PUBLISH; its handshake is carried through to the end."""
        publish = self.receive(Publish, timeout_s)
        if publish.packet_id is not None:
            self.acknowledge(publish)
        return publish

    def acknowledge(self, publish: Publish) -> None:
        """Carry the receiver's half of the handshake through to the end; what comes before the PUBREL is kept for later."""
        assert publish.packet_id is not None
        if publish.qos == 1:
            self.send(Puback(publish.packet_id))
            return
        self.send(Pubrec(publish.packet_id))
        while (frame := self._read_frame()).kind != PacketType.PUBREL:
            self._held.append(frame)
        assert decode(frame.first_byte, frame.body, self.version) == Pubrel(publish.packet_id)
        self.send(Pubcomp(publish.packet_id))

    def receive_until(self, kind: type[AnyPacket], timeout_s: float = DEADLINE_S) -> tuple[list[Packet], AnyPacket]:
        """Everything up to the first packet of this kind, and that packet."""
        before: list[Packet] = []
        while True:
            packet = self.receive_any(timeout_s)
            if isinstance(packet, kind):
                return before, packet
            before.append(packet)

    def drain(self) -> list[Packet]:
        """Everything the broker had to say until it answered a PINGREQ."""
        self.send(Pingreq())
        return self.receive_until(Pingresp)[0]

    def drain_or_closed(self) -> list[Packet]:
        """Like ``drain``, but the broker may also close the connection."""
        packets: list[Packet] = []
        with contextlib.suppress(OSError):
            self.send(Pingreq())
        with contextlib.suppress(Closed):
            while not isinstance(packet := self.receive_any(), Pingresp):
                packets.append(packet)
        return packets

    def expect_silence(self) -> None:
        """The broker has nothing to send: the answer to a PINGREQ comes first."""
        packets = self.drain()
        assert packets == [], f"wanted nothing, got {packets!r}"

    def ping(self) -> None:
        """Wait until the broker has handled everything sent so far."""
        self.expect_silence()

    def expect_closed(self, timeout_s: float = DEADLINE_S) -> None:
        """The broker closes without another byte."""
        deadline = time.monotonic() + timeout_s
        assert not self._held, f"wanted the end of the stream, got {self._held!r}"
        while not self._buffer and self._fill(deadline):
            pass
        assert not self._buffer, f"wanted the end of the stream, got {bytes(self._buffer[:64])!r}"

    def receive_bytes(self, count: int, timeout_s: float = DEADLINE_S) -> bytes:
        """The next ``count`` bytes, whichever packets they belong to."""
        deadline = time.monotonic() + timeout_s
        while len(self._buffer) < count:
            if not self._fill(deadline):
                raise Closed(f"closed after {len(self._buffer)} of {count} bytes")
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def has_arrived(self) -> bool:
        """Whether the broker has sent something that was not received yet."""
        return bool(self._buffer or self._held) or self.transport.has_arrived()

    def read_to_end(self, timeout_s: float = DEADLINE_S) -> bytes:
        """All that comes until the broker closes."""
        deadline = time.monotonic() + timeout_s
        while self._fill(deadline):
            pass
        return bytes(self._buffer)

    def expect_close_code(self, *codes: int) -> None:
        """The broker closes the WebSocket with one of these codes, and sends no MQTT before it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.websocket.close_code is None and self._fill(deadline):
            pass
        assert not self._buffer, f"wanted a close frame, got {bytes(self._buffer)!r}"
        assert self.websocket.close_code in codes, f"closed with {self.websocket.close_code}, not with {codes}"

    def expect_disconnect(self, *reasons: int, timeout_s: float = DEADLINE_S) -> Disconnect | None:
        """The broker gives up on us: in MQTT 5 with DISCONNECT and one of these reasons, before without a word."""
        told = None
        if self.version == MQTT5:
            told = self.receive(Disconnect, timeout_s)
            wanted = ", ".join(f"0x{reason:02X}" for reason in reasons)
            assert told.reason in reasons, f"wanted DISCONNECT with {wanted}, got 0x{told.reason:02X}"
        self.expect_closed(timeout_s)
        return told

    def expect_refusal(self, reason: int, return_code: int | None = None) -> Connack | None:
        """CONNECT is refused, and the connection closed. ``return_code`` is that of MQTT 3.1.1; None: no CONNACK there."""
        told = None
        wanted = reason if self.version == MQTT5 else return_code
        if wanted is not None:
            told = self.receive(Connack)
            assert told.reason == wanted, f"wanted CONNACK 0x{wanted:02X}, got 0x{told.reason:02X}"
            assert not told.session_present
        self.expect_closed()
        return told

    # whole exchanges

    def connect(self, client_id: str | None = None, **fields: Any) -> Wire:
        """CONNECT and wait for a CONNACK of success. ``persistent`` asks for a session that outlives the connection."""
        self.send_request(client_id=client_id, **fields)
        self.connack = self.receive(Connack)
        assert self.connack.reason == 0, f"CONNECT refused with 0x{self.connack.reason:02X}"
        if self.connack.properties.assigned_client_identifier is not None:
            self.client_id = self.connack.properties.assigned_client_identifier
        return self

    def disconnect(self, reason: int = 0, **properties: Any) -> None:
        """DISCONNECT, and wait until the broker has closed its side."""
        self.send(Disconnect(reason, Properties(**properties)) if properties else Disconnect(reason))
        self.expect_closed()
        self.close()

    def subscribe(self, *filters: str | SubscribeOption, qos: int = 0, **properties: Any) -> Suback:
        """SUBSCRIBE and wait for the SUBACK, which must be the next packet and grant everything."""
        suback = self.request_subscribe(*filters, qos=qos, **properties)
        assert all(reason <= 2 for reason in suback.reasons), f"SUBSCRIBE refused: {suback.reasons}"
        return suback

    def request_subscribe(self, *filters: str | SubscribeOption, qos: int = 0, **properties: Any) -> Suback:
        """SUBSCRIBE and wait for the SUBACK, which may reject filters."""
        options = [SubscribeOption(f, qos) if isinstance(f, str) else f for f in filters]
        packet_id = self.next_packet_id()
        self.send(Subscribe(packet_id, options, Properties(**properties) if properties else NO_PROPERTIES))
        suback = self.receive(Suback)
        assert suback.packet_id == packet_id
        assert len(suback.reasons) == len(options)
        return suback

    def unsubscribe(self, *filters: str) -> Unsuback:
        """UNSUBSCRIBE and wait for the UNSUBACK."""
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id, list(filters)))
        unsuback = self.receive(Unsuback)
        assert unsuback.packet_id == packet_id
        return unsuback

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, **properties: Any) -> int:
        """PUBLISH with its whole handshake (at QoS 0 a PINGREQ): the broker has handled it on return. Gives the reason code."""
        packet_id = self.next_packet_id() if qos else None
        properties_ = Properties(**properties) if properties else NO_PROPERTIES
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties_))
        return self.finish_publish(qos, packet_id)

    def finish_publish(self, qos: int, packet_id: int | None) -> int:
        """The rest of the handshake of a PUBLISH that was sent."""
        if qos == 0:
            self.ping()
            return 0
        answer: Puback | Pubrec = self.receive(Puback) if qos == 1 else self.receive(Pubrec)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.reason < 0x80:
            self.send(Pubrel(answer.packet_id))
            assert self.receive(Pubcomp) == Pubcomp(answer.packet_id)
        return answer.reason

    def receive_publishes(self, count: int) -> list[Publish]:
        """The next packets, which must be PUBLISHes; none is acknowledged."""
        return [self.receive(Publish) for _ in range(count)]


class Wires:
    """Opens connections to one broker and closes them all at the end."""

    def __init__(self, host: str, port: int, version: int = MQTT5) -> None:
        self.host, self.port, self.version = host, port, version
        self._open: list[Wire] = []

    def open(self, version: int | None = None) -> Wire:
        """A connection on which nothing was sent yet."""
        wire = Wire(self.host, self.port, self.version if version is None else version)
        self._open.append(wire)
        return wire

    def __call__(self, client_id: str | None = None, *, version: int | None = None, **fields: Any) -> Wire:
        """A connected client; arguments as for ``Wire.connect``."""
        return self.open(version).connect(client_id, **fields)

    def close(self) -> None:
        """Say goodbye on all connections: a DISCONNECT, so that no will is left behind."""
        for wire in self._open:
            with contextlib.suppress(OSError):
                wire.send(Disconnect())
            wire.close()


def payloads(packets: Sequence[Packet]) -> list[bytes]:
    """The payloads of the PUBLISHes among these packets."""
    return [packet.payload for packet in packets if isinstance(packet, Publish)]
