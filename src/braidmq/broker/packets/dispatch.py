"""Decodes the packets that the lane does not handle itself and passes each to its handler."""

from __future__ import annotations

from braidmq.base.errors import ProtocolViolation, UnsupportedProtocol
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.table import ConnectionTable
from braidmq.broker.packets.auth import AuthHandler
from braidmq.broker.packets.connect import ConnectHandler
from braidmq.broker.packets.decoding import Decoding
from braidmq.broker.packets.disconnect import DisconnectHandler
from braidmq.broker.packets.subscribe import SubscribeHandler
from braidmq.broker.packets.unsubscribe import UnsubscribeHandler
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.channel_reader import HOLD_DECODE
from braidmq.mqtt import codec
from braidmq.mqtt.packets import (
    MQTT5,
    MQTT311,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from braidmq.mqtt.reasons import Reason

_LARGE_BODY = 16 * 1024
_CONNECT = 1
_ACKS = {Puback: 4, Pubrec: 5, Pubrel: 6, Pubcomp: 7}


class PacketDispatcher:
    """The broker's entry for control packets; fills `connection.context.ControlPackets`."""

    def __init__(
        self,
        connect: ConnectHandler,
        auth: AuthHandler,
        subscribe: SubscribeHandler,
        unsubscribe: UnsubscribeHandler,
        disconnect: DisconnectHandler,
        connections: ConnectionTable,
        statistics: Statistics,
        decoding: Decoding,
    ) -> None:
        self._connect = connect
        self._auth = auth
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._disconnect = disconnect
        self._connections = connections
        self._statistics = statistics
        self._decoding = decoding

    def on_packet(self, connection: Connection, kind: int, flags: int, body: bytes) -> None:
        """Decode a packet and act on it; if it breaks the protocol, the connection is closed."""
        if len(body) > _LARGE_BODY and not connection.is_closed:
            connection.hold(HOLD_DECODE)
            self._connections.run(self._on_large_packet(connection, kind, flags, body), connection)
            return
        try:
            self._act(connection, codec.decode(kind << 4 | flags, body, connection.version))
        except ProtocolViolation as violation:
            self._reject(connection, kind, body, violation)

    async def _on_large_packet(self, connection: Connection, kind: int, flags: int, body: bytes) -> None:
        """Decoding thousands of filters or properties takes a while: a thread does it, and the loop serves other clients."""
        try:
            packet = await self._decoding.decode(kind << 4 | flags, body, connection.version)
            if connection.is_closed:
                return
            self._act(connection, packet)
        except ProtocolViolation as violation:
            self._reject(connection, kind, body, violation)
        if not connection.is_closed:
            connection.resume(HOLD_DECODE)
        connection.lane.flush()

    def _reject(self, connection: Connection, kind: int, body: bytes, violation: ProtocolViolation) -> None:
        if isinstance(violation, UnsupportedProtocol):
            connection.version = MQTT5 if violation.level >= MQTT5 else MQTT311
            connection.refuse(Reason.UNSUPPORTED_PROTOCOL_VERSION, violation.detail)
        elif connection.is_greeted or kind != _CONNECT:
            connection.on_violation(violation.reason, violation.detail)
        else:
            self._refuse_malformed(connection, violation, body)

    def _act(self, connection: Connection, packet: Packet) -> None:
        self._statistics.packets_received[type(packet).__name__.lower()] += 1
        if not connection.is_greeted:
            if not isinstance(packet, Connect):
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "the first packet is not a CONNECT")
            connection.is_greeted = True
            self._connect.on_connect(connection, packet)
            return
        if isinstance(packet, Auth):
            self._auth.on_auth(connection, packet)
            return
        if not connection.is_open:
            # [MQTT-3.1.2-30]: until CONNACK only AUTH and DISCONNECT may come from a client that authenticates in steps.
            if isinstance(packet, Disconnect):
                connection.close(packet.reason, "", say=False)
                return
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} before CONNACK")
        match packet:
            case Subscribe():
                self._subscribe.on_subscribe(connection, packet)
            case Unsubscribe():
                self._unsubscribe.on_unsubscribe(connection, packet)
            case Disconnect():
                self._disconnect.on_disconnect(connection, packet)
            case Puback() | Pubrec() | Pubrel() | Pubcomp():
                connection.acknowledged(_ACKS[type(packet)], packet.packet_id, packet.reason)
            case Connect():
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "a second CONNECT")  # [MQTT-3.1.0-2]
            case _:
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} may be sent by servers only")

    def _refuse_malformed(self, connection: Connection, violation: ProtocolViolation, body: bytes) -> None:
        # MQTT 5 allows a CONNACK for a CONNECT that is malformed further on; MQTT 3 wants none [MQTT-3.1.4-1].
        self._statistics.violations[violation.reason] += 1
        connection.version = MQTT5 if body[:7] == b"\x00\x04MQTT\x05" else MQTT311
        connection.refuse(violation.reason, violation.detail, say=connection.version == MQTT5)
