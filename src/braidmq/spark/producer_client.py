"""A small blocking MQTT 5 client for publishing in bulk as an idempotent producer: one connection, from CONNECT to its end.

It frames and counts; which rows to send, and what to do when the connection is gone, is for `sink_publisher`.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct

from braidmq.base.errors import ProtocolViolation, Unavailable, UsageError
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Disconnect, Packet, Pingreq
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink_options import Server, WriteOptions
from braidmq.spark.sink_rows import IDS_MAX

SEQUENCE: Final = "producer-sequence"
CHECK: Final = "producer-check"
PARTS: Final = "producer-parts"
SHARDS: Final = "shards"

_KEEP_ALIVE_S: Final = 600
_REST_S: Final = 1.0
_READ_BYTES: Final = 256 * 1024
_FRAME_BYTES_MAX: Final = 268_435_460

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBCOMP: Final = 0x70
PINGRESP: Final = 0xD0
_DISCONNECT: Final = 0xE0
_NO_MATCHING_SUBSCRIBERS: Final = 0x10

# The same may go well on another attempt.
_PASSING: Final = (
    Reason.UNSPECIFIED_ERROR,
    Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY,
    Reason.SERVER_SHUTTING_DOWN,
    Reason.KEEP_ALIVE_TIMEOUT,
    Reason.QUOTA_EXCEEDED,
    Reason.USE_ANOTHER_SERVER,
    Reason.CONNECTION_RATE_EXCEEDED,
)


def _acks(*reason: int) -> bytes:
    """PUBACK for every packet id from 1 on."""
    head, tail = bytes((PUBACK, 2 + len(reason))), bytes(reason)
    return b"".join(head + packet_id.to_bytes(2, "big") + tail for packet_id in range(1, IDS_MAX + 1))


# Acknowledgements in order are compared as bytes, a thousand at a time.
_HEARD: Final = _acks()
_UNHEARD: Final = _acks(_NO_MATCHING_SUBSCRIBERS)


class Lost(Unavailable):
    """The connection is gone; `reason` is what the broker said at the end, 0 if nothing."""

    def __init__(self, detail: str, reason: int = 0) -> None:
        super().__init__(detail)
        self.reason = reason


class TakenOver(UsageError):
    """Another attempt publishes under the same client id now; this one must not go on."""


class LaterBatch(UsageError):
    """The broker has something of a later batch of this producer; `sequence` is in it."""

    def __init__(self, detail: str, sequence: int) -> None:
        super().__init__(detail, "another query uses this producer name")
        self.sequence = sequence


class WrongShard(Exception):
    """The client id does not have the shard of the name of its keys; `shards` says how many there are."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.shards = shards


class Joined(Struct, frozen=True):
    """What a CONNACK says."""

    sequence: int  # everything up to it was dealt with
    check: int | None  # of the message with that sequence
    parts: int  # one more than the highest part of the producer that came for the batch
    receive_maximum: int
    packet_bytes_max: int


class Ack(NamedTuple):
    """An acknowledgement: the kind of packet, its packet id, and the reason."""

    kind: int
    packet_id: int
    reason: int


class ProducerClient:
    """An open connection. What has come is to be looked at also after `Lost` was raised: it was sent before the end."""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self.server = server
        self.goodbye: Disconnect | None = None  # the broker's last word
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._received = b""

    @classmethod
    def dial(cls, server: Server, options: WriteOptions) -> ProducerClient:
        """Connect to a server, with TLS if it wants that. Raises Lost, or UsageError for what no other attempt can mend."""
        try:
            connection = socket.create_connection((server.host, server.port), options.call_s)
        except OSError as problem:
            raise Lost(f"{server} does not answer: {problem.strerror or problem}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not server.tls:
            return cls(connection, server)
        try:
            return cls(_context(options).wrap_socket(connection, server_hostname=options.server_name or server.host), server)
        except ssl.SSLCertVerificationError as problem:
            connection.close()
            detail = f"{server} has a certificate that is not trusted: {problem.verify_message}"
            raise UsageError(detail, "name its authority with tls.caFile") from None
        except OSError as problem:
            connection.close()
            raise Lost(f"{server}: TLS failed: {problem}") from None

    def join(self, client_id: str, user_properties: dict[str, str], options: WriteOptions) -> Joined:
        """CONNECT as a producer; returns when the broker has settled what was under way before.

        Raises Lost, WrongShard, LaterBatch, or UsageError for what no other attempt can mend.
        """
        login = Connect(
            client_id,
            MQTT5,
            True,
            _KEEP_ALIVE_S,
            options.user or None,
            options.password.encode() if options.user else None,
            properties=Properties(user_properties=tuple(user_properties.items())),
        )
        self.send(encode(login, MQTT5))
        packet = self._await_packet()
        if not isinstance(packet, Connack):
            raise Lost(f"{self.server} does not speak MQTT 5 as a server does")
        told = dict(packet.properties.user_properties)
        if packet.reason:
            raise _refusal(packet, told, self.server)
        if SEQUENCE not in told:
            raise UsageError(
                f"{self.server} does not number the messages of producers",
                "other servers than braidmq, and earlier versions, cannot publish each row once",
            )
        check = told.get(CHECK)
        return Joined(
            int(told[SEQUENCE]),
            int(check, 16) if check is not None else None,
            int(told.get(PARTS, "0")),
            packet.properties.receive_maximum or IDS_MAX,
            packet.properties.maximum_packet_size or _FRAME_BYTES_MAX,
        )

    def _await_packet(self) -> Packet:
        splitter = FrameSplitter(_FRAME_BYTES_MAX)
        try:
            while not (frames := splitter.feed(self._read())):
                pass
            return decode(*frames[0], MQTT5)
        except ProtocolViolation as problem:
            raise Lost(f"{self.server} does not speak MQTT 5: {problem.detail}") from None

    def send(self, data: bytes) -> None:
        """Send frames; blocks while the broker does not take them. Raises Lost."""
        try:
            self._socket.sendall(data)
        except OSError as problem:
            self._read_rest()
            raise Lost(f"the connection to {self.server} is lost: {problem.strerror or problem}") from None

    def _read_rest(self) -> None:
        """Take in what the broker sent before it closed the connection."""
        with suppress(OSError):
            self._socket.settimeout(_REST_S)
            while data := self._socket.recv(_READ_BYTES):
                self._received += data

    def read(self, *, is_waiting: bool) -> None:
        """Take in what has come; `is_waiting`: wait until something has. Raises Lost."""
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
            raise Lost(f"{self.server} has not answered in time") from None
        except OSError as problem:
            raise Lost(f"the connection to {self.server} is lost: {problem.strerror or problem}") from None
        if not data:
            raise Lost(f"{self.server} has closed the connection")
        return data

    def take_run(self, first_id: int, count_max: int) -> int:
        """How many QoS 1 messages are acknowledged next, in order from this packet id on; their acknowledgements are used up."""
        data = self._received
        if len(data) < 4 or data[0] != PUBACK:
            return 0
        table, width = (_HEARD, 4) if data[1] == 2 else (_UNHEARD, 5)
        count = min(len(data) // width, count_max, IDS_MAX + 1 - first_id)
        at = (first_id - 1) * width
        while count and data[: count * width] != table[at : at + count * width]:
            count //= 2
        self._received = data[count * width :]
        return count

    def take_acks(self) -> list[Ack]:
        """The acknowledgements that have come, one by one; also PINGRESP. DISCONNECT becomes the `goodbye`."""
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
        """Ask whether everything sent so far was taken; PINGRESP comes after all of it."""
        self.send(encode(Pingreq(), MQTT5))

    def leave(self) -> None:
        """Say goodbye, if that is still possible, and close."""
        with suppress(OSError):
            self._socket.settimeout(_REST_S)
            self._socket.sendall(encode(Disconnect(), MQTT5))
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()


def is_passing(reason: int) -> bool:
    """Whether the same may go well on another attempt."""
    return reason in _PASSING


def name_of(reason: int) -> str:
    """A reason code in words."""
    try:
        return f"{Reason(reason).name.lower().replace('_', ' ')} (0x{reason:02X})"
    except ValueError:
        return f"0x{reason:02X}"


def _read_goodbye(body: bytes) -> Disconnect:
    try:
        packet = decode(_DISCONNECT, body, MQTT5)
    except ProtocolViolation:
        return Disconnect(Reason.UNSPECIFIED_ERROR)
    assert isinstance(packet, Disconnect)
    return packet


def _refusal(packet: Connack, told: dict[str, str], server: Server) -> Exception:
    said = packet.properties.reason_string
    detail = f"{server} does not let us in: {name_of(packet.reason)}{f', {said}' if said else ''}"
    if packet.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID and SHARDS in told:
        return WrongShard(int(told[SHARDS]))
    if SEQUENCE in told:
        return LaterBatch(detail, int(told[SEQUENCE]))
    if is_passing(packet.reason):
        return Lost(detail, packet.reason)
    hint = ""
    if packet.reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED):
        hint = "see the options user and password, and the broker's log"
    return UsageError(detail, hint)


def _context(options: WriteOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as problem:
        name = problem.filename or options.ca_file or options.cert_file
        raise UsageError(f"{name} cannot be used: {problem}", "it must be there on every machine that writes") from None
    return context
