"""Invalid packets and properties on an open connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Pubcomp, Publish, Pubrel, Will
from tests.support.clients import raw
from tests.support.clients.wire import unique
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


def server_packets(version: int) -> dict[str, bytes]:
    """Whole and well formed packets that only a server sends."""
    none = raw.properties(version)
    return {
        "connack": raw.frame(0x20, b"\x00\x00", none),
        "suback": raw.frame(0x90, raw.u16(1), none, b"\x00"),
        "unsuback": raw.frame(0xB0, raw.u16(1), none, b"\x00" if version == MQTT5 else b""),
        "pingresp": b"\xd0\x00",
    }


@pytest.mark.row(11)
@both_versions
@pytest.mark.parametrize("kind", ["connack", "suback", "unsuback", "pingresp"])
def test_a_packet_that_only_servers_send_is_a_protocol_error(stage: Stage, version: int, kind: str) -> None:
    wire = stage.connect(version=version)

    wire.send(server_packets(version)[kind])

    wire.expect_disconnect(0x82)


@pytest.mark.row(11)
@pytest.mark.parametrize("frame", [b"\x00\x00", b"\xf0\x00"], ids=["type 0", "type 15"])
def test_a_reserved_packet_type_ends_an_mqtt_3_connection(stage: Stage, frame: bytes) -> None:
    wire = stage.connect(version=MQTT311)

    wire.send(frame)

    wire.expect_closed()


TWICE = {
    "publish": raw.publish(MQTT5, "t", props=b"\x01\x00" * 2),
    "publish expiry": raw.publish(MQTT5, "t", props=b"\x02\x00\x00\x00\x09" * 2),
    "publish alias": raw.publish(MQTT5, "t", props=b"\x23\x00\x01" * 2),
    "subscribe": raw.subscribe(MQTT5, ("t", 0), props=b"\x0b\x01" * 2),
    "puback": raw.frame(0x40, raw.u16(1), b"\x00", raw.properties(MQTT5, (b"\x1f" + raw.text("x")) * 2)),
    "disconnect": raw.frame(0xE0, b"\x00", raw.properties(MQTT5, b"\x11\x00\x00\x00\x00" * 2)),
}
FOREIGN = {
    "publish": raw.publish(MQTT5, "t", props=b"\x21\x00\x01"),
    "publish unknown": raw.publish(MQTT5, "t", props=b"\x7f\x00"),
    "subscribe": raw.subscribe(MQTT5, ("t", 0), props=b"\x23\x00\x01"),
    "unsubscribe": raw.unsubscribe(MQTT5, "t", props=b"\x0b\x01"),
    "pubrel": raw.frame(0x62, raw.u16(1), b"\x00", raw.properties(MQTT5, b"\x01\x00")),
    "disconnect": raw.frame(0xE0, b"\x00", raw.properties(MQTT5, b"\x02\x00\x00\x00\x01")),
}
CUT = {
    "publish length": raw.frame(0x30, raw.text("t"), b"\x7f"),
    "publish value": raw.publish(MQTT5, "t", props=b"\x02\x00\x00"),
    "publish user property": raw.publish(MQTT5, "t", props=b"\x26" + raw.text("name")),
    "publish user property value": raw.publish(MQTT5, "t", props=b"\x26" + raw.text("name") + b"\x00\x05abc"),
    "publish content type": raw.publish(MQTT5, "t", props=b"\x03\xff\xff"),
    "subscribe length": raw.frame(0x82, raw.u16(1), b"\x7f", raw.text("t"), b"\x00"),
    "subscribe user property": raw.subscribe(MQTT5, ("t", 0), props=b"\x26" + raw.text("name")),
    "unsubscribe length": raw.frame(0xA2, raw.u16(1), b"\xff\xff\xff\x7f", raw.text("t")),
    "puback length": raw.frame(0x40, raw.u16(1), b"\x00\x05"),
    "disconnect length": raw.frame(0xE0, b"\x00\x05"),
    "topic": raw.frame(0x30, b"\x00\x05ab"),
    "filter": raw.frame(0x82, raw.u16(1), b"\x00", b"\x00\x05ab"),
    "no options": raw.frame(0x82, raw.u16(1), b"\x00", raw.text("t")),
    "no packet id": raw.frame(0x32, raw.text("t")),
    "no topic": raw.frame(0x30),
    "empty subscribe": raw.frame(0x82),
    "empty puback": raw.frame(0x40),
}


@pytest.mark.row(13)
@pytest.mark.parametrize("frame", TWICE.values(), ids=TWICE)
def test_a_duplicate_property_is_a_protocol_error(stage: Stage, frame: bytes) -> None:
    wire = stage.connect()

    wire.send(frame)

    wire.expect_disconnect(0x82)


@pytest.mark.row(13)
def test_a_duplicate_property_in_connect_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.open()

    wire.send(raw.connect(MQTT5, props=b"\x21\x00\x05" * 2))

    wire.expect_refusal(0x82)


@pytest.mark.row(13)
@pytest.mark.parametrize("frame", FOREIGN.values(), ids=FOREIGN)
def test_a_property_of_another_packet_is_malformed(stage: Stage, frame: bytes) -> None:
    wire = stage.connect()

    wire.send(frame)

    wire.expect_disconnect(0x81)


@pytest.mark.row(13)
@pytest.mark.parametrize("props", [b"\x23\x00\x01", b"\x7f"], ids=["topic alias", "unknown"])
def test_a_property_of_another_packet_in_connect_is_malformed(stage: Stage, props: bytes) -> None:
    wire = stage.open()

    wire.send(raw.connect(MQTT5, props=props))

    wire.expect_refusal(0x81)


@pytest.mark.row(14)
@pytest.mark.parametrize("frame", CUT.values(), ids=CUT)
def test_a_field_longer_than_its_packet_is_malformed(stage: Stage, frame: bytes) -> None:
    wire = stage.connect()

    wire.send(frame)

    wire.expect_disconnect(0x81)


@pytest.mark.row(14)
@pytest.mark.parametrize(
    "frame",
    [
        raw.frame(0x10, raw.text("MQTT"), b"\x05\x02\x00\x3c", b"\x7f", raw.text("c")),
        raw.frame(0x10, raw.text("MQTT"), b"\x05\x02\x00\x3c", b"\x06\x26", raw.text("a"), b"\x00\x09"),
        raw.frame(0x10, raw.text("MQTT"), b"\x05\x02\x00\x3c", b"\x00", b"\x00\x40c"),
        raw.frame(0x10, raw.text("MQTT"), b"\x05\x02"),
        raw.connect(MQTT5, flags=0xC2, rest=raw.text("user")),
        raw.connect(MQTT5, rest=b"more"),
    ],
    ids=["property length", "cut user property", "cut client id", "ends early", "no password", "bytes behind"],
)
def test_a_connect_with_inconsistent_lengths_is_malformed(stage: Stage, frame: bytes) -> None:
    wire = stage.open()

    wire.send(frame)

    wire.expect_refusal(0x81)


@pytest.mark.row(21)
@both_versions
@pytest.mark.parametrize(
    "make",
    [
        lambda version: raw.publish(version, "t", flags=0x02, packet_id=0),
        lambda version: raw.publish(version, "t", flags=0x04, packet_id=0),
        lambda version: raw.subscribe(version, ("t", 0), packet_id=0),
        lambda version: raw.unsubscribe(version, "t", packet_id=0),
        lambda version: b"\x40\x02\x00\x00",
        lambda version: b"\x62\x02\x00\x00",
    ],
    ids=["publish 1", "publish 2", "subscribe", "unsubscribe", "puback", "pubrel"],
)
def test_packet_id_zero_is_malformed(stage: Stage, version: int, make: Callable[[int], bytes]) -> None:
    wire = stage.connect(version=version)

    wire.send(make(version))

    wire.expect_disconnect(0x81)


@pytest.mark.row(23)
@both_versions
def test_an_unknown_pubrel_gets_pubcomp_and_an_unknown_pubrec_gets_pubrel(stage: Stage, version: int) -> None:
    wire = stage.connect(version=version)
    unknown = 0x92 if version == MQTT5 else 0

    wire.send(b"\x62\x02\x12\x34", b"\x50\x02\x43\x21")

    assert wire.receive(Pubcomp) == Pubcomp(0x1234, unknown)
    assert wire.receive(Pubrel) == Pubrel(0x4321, unknown)


@pytest.mark.row(23)
@both_versions
def test_stray_acknowledgements_are_ignored_and_counted(stage: Stage, version: int) -> None:
    wire = stage.connect(version=version)
    before = stage.look(lambda inside: inside.state.counters.stray_acks)

    wire.send(b"\x40\x02\x00\x07", b"\x70\x02\x00\x07", b"\x40\x02\x00\x07")

    wire.ping()
    assert stage.look(lambda inside: inside.state.counters.stray_acks) - before == 3


@pytest.mark.row(23)
def test_a_negative_pubrec_for_an_unknown_packet_id_gets_no_pubrel(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(b"\x50\x03\x00\x07\x97")

    wire.expect_silence()


@pytest.mark.row(60)
@both_versions
@pytest.mark.parametrize("is_durable", [False, True], ids=["passing", "durable"])
@pytest.mark.parametrize(
    ("qos", "acknowledgement"),
    [(1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)],
    ids=["PUBREC for QoS 1", "PUBCOMP for QoS 1", "PUBACK for QoS 2", "PUBCOMP before PUBREC"],
)
def test_an_acknowledgement_of_the_wrong_type_is_a_protocol_error(
    stage: Stage, version: int, qos: int, acknowledgement: int, is_durable: bool
) -> None:
    topic = unique("t/")
    wire = stage.connect(version=version, persistent=is_durable)
    wire.subscribe(topic, qos=qos)
    stage.connect().publish(topic, b"x", qos)
    packet_id = wire.receive(Publish).packet_id
    assert packet_id is not None

    wire.send(raw.frame(acknowledgement, raw.u16(packet_id)))

    wire.expect_disconnect(0x82)


@pytest.mark.row(60)
def test_a_negative_acknowledgement_of_the_wrong_type_is_a_protocol_error(stage: Stage) -> None:
    topic = unique("t/")
    wire = stage.connect()
    wire.subscribe(topic, qos=1)
    stage.connect().publish(topic, b"x", 1)
    packet_id = wire.receive(Publish).packet_id
    assert packet_id is not None

    wire.send(raw.frame(0x50, raw.u16(packet_id), b"\x97"))

    wire.expect_disconnect(0x82)


@pytest.mark.row(60)
@both_versions
def test_a_message_is_resent_after_a_wrong_acknowledgement(stage: Stage, version: int) -> None:
    topic = unique("t/")
    wire = stage.connect(version=version, persistent=True)
    wire.subscribe(topic, qos=1)
    stage.connect().publish(topic, b"x", 1)
    packet_id = wire.receive(Publish).packet_id
    assert packet_id is not None
    wire.send(raw.frame(0x50, raw.u16(packet_id)))
    wire.expect_disconnect(0x82)

    back = stage.connect(wire.client_id, version=version, persistent=True)

    again = back.receive_publish()
    assert (again.payload, again.dup) == (b"x", True)


@pytest.mark.row(25)
@both_versions
@pytest.mark.parametrize("topic_bytes", [1, 60_000])
def test_a_payload_of_one_mebibyte_fits_the_default_maximum(stage: Stage, version: int, topic_bytes: int) -> None:
    topic = unique("t") + "x" * topic_bytes
    listener, wire = stage.connect(), stage.connect(version=version)
    listener.subscribe(topic, qos=1)

    wire.publish(topic, bytes(1024 * 1024), 1)

    assert len(listener.receive_publish().payload) == 1024 * 1024


@pytest.mark.row(25, "N4")
@both_versions
@pytest.mark.parametrize("first_byte", [0x30, 0x82], ids=["publish", "subscribe"])
def test_a_packet_above_the_maximum_is_rejected_by_its_header_alone(stage: Stage, version: int, first_byte: int) -> None:
    wire = stage.connect(version=version)

    wire.send(bytes([first_byte]) + raw.varint(2 * 1024 * 1024))

    wire.expect_disconnect(0x95)


@pytest.mark.row(25)
@both_versions
def test_the_largest_packet_is_accepted_and_one_byte_more_is_rejected(start: Callable[..., Stage], version: int) -> None:
    stage = start(mqtt={"packet_bytes_max": 1000})
    overhead = len(raw.publish(version, "t", bytes(900))) - 900
    listener = stage.connect()
    listener.subscribe("t")
    wire = stage.connect(version=version)

    wire.send(raw.publish(version, "t", bytes(1000 - overhead)))
    wire.ping()
    wire.send(raw.publish(version, "t", bytes(1001 - overhead)))

    assert len(listener.receive(Publish).payload) == 1000 - overhead
    wire.expect_disconnect(0x95)
    listener.expect_silence()


@pytest.mark.row(27)
def test_disconnect_cannot_set_an_expiry_if_connect_set_none(stage: Stage) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    wire = stage.connect(will=Will(topic, b"gone", 0, False))

    wire.send(raw.frame(0xE0, b"\x00", raw.properties(MQTT5, b"\x11\x00\x00\x00\x3c")))

    # The connection ends by an error, so this is no goodbye: the will is published and the session is over.
    wire.expect_disconnect(0x82)
    assert witness.receive(Publish).payload == b"gone"
    assert stage.look(lambda inside: inside.sessions.get(wire.client_id)) is None
