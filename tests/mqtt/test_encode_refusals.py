"""Packets that the caller must not send: `encode` raises instead of writing them."""

from __future__ import annotations

import pytest

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt import wire
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeOption,
    Unsuback,
    Unsubscribe,
    Will,
)
from braidmq.mqtt.properties import Properties

METHOD = Properties(authentication_method="m")

REFUSALS: list[tuple[str, int, Packet]] = [
    ("a version that there is not", 6, Connect("c", 6)),
    ("a keep alive past two bytes", 4, Connect("c", 4, keep_alive=65_536)),
    ("a bridge bit in MQTT 5", 5, Connect("c", 5, bridge=True)),
    ("a lone password before MQTT 5", 4, Connect("c", 4, password=b"p")),
    ("a will of QoS 3", 5, Connect("c", 5, will=Will("w", b"", 3))),
    ("a will for a filter", 5, Connect("c", 5, will=Will("w/#", b""))),
    ("a will with a property of CONNECT", 5, Connect("c", 5, will=Will("w", b"", properties=Properties(receive_maximum=1)))),
    ("a client id with U+0000", 5, Connect("c\0", 5)),
    ("a user name past 65535 bytes", 5, Connect("c", 5, user_name="é" * 32_768)),
    ("a reason of SUBACK in CONNACK", 5, Connack(1)),
    ("a CONNACK that MQTT 3 cannot say", 4, Connack(0x81)),
    ("receive maximum 0", 5, Connack(0, False, Properties(receive_maximum=0))),
    ("maximum QoS 2", 5, Connack(0, False, Properties(maximum_qos=2))),
    ("a reason string past 65535 bytes", 5, Connack(0, False, Properties(reason_string="x" * 65_536))),
    ("authentication data without a method", 5, Connack(0, False, Properties(authentication_data=b"d"))),
    ("a message of QoS 1 without a packet id", 5, Publish("t", b"", 1)),
    ("a message of QoS 0 with a packet id", 5, Publish("t", b"", 0, packet_id=1)),
    ("a duplicate of QoS 0", 5, Publish("t", b"", 0, dup=True)),
    ("a message of QoS 3", 5, Publish("t", b"", 3, packet_id=1)),
    ("a message for a filter", 5, Publish("a/+", b"")),
    ("a message without topic or alias", 5, Publish("", b"")),
    ("a message by alias before MQTT 5", 4, Publish("", b"", properties=Properties(topic_alias=1))),
    ("a response to a filter", 5, Publish("t", b"", properties=Properties(response_topic="#"))),
    ("subscription id 0", 5, Publish("t", b"", properties=Properties(subscription_identifiers=(0,)))),
    ("a subscription id past its bytes", 5, Publish("t", b"", properties=Properties(subscription_identifiers=(2**28,)))),
    ("packet id 0", 5, Puback(0)),
    ("a packet id past two bytes", 5, Puback(65_536)),
    ("a reason of PUBREL in PUBACK", 5, Puback(1, 0x92)),
    ("a property of CONNACK in PUBACK", 5, Puback(1, 0, Properties(receive_maximum=1))),
    ("SUBSCRIBE without a filter", 5, Subscribe(1, [])),
    ("SUBSCRIBE with an empty filter", 4, Subscribe(1, [SubscribeOption("a"), SubscribeOption("")])),
    ("UNSUBSCRIBE with an empty filter", 4, Unsubscribe(1, ["a", ""])),
    ("a subscription of QoS 3", 5, Subscribe(1, [SubscribeOption("a", 3)])),
    ("retain handling 3", 5, Subscribe(1, [SubscribeOption("a", retain_handling=3)])),
    ("two subscription ids", 5, Subscribe(1, [SubscribeOption("a")], Properties(subscription_identifiers=(1, 2)))),
    ("UNSUBSCRIBE without a filter", 5, Unsubscribe(1, [])),
    ("SUBACK without a reason", 4, Suback(1, [])),
    ("a reason of UNSUBACK in SUBACK", 5, Suback(1, [0x11])),
    ("UNSUBACK without a reason", 5, Unsuback(1, [])),
    ("a reason of SUBACK in UNSUBACK", 5, Unsuback(1, [1])),
    ("a reason of CONNACK in DISCONNECT", 5, Disconnect(0x8A)),
    ("a lone surrogate", 5, Disconnect(0, Properties(reason_string="\ud800"))),
    ("AUTH before MQTT 5", 4, Auth(0x18, METHOD)),
    ("AUTH without a method", 5, Auth(0x18)),
    ("a reason of DISCONNECT in AUTH", 5, Auth(0x87, METHOD)),
]


@pytest.mark.parametrize(("version", "packet"), [pytest.param(*rest, id=name) for name, *rest in REFUSALS])
def test_encode_refuses_what_breaks_the_rules(version: int, packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(packet, version)


@pytest.mark.parametrize("read", [wire.read_binary, wire.read_text])
def test_a_field_that_is_cut_is_never_read_as_a_shorter_one(read: object) -> None:
    with pytest.raises(ProtocolViolation):
        read(b"\0\x03ab", 0)  # type: ignore[operator]
