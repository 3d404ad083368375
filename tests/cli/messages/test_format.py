"""The formats of ``sub -F``; expected values follow the manual of mosquitto_sub."""

from __future__ import annotations

import json
import time

import pytest

from braidmq.cli.errors import CommandFailed
from braidmq.cli.messages.format import NotJson, compile_format
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.properties import Properties

NOON_NS = 1_700_000_000_123_456_789

MESSAGE = Publish(
    "room/temp",
    b'{"t":21}',
    qos=1,
    retain=True,
    packet_id=7,
    properties=Properties(
        content_type="application/json",
        correlation_data=b"abc",
        message_expiry_interval=60,
        payload_format_indicator=1,
        response_topic="answers",
        subscription_identifiers=(12,),
        user_properties=(("k", "v"), ("k", "w")),
    ),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p", b'room/temp {"t":21}'),
        ("%l|%m|%q|%r", b"8|7|1|1"),
        ("%x|%X", b"7b2274223a32317d|7B2274223A32317D"),
        ("%C|%D|%E|%F|%R|%S|%A|%P", b"application/json|abc|60|1|answers|12||k:v k:w"),
        ("%U", b"1700000000.123456789"),
        ("@N", b"123456789"),
        ("%%@@\\\\", b"%@\\"),
        ("a\\tb\\n\\0\\e[1m\\a\\r\\v", b"a\tb\n\0\x1b[1m\a\r\v"),
        ("%12t|", b"   room/temp|"),
        ("%-12t|", b"room/temp   |"),
        ("%.4t|%6.4t|", b"room|  room|"),
        ("%05l|%5l|%-5l|", b"00008|    8|8    |"),
        ("%-05l|", b"8    |"),
        ("%012t", b"   room/temp"),
    ],
)
def test_sequences_are_replaced(text: str, expected: bytes) -> None:
    assert compile_format(text)(MESSAGE, NOON_NS) == expected


def test_times_are_local_with_their_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert compile_format("%I|@H:@M")(MESSAGE, NOON_NS) == b"2023-11-15T00:13:20+0200|00:13"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_json_holds_everything_with_the_payload_quoted() -> None:
    shown = json.loads(compile_format("%j")(MESSAGE, NOON_NS))

    assert shown.pop("tst").startswith("2023-11-1")
    assert shown == {
        "topic": "room/temp",
        "qos": 1,
        "retain": 1,
        "payloadlen": 8,
        "mid": 7,
        "properties": {
            "user-properties": {"k": "w"},
            "content-type": "application/json",
            "correlation-data": "abc",
            "response-topic": "answers",
            "payload-format-indicator": 1,
            "message-expiry-interval": 60,
            "subscription-identifiers": [12],
        },
        "payload": '{"t":21}',
    }


def test_json_can_hold_the_payload_as_it_is() -> None:
    assert json.loads(compile_format("%J")(MESSAGE, NOON_NS))["payload"] == {"t": 21}


def test_a_payload_that_is_not_json_is_refused_by_the_nested_form() -> None:
    with pytest.raises(NotJson, match="room/temp"):
        compile_format("%J")(Publish("room/temp", b"21 C"), NOON_NS)


def test_a_payload_that_is_not_text_still_makes_json() -> None:
    assert json.loads(compile_format("%j")(Publish("t", b"\xff\x00"), NOON_NS))["payload"] == "\ufffd\x00"


@pytest.mark.parametrize("text", ["%", "%z", "@", "\\", "\\q", "%10", "%.t"])
def test_an_unknown_sequence_is_refused_before_anything_is_printed(text: str) -> None:
    with pytest.raises(CommandFailed, match="-F: "):
        compile_format(text)
