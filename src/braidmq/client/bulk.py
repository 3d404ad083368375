"""A small blocking MQTT 5 client for publishing in bulk: one connection, from CONNECT to its end, without an event loop.

It sends frames that are already encoded and returns acknowledgements in runs, because a caller with millions of messages cannot
afford an object for each. It needs only the standard library and `braidmq.mqtt`: it also runs in Spark's executors.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from typing import Final, NamedTuple, Self

from braidmq.base.errors import ProtocolViolation, Unavailable, UsageError
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.frames import FRAME_BYTES_MAX
from braidmq.mqtt.packet_types import PACKET_ID_MAX
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Disconnect, Packet, Pingreq
from braidmq.mqtt.reasons import Reason

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBCOMP: Final = 0x70
PINGRESP: Final = 0xD0
_DISCONNECT: Final = 0xE0
_REST_S: Final = 1.0
_READ_BYTES: Final = 256 * 1024


def _acks(*reason: int) -> bytes:
    """PUBACK for every packet id from 1 on."""
    head, tail = bytes((PUBACK, 2 + len(reason))), bytes(reason)
    return b"".join(head + packet_id.to_bytes(2, "big") + tail for packet_id in range(1, PACKET_ID_MAX + 1))


# Acknowledgements in order are compared as bytes, a thousand at a time.
_HEARD: Final = _acks()
_UNHEARD: Final = _acks(Reason.NO_MATCHING_SUBSCRIBERS)


class ConnectionLost(Unavailable):
    """The connection was lost; `reason` is the code of the broker's DISCONNECT, 0 if there was none."""

    def __init__(self, detail: str, reason: int = 0) -> None:
        super().__init__(detail)
        self.reason = reason


class Ack(NamedTuple):
    """An acknowledgement: the kind of packet, its packet id, and the reason."""

    kind: int
    packet_id: int
    reason: int


class BulkClient:
    """An open connection; `server` is its name in errors.

    Read the acknowledgements even after `ConnectionLost`: the broker sent them before the end.
    """

    def __init__(self, connection: socket.socket, server: str) -> None:
        self.server = server
        self.goodbye: Disconnect | None = None  # the broker's DISCONNECT
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._received = b""

    @classmethod
    def open(
        cls,
        server: str,
        host: str,
        port: int,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        tls_name: str = "",
        trust_hint: str = "",
    ) -> Self:
        """Connect to a server, with TLS if there is a TLS context. Raises ConnectionLost.

        A certificate that is not trusted, or not for `tls_name` or `host`, raises UsageError with `trust_hint`.
        """
        try:
            connection = socket.create_connection((host, port), timeout_s)
        except OSError as problem:
            raise ConnectionLost(f"{server} does not answer: {problem.strerror or problem}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return cls(connection, server)
        try:
            return cls(tls.wrap_socket(connection, server_hostname=tls_name or host), server)
        except ssl.SSLCertVerificationError as problem:
            connection.close()
            detail = f"{server} has a certificate that is not trusted: {problem.verify_message}"
            raise UsageError(detail, trust_hint) from None
        except OSError as problem:
            connection.close()
            raise ConnectionLost(f"{server}: TLS failed: {problem}") from None

    def log_in(self, login: Connect) -> Connack:
        """Send CONNECT and wait for CONNACK, which may be a rejection. Raises ConnectionLost."""
        self.send(encode(login, MQTT5))
        packet = self._await_packet()
        if not isinstance(packet, Connack):
            raise ConnectionLost(f"{self.server} does not speak MQTT 5: it did not answer CONNECT with CONNACK")
        return packet

    def _await_packet(self) -> Packet:
        splitter = FrameSplitter(FRAME_BYTES_MAX)
        try:
            while not (frames := splitter.feed(self._read())):
                pass
            return decode(*frames[0], MQTT5)
        except ProtocolViolation as problem:
            raise ConnectionLost(f"{self.server} does not speak MQTT 5: {problem.detail}") from None

    def send(self, data: bytes) -> None:
        """Send frames; blocks while the broker does not read them. Raises ConnectionLost."""
        try:
            self._socket.sendall(data)
        except OSError as problem:
            self._read_rest()
            raise ConnectionLost(f"the connection to {self.server} is lost: {problem.strerror or problem}") from None

    def _read_rest(self) -> None:
        """Read what the broker sent before it closed the connection."""
        with suppress(OSError):
            self._socket.settimeout(_REST_S)
            while data := self._socket.recv(_READ_BYTES):
                self._received += data

    def read(self, *, is_waiting: bool) -> None:
        """Read the received data; `is_waiting`: wait for some. Raises ConnectionLost."""
        if is_waiting or self._is_readable():
            self._received += self._read()

    def _is_readable(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(self._poll.poll(0))

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise ConnectionLost(f"{self.server} has not answered in time") from None
        except OSError as problem:
            raise ConnectionLost(f"the connection to {self.server} is lost: {problem.strerror or problem}") from None
        if not data:
            raise ConnectionLost(f"{self.server} has closed the connection")
        return data

    def take_run(self, first_id: int, count_max: int) -> int:
        """Consume acknowledgements of QoS 1 messages in order from this packet id on; returns how many there were."""
        data = self._received
        if len(data) < 4 or data[0] != PUBACK:
            return 0
        table, width = (_HEARD, 4) if data[1] == 2 else (_UNHEARD, 5)
        count = min(len(data) // width, count_max, PACKET_ID_MAX + 1 - first_id)
        at = (first_id - 1) * width
        while count and data[: count * width] != table[at : at + count * width]:
            count //= 2
        self._received = data[count * width :]
        return count

    def take_acks(self) -> list[Ack]:
        """The received acknowledgements, one by one, including PINGRESP. DISCONNECT becomes the `goodbye`."""
        data = self._received
        found: list[Ack] = []
        at = 0
        while len(data) - at >= 2:
            length, body = data[at + 1], at + 2
            if length >= 0x80:
                if len(data) <= body:
                    break
                length, body = length & 0x7F | data[body] << 7, body + 1
            if len(data) - body < length:
                break
            kind = data[at]
            if kind == _DISCONNECT:
                self.goodbye = _read_goodbye(data[body : body + length])
            elif length >= 2:
                found.append(Ack(kind, data[body] << 8 | data[body + 1], data[body + 2] if length > 2 else 0))
            else:
                found.append(Ack(kind, 0, 0))
            at = body + length
        self._received = data[at:]
        return found

    def ping(self) -> None:
        """Send PINGREQ: PINGRESP follows the answers to everything sent so far."""
        self.send(encode(Pingreq(), MQTT5))

    def leave(self) -> None:
        """Send DISCONNECT, if that is still possible, and close."""
        with suppress(OSError):
            self._socket.settimeout(_REST_S)
            self._socket.sendall(encode(Disconnect(), MQTT5))
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()


def _read_goodbye(body: bytes) -> Disconnect:
    try:
        packet = decode(_DISCONNECT, body, MQTT5)
    except ProtocolViolation:
        return Disconnect(Reason.UNSPECIFIED_ERROR)
    assert isinstance(packet, Disconnect)
    return packet
