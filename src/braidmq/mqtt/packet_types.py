"""The numbers of control packets and protocol versions on the wire."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MQTT31: Final = 3
MQTT311: Final = 4
MQTT5: Final = 5

PACKET_ID_MAX: Final = 65_535


class PacketType(IntEnum):
    """The high four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15
