"""The user properties of producers: the client's side writes what the broker's side reads."""

from __future__ import annotations

import pytest

from braidmq.broker.messages.producers import find_key, read_request
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.packets import MQTT5, Connect
from braidmq.mqtt.producer_protocol import KEY, KEY_HEAD, Request, message_check, read_check, write_check
from braidmq.mqtt.properties import Properties, write_properties


@pytest.mark.parametrize(
    "request_",
    [
        Request(0),
        Request(7 << 32, stops=True),
        Request(7 << 32, name="p", is_keyed=True),
        Request(7 << 32, name="p"),
        Request(7 << 32, name="p", part=0),
        Request(7 << 32, ((7 << 32) + 3, (7 << 32) + 9), stops=True, name="pé", part=12),
    ],
)
def test_the_broker_reads_the_request_that_a_client_writes(request_: Request) -> None:
    pairs = tuple(request_.user_properties().items())

    assert read_request(Connect("c", MQTT5, True, properties=Properties(user_properties=pairs))) == request_


def test_a_request_is_written_in_the_words_of_the_protocol() -> None:
    request = Request(100, (104, 109), stops=True, name="p", part=2)

    assert request.user_properties() == {
        "producer-sequence": "100",
        "producer-refusals": "stop",
        "producer-name": "p",
        "producer-part": "2",
        "producer-skip": "104-109",
    }
    assert Request(100, name="p", is_keyed=True).user_properties() == {"producer-sequence": "100", "producer-keys": "p"}


def test_the_head_of_a_key_is_how_the_codec_begins_the_property() -> None:
    length, *encoded = write_properties(Properties(user_properties=((KEY, "k1"),)), PacketType.PUBLISH)

    assert bytes(encoded) == KEY_HEAD + b"\x00\x02k1"
    assert find_key(bytes(encoded)) == (0, length)


def test_a_check_value_covers_topic_and_payload_and_survives_its_text() -> None:
    assert message_check(b"1234", b"56789") == 0xCBF43926  # CRC-32 of "123456789"
    assert write_check(0xA) == "0000000a"
    assert read_check(write_check(0xCBF43926)) == 0xCBF43926
