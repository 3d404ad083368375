"""Packets that every decoder must accept."""

from __future__ import annotations

from braidmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
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
from braidmq.mqtt.properties import Properties
from tests.mqtt.cases_format import Accepted

V31, V311, V5 = (3,), (4,), (5,)
V3 = (3, 4)
ALL = (3, 4, 5)

CONNECT = [
    Accepted("connect 3.1", V31, 0x10, b"\0\x06MQIsdp\x03\x02\0\x3c\0\x01c", Connect("c", 3, True, 60)),
    Accepted("connect 3.1.1", V311, 0x10, b"\0\x04MQTT\x04\x02\0\x3c\0\x01c", Connect("c", 4, True, 60)),
    Accepted("connect 5", V5, 0x10, b"\0\x04MQTT\x05\x02\0\x3c\0\0\x01c", Connect("c", 5, True, 60)),
    Accepted("connect with an empty client id", V311, 0x10, b"\0\x04MQTT\x04\x00\xff\xff\0\0", Connect("", 4, False, 65535)),
    Accepted("connect of a 3.1 bridge", V31, 0x10, b"\0\x06MQIsdp\x83\x02\0\0\0\x01c", Connect("c", 3, True, 0, bridge=True)),
    Accepted("connect of a 3.1.1 bridge", V311, 0x10, b"\0\x04MQTT\x84\x02\0\0\0\x01c", Connect("c", 4, True, 0, bridge=True)),
    Accepted(
        "connect 3.1.1 with everything",
        V311,
        0x10,
        b"\0\x04MQTT\x04\xee\0\x0a" + b"\0\x02id" + b"\0\x03w/t" + b"\0\x03bye" + b"\0\x02me" + b"\0\x02\0\xff",
        Connect("id", 4, True, 10, "me", b"\0\xff", Will("w/t", b"bye", 1, True)),
    ),
    Accepted(
        "connect 3.1 whose user name and password are flagged but left out",
        V31,
        0x10,
        b"\0\x06MQIsdp\x03\xc2\0\0\0\x01c",
        Connect("c", 3, True, 0),
        canonical=False,
    ),
    Accepted(
        "connect 3.1 whose password is flagged but left out",
        V31,
        0x10,
        b"\0\x06MQIsdp\x03\xc2\0\0\0\x01c\0\x02me",
        Connect("c", 3, True, 0, "me"),
        canonical=False,
    ),
    Accepted(
        "connect 5 with a password and no user name",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x42\0\0\0\0\x01c\0\x02pw",
        Connect("c", 5, True, 0, None, b"pw"),
    ),
    Accepted(
        "connect 5 with every property",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x02\0\0"
        + b"\x23"
        + b"\x11\0\0\0\x0a"
        + b"\x15\0\x01m"
        + b"\x16\0\x01d"
        + b"\x17\0"
        + b"\x19\1"
        + b"\x21\0\x14"
        + b"\x22\0\x05"
        + b"\x26\0\x01k\0\x01v"
        + b"\x27\0\0\1\0"
        + b"\0\x01c",
        Connect(
            "c",
            5,
            True,
            0,
            properties=Properties(
                session_expiry_interval=10,
                authentication_method="m",
                authentication_data=b"d",
                request_problem_information=False,
                request_response_information=True,
                receive_maximum=20,
                topic_alias_maximum=5,
                user_properties=(("k", "v"),),
                maximum_packet_size=256,
            ),
        ),
    ),
    Accepted(
        "connect 5 with every property of the will",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x34\0\0\0\0\x01c"
        + b"\x20"
        + b"\x01\1"
        + b"\x02\0\0\0\x05"
        + b"\x03\0\x01t"
        + b"\x08\0\x01r"
        + b"\x09\0\x02\0\1"
        + b"\x18\0\0\0\x1e"
        + b"\x26\0\x01k\0\x01v"
        + b"\0\x01w\0\0",
        Connect(
            "c",
            5,
            False,
            0,
            will=Will(
                "w",
                b"",
                2,
                True,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=5,
                    content_type="t",
                    response_topic="r",
                    correlation_data=b"\0\1",
                    will_delay_interval=30,
                    user_properties=(("k", "v"),),
                ),
            ),
        ),
    ),
    Accepted(
        "connect 5 with properties in another order",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x02\0\0\x08\x21\0\x01\x11\0\0\0\x01\0\x01c",
        Connect("c", 5, True, 0, properties=Properties(session_expiry_interval=1, receive_maximum=1)),
        canonical=False,
    ),
]

CONNACK = [
    Accepted("connack", V3, 0x20, b"\0\0", Connack(0)),
    Accepted("connack 5", V5, 0x20, b"\0\0\0", Connack(0)),
    Accepted("connack with a session", V311, 0x20, b"\1\0", Connack(0, True)),
    Accepted("connack 5 with a session", V5, 0x20, b"\1\0\0", Connack(0, True)),
    Accepted("connack that refuses", V3, 0x20, b"\0\x05", Connack(5)),
    Accepted("connack 5 that refuses", V5, 0x20, b"\0\x87\0", Connack(0x87)),
    Accepted(
        "connack 5 with every property",
        V5,
        0x20,
        b"\0\0"
        + b"\x3d"
        + b"\x11\0\0\0\x0a"
        + b"\x12\0\x02id"
        + b"\x13\0\x1e"
        + b"\x15\0\x01m"
        + b"\x16\0\x01d"
        + b"\x1a\0\x01i"
        + b"\x1c\0\x01h"
        + b"\x1f\0\x01w"
        + b"\x21\0\x02"
        + b"\x22\0\x03"
        + b"\x24\1"
        + b"\x25\1"
        + b"\x26\0\x01k\0\x01v"
        + b"\x27\0\0\0\x7f"
        + b"\x28\0"
        + b"\x29\0"
        + b"\x2a\0",
        Connack(
            0,
            False,
            Properties(
                session_expiry_interval=10,
                assigned_client_identifier="id",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"d",
                response_information="i",
                server_reference="h",
                reason_string="w",
                receive_maximum=2,
                topic_alias_maximum=3,
                maximum_qos=1,
                retain_available=True,
                user_properties=(("k", "v"),),
                maximum_packet_size=127,
                wildcard_subscription_available=False,
                subscription_identifiers_available=False,
                shared_subscription_available=False,
            ),
        ),
    ),
]

PUBLISH = [
    Accepted("publish of QoS 0", V3, 0x30, b"\0\x03a/bhi", Publish("a/b", b"hi")),
    Accepted("publish 5 of QoS 0", V5, 0x30, b"\0\x03a/b\0hi", Publish("a/b", b"hi")),
    Accepted("publish without payload, retained", V3, 0x31, b"\0\x01t", Publish("t", b"", retain=True)),
    Accepted("publish of QoS 1", V3, 0x32, b"\0\x01t\0\x0ax", Publish("t", b"x", 1, packet_id=10)),
    Accepted("publish of QoS 2, again", V3, 0x3C, b"\0\x01t\xff\xffx", Publish("t", b"x", 2, dup=True, packet_id=65535)),
    Accepted("publish 5 of QoS 1, again", V5, 0x3B, b"\0\x01t\0\x0a\0x", Publish("t", b"x", 1, True, True, 10)),
    Accepted("publish to a topic of one slash", V3, 0x30, b"\0\x01/", Publish("/", b"")),
    Accepted("publish that keeps a byte order mark", V3, 0x30, b"\0\x04\xef\xbb\xbfa", Publish("\ufeffa", b"")),
    Accepted("publish to a topic beyond the basic plane", V3, 0x30, b"\0\x04\xf0\x9f\x98\x80", Publish("\U0001f600", b"")),
    Accepted(
        "publish 5 by alias alone", V5, 0x30, b"\0\0\x03\x23\0\x01x", Publish("", b"x", properties=Properties(topic_alias=1))
    ),
    Accepted(
        "publish 5 with every property",
        V5,
        0x30,
        b"\0\x01t"
        + b"\x22"
        + b"\x01\0"
        + b"\x02\xff\xff\xff\xff"
        + b"\x03\0\x01c"
        + b"\x08\0\x01r"
        + b"\x09\0\0"
        + b"\x0b\x01"
        + b"\x0b\xff\xff\xff\x7f"
        + b"\x23\0\x02"
        + b"\x26\0\x01k\0\0"
        + b"x",
        Publish(
            "t",
            b"x",
            properties=Properties(
                payload_format_indicator=0,
                message_expiry_interval=4_294_967_295,
                content_type="c",
                response_topic="r",
                correlation_data=b"",
                subscription_identifiers=(1, 268_435_455),
                topic_alias=2,
                user_properties=(("k", ""),),
            ),
        ),
    ),
    Accepted(
        "publish 5 that keeps the order of user properties",
        V5,
        0x30,
        b"\0\x01t\x0e\x26\0\x01b\0\x01x\x26\0\x01a\0\x01y",
        Publish("t", b"", properties=Properties(user_properties=(("b", "x"), ("a", "y")))),
    ),
]

ACKNOWLEDGEMENTS = [
    Accepted("puback", ALL, 0x40, b"\0\x01", Puback(1)),
    Accepted("pubrec", ALL, 0x50, b"\0\x01", Pubrec(1)),
    Accepted("pubrel", ALL, 0x62, b"\0\x01", Pubrel(1)),
    Accepted("pubcomp", ALL, 0x70, b"\x80\0", Pubcomp(32768)),
    Accepted("pubrel 3.1, again", V31, 0x6A, b"\0\x01", Pubrel(1), canonical=False),
    Accepted("puback 5 with a reason", V5, 0x40, b"\0\x01\x10", Puback(1, 0x10)),
    Accepted("pubrec 5 with a reason", V5, 0x50, b"\0\x01\x97", Pubrec(1, 0x97)),
    Accepted("pubrel 5 with a reason", V5, 0x62, b"\0\x01\x92", Pubrel(1, 0x92)),
    Accepted("pubcomp 5 with a reason", V5, 0x70, b"\0\x01\x92", Pubcomp(1, 0x92)),
    Accepted("puback 5 with a needless reason", V5, 0x40, b"\0\x01\0", Puback(1), canonical=False),
    Accepted("puback 5 with a needless property length", V5, 0x40, b"\0\x01\0\0", Puback(1), canonical=False),
    Accepted(
        "puback 5 with properties",
        V5,
        0x40,
        b"\0\x01\x87\x0b\x1f\0\x01w\x26\0\x01k\0\x01v",
        Puback(1, 0x87, Properties(reason_string="w", user_properties=(("k", "v"),))),
    ),
]

SUBSCRIPTIONS = [
    Accepted("subscribe", V3, 0x82, b"\0\x01\0\x03a/b\x01", Subscribe(1, [SubscribeOption("a/b", 1)])),
    Accepted("subscribe 5", V5, 0x82, b"\0\x01\0\0\x03a/b\x01", Subscribe(1, [SubscribeOption("a/b", 1)])),
    Accepted("subscribe 3.1, again", V31, 0x8A, b"\0\x01\0\x01a\0", Subscribe(1, [SubscribeOption("a")]), canonical=False),
    Accepted(
        "subscribe to two filters",
        V3,
        0x82,
        b"\0\x0a\0\x01#\x02\0\x01+\0",
        Subscribe(10, [SubscribeOption("#", 2), SubscribeOption("+", 0)]),
    ),
    Accepted(
        "subscribe to filters that only the server can refuse",
        V3,
        0x82,
        b"\0\x01\0\x05a/#/b\x00\0\x01+\x01",
        Subscribe(1, [SubscribeOption("a/#/b", 0), SubscribeOption("+", 1)]),
    ),
    Accepted(
        "subscribe 5 with every option and property",
        V5,
        0x82,
        b"\0\x01" + b"\x0a\x0b\x80\x01\x26\0\x01k\0\x01v" + b"\0\x01a\x2e" + b"\0\x0a$share/g/t\x11",
        Subscribe(
            1,
            [SubscribeOption("a", 2, True, True, 2), SubscribeOption("$share/g/t", 1, False, False, 1)],
            Properties(subscription_identifiers=(128,), user_properties=(("k", "v"),)),
        ),
    ),
    Accepted("suback", V3, 0x90, b"\0\x01\0\1\2\x80", Suback(1, [0, 1, 2, 0x80])),
    Accepted("suback 5", V5, 0x90, b"\0\x01\0\0\1\2\x80\x8f\xa2", Suback(1, [0, 1, 2, 0x80, 0x8F, 0xA2])),
    Accepted(
        "suback 5 with a reason string", V5, 0x90, b"\0\x01\x04\x1f\0\x01w\x87", Suback(1, [0x87], Properties(reason_string="w"))
    ),
    Accepted("unsubscribe", V3, 0xA2, b"\0\x01\0\x01a\0\x02b+", Unsubscribe(1, ["a", "b+"])),
    Accepted("unsubscribe 3.1, again", V31, 0xAA, b"\0\x01\0\x01a", Unsubscribe(1, ["a"]), canonical=False),
    Accepted("unsubscribe 5", V5, 0xA2, b"\0\x01\0\0\x01a", Unsubscribe(1, ["a"])),
    Accepted("unsuback", V3, 0xB0, b"\0\x01", Unsuback(1, [])),
    Accepted("unsuback 5", V5, 0xB0, b"\0\x01\0\0\x11\x87", Unsuback(1, [0, 0x11, 0x87])),
]

OTHERS = [
    Accepted("pingreq", ALL, 0xC0, b"", Pingreq()),
    Accepted("pingresp", ALL, 0xD0, b"", Pingresp()),
    Accepted("disconnect", ALL, 0xE0, b"", Disconnect()),
    Accepted("disconnect 5 with a needless reason", V5, 0xE0, b"\0", Disconnect(), canonical=False),
    Accepted("disconnect 5 with a reason", V5, 0xE0, b"\x04", Disconnect(4)),
    Accepted(
        "disconnect 5 with every property",
        V5,
        0xE0,
        b"\x9d\x14\x11\0\0\0\0\x1c\0\x01h\x1f\0\x01w\x26\0\x01k\0\x01v",
        Disconnect(
            0x9D,
            Properties(session_expiry_interval=0, server_reference="h", reason_string="w", user_properties=(("k", "v"),)),
        ),
    ),
    Accepted("auth 5", V5, 0xF0, b"\x18\x04\x15\0\x01m", Auth(0x18, Properties(authentication_method="m"))),
    Accepted(
        "auth 5 with data",
        V5,
        0xF0,
        b"\x19\x08\x15\0\x01m\x16\0\x01d",
        Auth(0x19, Properties(authentication_method="m", authentication_data=b"d")),
    ),
    Accepted("auth 5 that ends in success", V5, 0xF0, b"\0\x04\x15\0\x01m", Auth(0, Properties(authentication_method="m"))),
]

ACCEPTED: list[Accepted] = [*CONNECT, *CONNACK, *PUBLISH, *ACKNOWLEDGEMENTS, *SUBSCRIPTIONS, *OTHERS]
