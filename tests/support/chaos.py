"""Clients that do anything, right and wrong, at random but the same for the same seed."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311
from tests.support.clients import raw
from tests.support.clients.exchanges import proxy_v2
from tests.support.clients.transports import BINARY, TEXT, upgrade_request, websocket_frame
from tests.support.clients.wire import DEADLINE_S

_PEERS_MAX = 40
_TOPICS = ["a", "a/b", "a/b/c", "b", "/", "a//c", "long/" + "x" * 200, "$SYS/x", "$delayed/1/a", "a/+/c", "", "\u20ac/\U0001f600"]
_FILTERS = [*_TOPICS, "#", "+/b/#", "$share/g/a/#", "$share/h/+", "$exclusive/a", "$SYS/#", "a/#/b", "$share//x", "+a"]
_GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x10\xff\xff\xff\x7f", proxy_v2(), b"\x16\x03\x01\x02\x00\x01\x00"]


class ChaosPeer:
    """One connection."""

    def __init__(self, connection: socket.socket, version: int, wrap: Callable[[bytes], bytes]) -> None:
        self.connection = connection
        self.version = version
        self.wrap = wrap


class Chaos:
    """Everything that clients can do to a broker, from one thread. ``actions`` counts what was done."""

    def __init__(self, host: str, port: int, ws_port: int, seed: int) -> None:
        self.actions = 0
        self._host, self._port, self._ws_port = host, port, ws_port
        self._random = random.Random(seed)
        self._peers: list[ChaosPeer] = []

    def run(self, seconds: float, actions_min: int = 0) -> None:
        """Act for so long, and longer until so much was done."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.actions < actions_min:
            self.act()

    def act(self) -> None:
        """Do one thing."""
        self.actions += 1
        chance = self._random.random()
        if not self._peers or (chance < 0.06 and len(self._peers) < _PEERS_MAX):
            self._peers.append(self._open())
            return
        peer = self._random.choice(self._peers)
        try:
            if chance < 0.1:
                self._leave(peer)
            else:
                self._send(peer, self._some_bytes(peer.version))
                while len(peer.connection.recv(65536)) == 65536:
                    pass
        except BlockingIOError:
            return  # nothing to read, or the broker has stopped reading
        except OSError:
            self._forget(peer)

    def close(self) -> None:
        """Drop all connections."""
        for peer in list(self._peers):
            self._forget(peer)

    def _open(self) -> ChaosPeer:
        is_websocket = self._random.random() < 0.3
        version = self._random.choice([MQTT31, MQTT311, MQTT5, MQTT5])
        connection = socket.create_connection((self._host, self._ws_port if is_websocket else self._port), timeout=DEADLINE_S)
        peer = ChaosPeer(
            connection, version, (lambda data: websocket_frame(BINARY, data)) if is_websocket else (lambda data: data)
        )
        if is_websocket:
            connection.sendall(upgrade_request())
            connection.recv(4096)
        connection.setblocking(False)
        if self._random.random() < 0.05:
            connection.send(self._random.choice(_GARBAGE))
        else:
            self._send(peer, self._connect(version))
        return peer

    def _leave(self, peer: ChaosPeer) -> None:
        if self._random.random() < 0.5:
            self._send(peer, b"\xe0\x00")
        self._forget(peer)

    def _forget(self, peer: ChaosPeer) -> None:
        peer.connection.close()
        self._peers.remove(peer)

    def _send(self, peer: ChaosPeer, data: bytes) -> None:
        if self._random.random() < 0.1:
            data = self._spoil(data)
        wrapped = peer.wrap(data)
        if peer.wrap(b"") and self._random.random() < 0.01:
            wrapped = websocket_frame(TEXT, data)
        cut = self._random.randrange(len(wrapped) + 1) if self._random.random() < 0.1 else len(wrapped)
        peer.connection.send(wrapped[:cut])
        if cut < len(wrapped) and self._random.random() < 0.8:  # else the rest never comes
            peer.connection.send(wrapped[cut:])

    def _spoil(self, data: bytes) -> bytes:
        spoilt = bytearray(data)
        for _ in range(self._random.randrange(1, 4)):
            at = self._random.randrange(len(spoilt)) if spoilt else 0
            match self._random.randrange(4):
                case 0 if spoilt:
                    spoilt[at] = self._random.randrange(256)
                case 1 if spoilt:
                    spoilt[at] ^= 1 << self._random.randrange(8)
                case 2:
                    del spoilt[at : at + self._random.randrange(1, 5)]
                case _:
                    spoilt[at:at] = self._random.randbytes(self._random.randrange(1, 5))
        return bytes(spoilt)

    def _some_bytes(self, version: int) -> bytes:
        make = self._random.choice(
            [self._publish, self._publish, self._publish, self._subscribe, self._unsubscribe, self._acknowledge, self._odd]
        )
        return make(version)

    def _connect(self, version: int) -> bytes:
        chance = self._random.random
        flags = 0x02 if chance() < 0.6 else 0x00
        will, props = b"", b""
        if chance() < 0.4:
            flags |= 0x04 | self._random.randrange(3) << 3 | (0x20 if chance() < 0.3 else 0)
            delay = b"\x18\x00\x00\x00\x01" if chance() < 0.5 else b""
            will = raw.will(version, self._random.choice(_TOPICS), b"will", delay)
        if version == MQTT5 and chance() < 0.5:
            props = b"\x11\x00\x00\x00\x01" + b"\x21\x00\x02" + b"\x22\x00\x05"
        name = f"chaos{self._random.randrange(30)}" if chance() < 0.9 else ""
        protocol = b"MQIsdp" if version == MQTT31 else b"MQTT"
        return raw.connect(version, name=protocol, flags=flags, client_id=name, props=props, rest=will)

    def _publish(self, version: int) -> bytes:
        qos = self._random.randrange(3)
        flags = qos << 1 | (1 if self._random.random() < 0.2 else 0)
        props = b""
        if version == MQTT5 and self._random.random() < 0.5:
            props = self._random.choice(
                [b"\x23\x00\x01", b"\x02\x00\x00\x00\x01", b"\x01\x01", b"\x26\x00\x01a\x00\x01b", b"\x23\x00\x63"]
            )
        payload = self._random.randbytes(self._random.choice([0, 1, 20, 5000]))
        packet_id = self._random.randrange(1, 20) if qos else None
        return raw.publish(version, self._random.choice(_TOPICS), payload, flags=flags, packet_id=packet_id, props=props)

    def _subscribe(self, version: int) -> bytes:
        filters = [(self._random.choice(_FILTERS), self._random.randrange(3)) for _ in range(self._random.randrange(1, 4))]
        props = b"\x0b\x07" if version == MQTT5 and self._random.random() < 0.3 else b""
        return raw.subscribe(version, *filters, packet_id=self._random.randrange(1, 100), props=props)

    def _unsubscribe(self, version: int) -> bytes:
        return raw.unsubscribe(version, self._random.choice(_FILTERS), packet_id=self._random.randrange(1, 100))

    def _acknowledge(self, version: int) -> bytes:
        # The broker counts its packet identifiers from 1, so that many of these fit.
        kind = self._random.choice([0x40, 0x40, 0x50, 0x62, 0x70])
        reason = b"\x80" if version == MQTT5 and kind in (0x40, 0x50) and self._random.random() < 0.2 else b""
        return b"".join(raw.frame(kind, raw.u16(number), reason) for number in range(1, self._random.randrange(2, 8)))

    def _odd(self, version: int) -> bytes:
        return self._random.choice(
            [b"\xc0\x00", b"\xc0\x00", b"\xc0\x00", b"\xd0\x00", b"\xf0\x00", b"\xe0\x00", self._connect(version)]
        )
