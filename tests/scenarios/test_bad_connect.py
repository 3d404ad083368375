"""Invalid CONNECT packets, and client ids and user names with special characters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.access.contract import Credentials, Granted, Verdict
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Connack, Connect, Publish, Will
from tests.support.clients import raw
from tests.support.clients.wire import unique
from tests.support.present import present
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


@pytest.mark.row(5)
@both_versions
@pytest.mark.parametrize(
    ("flags", "has_will"),
    [(0x03, False), (0x0A, False), (0x12, False), (0x22, False), (0x1E, True)],
    ids=["reserved", "will qos 1, no will", "will qos 2, no will", "will retain, no will", "will qos 3"],
)
def test_contradictory_connect_flags_are_malformed(stage: Stage, version: int, flags: int, has_will: bool) -> None:
    wire = stage.open(version)

    wire.send(raw.connect(version, flags=flags, rest=raw.will(version, "w", b"") if has_will else b""))

    wire.expect_refusal(0x81, None)


@pytest.mark.row(6)
def test_a_password_without_a_user_name_is_malformed_before_mqtt_5(stage: Stage) -> None:
    wire = stage.open(MQTT311)

    wire.send(raw.connect(MQTT311, flags=0x42, rest=raw.text(b"token")))

    wire.expect_closed()


@pytest.mark.row(6)
def test_a_password_without_a_user_name_reaches_the_authenticator_in_mqtt_5(start: Callable[..., Stage]) -> None:
    seen: list[Credentials] = []

    class TokenHook(Hook):
        async def authenticate(self, credentials: Credentials) -> Verdict | None:
            seen.append(credentials)
            return Granted("by token")

    stage = start()
    stage.look(lambda inside: inside.hooks.add(TokenHook()))
    wire = stage.open()

    wire.send(raw.connect(MQTT5, flags=0x42, rest=raw.text(b"token")))

    assert wire.receive(Connack).reason == 0
    assert [(shown.user_name, shown.password) for shown in seen] == [(None, b"token")]


@pytest.mark.row(7)
@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 3, b"\x20\x02\x00\x01"),
        (b"MQTt", 4, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 4, b"\x20\x02\x00\x01"),
        (b"", 4, b"\x20\x02\x00\x01"),
        (b"MQTT", 0x84, b"\x20\x02\x00\x01"),
    ],
    ids=["MQTT 3", "MQTt", "MQIsdp 4", "no name", "bridge"],
)
def test_an_unknown_protocol_is_refused_with_return_code_1(stage: Stage, name: bytes, level: int, answer: bytes) -> None:
    wire = stage.open(MQTT311)

    wire.send(raw.connect(MQTT311, name=name, level=level))

    assert wire.read_to_end() == answer


@pytest.mark.row(7)
@pytest.mark.parametrize(("name", "level"), [(b"MQTT", 6), (b"MQTX", 5), (b"MQTT", 0xFF)])
def test_a_newer_protocol_version_is_rejected_with_0x84(stage: Stage, name: bytes, level: int) -> None:
    wire = stage.open(MQTT5)

    wire.send(raw.connect(MQTT5, name=name, level=level))

    wire.expect_refusal(0x84)


@pytest.mark.row(7)
@pytest.mark.parametrize("version", [MQTT31, MQTT311], ids=["3.1", "3.1.1"])
def test_the_bridge_bit_is_accepted_only_where_configured(stage: Stage, start: Callable[..., Stage], version: int) -> None:
    friendly = start(mqtt={"allow_bridge_bit": True})
    bridge = Connect("bridge", version, True, 60, None, None, None, bridge=True)
    refused, accepted = stage.open(version), friendly.open(version)

    refused.send(bridge)
    accepted.send(bridge)

    assert refused.read_to_end() == b"\x20\x02\x00\x01"
    assert accepted.receive(Connack).reason == 0


@pytest.mark.row(8)
def test_mqtt_3_rejects_an_empty_client_id_without_a_clean_session(stage: Stage) -> None:
    wire = stage.open(MQTT311)

    wire.send(raw.connect(MQTT311, flags=0, client_id=b""))

    wire.expect_refusal(0x85, 0x02)


@pytest.mark.row(8)
@pytest.mark.parametrize("flags", [0x00, 0x02], ids=["clean session 0", "clean session 1"])
def test_mqtt_3_1_rejects_an_empty_client_id(stage: Stage, flags: int) -> None:
    wire = stage.open(MQTT31)

    wire.send(raw.frame(0x10, raw.text("MQIsdp"), bytes([3, flags]), raw.u16(60), raw.text("")))

    wire.expect_refusal(0x85, 0x02)


@pytest.mark.row(8)
@pytest.mark.parametrize("flags", [0x00, 0x02], ids=["clean start 0", "clean start 1"])
def test_mqtt_5_assigns_and_reports_a_client_id(stage: Stage, flags: int) -> None:
    one, other = stage.open(), stage.open()

    for wire in (one, other):
        wire.send(raw.connect(MQTT5, flags=flags, client_id=b""))
    assigned = [wire.receive(Connack).properties.assigned_client_identifier for wire in (one, other)]

    assert all(assigned)
    assert assigned[0] != assigned[1]
    assert stage.look(lambda inside: all(inside.sessions.get(present(name)) is not None for name in assigned))


BAD_TEXT = {
    "NUL": b"a\x00b",
    "surrogate": b"a\xed\xa0\x80b",
    "overlong": b"a\xc0\xafb",
    "latin-1": b"caf\xe9",
    "cut": b"a\xe2\x82",
}


@pytest.mark.row(9)
@both_versions
@pytest.mark.parametrize("name", BAD_TEXT.values(), ids=BAD_TEXT)
def test_a_client_id_with_invalid_utf8_is_malformed(stage: Stage, version: int, name: bytes) -> None:
    wire = stage.open(version)

    wire.send(raw.connect(version, client_id=name))

    wire.expect_refusal(0x81, None)


@pytest.mark.row(9)
@both_versions
@pytest.mark.parametrize("name", BAD_TEXT.values(), ids=BAD_TEXT)
def test_a_user_name_with_invalid_utf8_is_malformed(stage: Stage, version: int, name: bytes) -> None:
    wire = stage.open(version)

    wire.send(raw.connect(version, flags=0x82, rest=raw.text(name)))

    wire.expect_refusal(0x81, None)


@pytest.mark.row(9)
@both_versions
def test_a_client_id_of_60_kilobytes_is_rejected(stage: Stage, version: int) -> None:
    wire = stage.open(version)

    wire.send(raw.connect(version, client_id="c" * 60_000))

    wire.expect_refusal(0x85, 0x02)


STRANGE_NAMES = [
    "+",
    "#",
    "a/b",
    "/",
    "../../../etc/passwd",
    "<script>alert(1)</script>",
    "%c",
    "$SYS",
    "a\nb",
    "'; --",
    "\u202e",
]


@pytest.mark.row(9)
@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_special_characters_in_a_client_id_are_taken_literally(stage: Stage, name: str) -> None:
    watcher = stage.connect()
    watcher.subscribe("$SYS/brokers/+/clients/+/connected")
    folder = stage.broker.data_dir
    before = {path.name for path in folder.iterdir()}

    client = stage.connect(name, user_name=name)

    client.ping()
    assert stage.look(lambda inside: inside.sessions.get(name) is not None)
    # The node writes its own mark now and then. Beside the folder are those of other nodes, which come and go.
    after = {path.name for path in folder.iterdir()} - {"log.mark", "log.mark.partial"}
    assert after <= before, "no file has the name"
    assert Path(name).name not in {path.name for path in folder.parent.iterdir()}
    # In the topic of the presence event it is one level and no wildcard; the true name is in the payload, escaped.
    event = watcher.receive(Publish)
    level = event.topic.split("/")[4]
    assert not set(level) & set("+#/")
    assert b"\n" not in event.payload


@pytest.mark.row(9)
@pytest.mark.parametrize("name", ["+", "#", "a/b", "victim/#", "%u", "$share"])
def test_a_wildcard_in_a_name_does_not_widen_an_acl_rule(start: Callable[..., Stage], tmp_path: Path, name: str) -> None:
    rules = tmp_path / "rules"
    rules.write_text("pattern readwrite own/%c/#\npattern readwrite of/%u/#\n")
    stage = start(access={"acl_file": str(rules)})
    victim = stage.connect("victim")
    victim.subscribe("own/victim/#")
    intruder = stage.connect(name, user_name=name)

    answer = intruder.request_subscribe("own/victim/secret", "own/+/secret", "own/#", "of/victim/#", "#")
    reason = intruder.publish("own/victim/secret", b"", qos=1)

    assert answer.reasons == [0x87] * 5
    assert reason == 0x87
    victim.expect_silence()


@pytest.mark.row(10)
@both_versions
def test_a_second_connect_closes_the_connection_and_publishes_the_will(stage: Stage, version: int) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    client = stage.connect(version=version, will=Will(topic, b"gone", 0, False))

    client.send_request()

    client.expect_disconnect(0x82)
    assert witness.receive(Publish).payload == b"gone"


@pytest.mark.row(12)
def test_auth_without_a_method_in_connect_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(raw.frame(0xF0, b"\x18", raw.properties(MQTT5, b"\x15" + raw.text("SCRAM-SHA-256"))))

    wire.expect_disconnect(0x82)


@pytest.mark.row(12)
@pytest.mark.parametrize("body", [b"", b"\x18", b"\x18\x00"], ids=["empty", "reason only", "no properties"])
def test_auth_without_a_method_is_a_protocol_error(stage: Stage, body: bytes) -> None:
    wire = stage.connect()

    wire.send(raw.frame(0xF0, body))

    wire.expect_disconnect(0x82)


@pytest.mark.row(12)
@pytest.mark.parametrize("method", ["", "GS2-KRB5", "SCRAM-SHA-256-PLUS", "x" * 5000])
def test_an_unknown_authentication_method_is_refused(stage: Stage, method: str) -> None:
    wire = stage.open()

    wire.send(raw.connect(MQTT5, props=b"\x15" + raw.text(method)))

    wire.expect_refusal(0x8C)


@pytest.mark.row(12)
def test_authentication_data_without_a_method_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.open()

    wire.send(raw.connect(MQTT5, props=b"\x16" + raw.text(b"data")))

    wire.expect_refusal(0x82)


@pytest.mark.row(15)
@pytest.mark.parametrize("props", [b"\x21\x00\x00", b"\x27\x00\x00\x00\x00"], ids=["receive maximum", "maximum packet size"])
def test_a_maximum_of_zero_is_a_protocol_error(stage: Stage, props: bytes) -> None:
    wire = stage.open()

    wire.send(raw.connect(MQTT5, props=props))

    wire.expect_refusal(0x82)


@pytest.mark.row(15)
@pytest.mark.parametrize("size", [1, 5])
def test_a_client_with_a_maximum_packet_size_of_one_byte_affects_no_other(stage: Stage, size: int) -> None:
    wire = stage.open()

    # Not even our CONNACK fits, so it may not be sent and the connection has no use.
    wire.send_request(maximum_packet_size=size)

    assert wire.read_to_end() == b""
    stage.connect().ping()
