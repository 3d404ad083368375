"""Every control packet as a value, the same for all protocol versions; fields that a version lacks have their defaults."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import astuple

from braidmq.mqtt.packet_types import MQTT5, MQTT31, MQTT311, PacketType
from braidmq.mqtt.properties import NO_PROPERTIES, Properties

__all__ = [
    "MQTT5",
    "MQTT31",
    "MQTT311",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "SubscribeOption",
    "Unsuback",
    "Unsubscribe",
    "Will",
]


class Will(Struct, gc=False):
    """The message that the server publishes for a client that disconnected without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(Struct, gc=False):
    """A client opens a session; `bridge` is the 0x80 bit that MQTT 3 bridges set in the protocol level."""

    client_id: str
    version: int
    clean_start: bool = True
    keep_alive: int = 0
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    bridge: bool = False

    def __repr__(self) -> str:
        # Packets appear in traces and error messages; passwords must not.
        fields = (
            f"{name}={'<hidden>' if name == 'password' and value is not None else repr(value)}"
            for name, value in zip(self.__struct_fields__, astuple(self), strict=True)
        )
        return f"Connect({', '.join(fields)})"


class Connack(Struct, gc=False):
    """The answer to CONNECT. `reason` is the MQTT 5 code, or the raw return code if it was decoded from MQTT 3."""

    reason: int = 0
    session_present: bool = False
    properties: Properties = NO_PROPERTIES


class Publish(Struct, gc=False):
    """A message; `packet_id` is set if `qos` is 1 or 2. In MQTT 5 the topic may be empty if there is a topic alias."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: Properties = NO_PROPERTIES


class Puback(Struct, gc=False):
    """Answers a QoS 1 PUBLISH."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Pubrec(Struct, gc=False):
    """Answers a QoS 2 PUBLISH."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Pubrel(Struct, gc=False):
    """Answers PUBREC: the sender will not send this message again."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Pubcomp(Struct, gc=False):
    """Answers PUBREL: the packet identifier is free."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class SubscribeOption(Struct, gc=False):
    """One topic filter of a SUBSCRIBE; its wildcards and `$share` form are not yet checked."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Struct, gc=False):
    """A client subscribes; answered by one SUBACK with a reason for each filter, in order."""

    packet_id: int
    subscriptions: list[SubscribeOption]
    properties: Properties = NO_PROPERTIES


class Suback(Struct, gc=False):
    """One reason for each filter of the SUBSCRIBE: the QoS granted, or a failure."""

    packet_id: int
    reasons: list[int]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Struct, gc=False):
    """A client removes subscriptions."""

    packet_id: int
    topic_filters: list[str]
    properties: Properties = NO_PROPERTIES


class Unsuback(Struct, gc=False):
    """One reason for each filter of the UNSUBSCRIBE; MQTT 3 has no reasons here."""

    packet_id: int
    reasons: list[int]
    properties: Properties = NO_PROPERTIES


class Pingreq(Struct, gc=False):
    """A client shows that it is alive."""


class Pingresp(Struct, gc=False):
    """Answers PINGREQ."""


class Disconnect(Struct, gc=False):
    """The last packet on a connection; in MQTT 3 only clients send it, without a reason."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(Struct, gc=False):
    """A step of enhanced authentication (MQTT 5 only); the properties always name the method."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
