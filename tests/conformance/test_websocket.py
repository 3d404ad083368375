"""MQTT over WebSocket (chapter 6)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus, NegotiationError
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from braidmq.mqtt.codec import decode
from braidmq.mqtt.packets import Connack, Packet, Pingresp, Publish, Suback
from tests.conformance.conftest import Address
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import DEADLINE_S, unique


class Socket:
    """An MQTT client over WebSocket that shows how its packets are framed."""

    def __init__(self, connection: ClientConnection, version: int) -> None:
        self.connection, self.version = connection, version
        self._buffer = b""

    def read_packet(self) -> Packet:
        """The next packet, from as many frames as it takes; each must be binary."""
        while (packet := self._take()) is None:
            data = self.connection.recv(timeout=DEADLINE_S)
            assert isinstance(data, bytes), f"a text frame: {data!r}"
            self._buffer += data
        return packet

    def _take(self) -> Packet | None:
        # Only short packets are used here: the remaining length is one byte.
        if len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]:
            return None
        end = 2 + self._buffer[1]
        packet = decode(self._buffer[0], self._buffer[2:end], self.version)
        self._buffer = self._buffer[end:]
        return packet

    def close_code(self) -> int | None:
        """Wait for the server to close and give its code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.connection.recv(timeout=DEADLINE_S)
        return self.connection.close_code


class Sockets:
    """Opens WebSocket connections to one broker."""

    def __init__(self, address: Address, version: int, stack: ExitStack) -> None:
        self._address, self._version, self._stack = address, version, stack

    def open(self, subprotocols: list[str] | None, path: str = "/mqtt") -> Socket:
        """The WebSocket handshake and nothing more."""
        uri = f"ws://{self._address.host}:{self._address.ws_port}{path}"
        offered = None if subprotocols is None else [Subprotocol(name) for name in subprotocols]
        connection = connect_websocket(uri, subprotocols=offered, proxy=None, close_timeout=1, legacy=True)
        self._stack.callback(connection.close)
        return Socket(connection, self._version)

    def __call__(self) -> Socket:
        """A connected MQTT client."""
        socket = self.open(["mqtt"])
        socket.connection.send(raw.connect(self._version, client_id=unique()))
        connack = socket.read_packet()
        assert isinstance(connack, Connack)
        assert connack.reason == 0
        return socket


@pytest.fixture
def connect_ws(broker: Address, version: int) -> Iterator[Sockets]:
    if broker.ws_port is None:
        pytest.skip("BRAIDMQ_TEST_WS_PORT does not say where the broker takes WebSocket")
    with ExitStack() as stack:
        yield Sockets(broker, version, stack)


@shows("5.0: MQTT-6.0.0-4", "3.1.1: MQTT-6.0.0-4")
@pytest.mark.parametrize("offered", [["mqtt"], ["mqttv3.1", "mqtt"], ["mqtt", "chat"]])
def test_the_server_selects_mqtt(connect_ws: Sockets, version: int, offered: list[str]) -> None:
    socket = connect_ws.open(offered)

    assert socket.connection.subprotocol == "mqtt"


@shows("5.0: MQTT-6.0.0-3", "3.1.1: MQTT-6.0.0-3")
@pytest.mark.parametrize("offered", [None, ["chat"]])
def test_a_client_that_does_not_offer_the_mqtt_subprotocol_is_rejected(
    connect_ws: Sockets, version: int, offered: list[str] | None
) -> None:
    with pytest.raises((InvalidStatus, NegotiationError)) as refusal:
        connect_ws.open(offered)

    assert isinstance(refusal.value, InvalidStatus)
    assert refusal.value.response.status_code == 400


@shows("5.0: MQTT-6.0.0-1", "3.1.1: MQTT-6.0.0-1")
def test_the_broker_sends_binary_frames(connect_ws: Sockets, version: int) -> None:
    socket, topic = connect_ws(), unique("t/")

    socket.connection.send(raw.subscribe(version, (topic, 0)))
    assert isinstance(socket.read_packet(), Suback)
    socket.connection.send(raw.publish(version, topic, b"payload"))

    # read_packet has looked at the kind of every frame.
    assert socket.read_packet() == Publish(topic, b"payload")


@shows("5.0: MQTT-6.0.0-1", "3.1.1: MQTT-6.0.0-1")
@pytest.mark.parametrize("is_connected", [False, True])
def test_a_text_frame_closes_the_connection(connect_ws: Sockets, version: int, is_connected: bool) -> None:
    socket = connect_ws() if is_connected else connect_ws.open(["mqtt"])

    socket.connection.send("\x10\x00")

    assert socket.close_code() == 1003


@shows("5.0: MQTT-6.0.0-2", "3.1.1: MQTT-6.0.0-2")
def test_a_packet_may_span_frames(connect_ws: Sockets, version: int) -> None:
    socket, topic = connect_ws(), unique("t/")
    packets = raw.subscribe(version, (topic, 0)) + raw.publish(version, topic, b"payload")

    for index in range(len(packets)):
        socket.connection.send(packets[index : index + 1])

    assert isinstance(socket.read_packet(), Suback)
    assert socket.read_packet() == Publish(topic, b"payload")


@shows("5.0: MQTT-6.0.0-2", "3.1.1: MQTT-6.0.0-2")
def test_a_message_may_be_fragmented(connect_ws: Sockets, version: int) -> None:
    socket, topic = connect_ws(), unique("t/")
    packets = raw.subscribe(version, (topic, 0)) + raw.publish(version, topic, b"payload")

    # One WebSocket message in fragments that have nothing to do with the packets.
    socket.connection.send([packets[:3], packets[3:11], packets[11:]])

    assert isinstance(socket.read_packet(), Suback)
    assert socket.read_packet() == Publish(topic, b"payload")


@shows("5.0: MQTT-6.0.0-2", "3.1.1: MQTT-6.0.0-2")
def test_a_frame_may_hold_many_packets(connect_ws: Sockets, version: int) -> None:
    socket, topic = connect_ws.open(["mqtt"]), unique("t/")
    connect, subscribe = raw.connect(version, client_id=unique()), raw.subscribe(version, (topic, 0))

    socket.connection.send(connect + subscribe + raw.publish(version, topic, b"1") + raw.publish(version, topic, b"2") + b"\xc0")
    socket.connection.send(b"\x00")

    kinds = [type(socket.read_packet()) for _ in range(5)]
    assert kinds == [Connack, Suback, Publish, Publish, Pingresp]
