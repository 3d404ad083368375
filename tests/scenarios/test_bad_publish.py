"""Invalid and unauthorised PUBLISH packets, and messages without subscribers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Disconnect, Puback, Publish, Pubrec, Will
from tests.support.clients import raw
from tests.support.clients.wire import unique
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


@pytest.mark.row(16)
@pytest.mark.parametrize("topic", ["t", ""], ids=["with topic", "alone"])
@pytest.mark.parametrize("alias", [0, 65, 65535])
def test_a_topic_alias_out_of_range_is_invalid(stage: Stage, topic: str, alias: int) -> None:
    wire = stage.connect()
    assert wire.connack.properties.topic_alias_maximum == 64

    wire.send(raw.publish(MQTT5, topic, props=b"\x23" + raw.u16(alias)))

    wire.expect_disconnect(0x94)


@pytest.mark.row(16)
def test_an_unknown_topic_alias_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.connect()
    wire.send(raw.publish(MQTT5, "t", props=b"\x23\x00\x01"))

    wire.send(raw.publish(MQTT5, "", props=b"\x23\x00\x02"))

    wire.expect_disconnect(0x82)


@pytest.mark.row(16)
def test_a_topic_alias_does_not_outlive_its_connection(stage: Stage) -> None:
    first = stage.connect(persistent=True)
    first.send(raw.publish(MQTT5, "t", props=b"\x23\x00\x01"))
    first.disconnect()
    second = stage.connect(first.client_id, persistent=True)

    second.send(raw.publish(MQTT5, "", props=b"\x23\x00\x01"))

    second.expect_disconnect(0x82)


@pytest.mark.row(16)
def test_topic_aliases_beyond_the_total_of_bytes_are_rejected(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(raw.publish(MQTT5, "x" * 65_000, props=b"\x23\x00\x01"))
    wire.ping()
    wire.send(raw.publish(MQTT5, "y" * 65_000, props=b"\x23\x00\x02"))

    wire.expect_disconnect(0x97)


@pytest.mark.row(16)
def test_an_alias_cannot_be_set_to_an_invalid_topic(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(raw.publish(MQTT5, "a/#", props=b"\x23\x00\x01"))

    wire.expect_disconnect(0x90)


@pytest.mark.row(17)
@both_versions
@pytest.mark.parametrize("flags", [0x06, 0x0E, 0x08, 0x09], ids=["qos 3", "qos 3 dup", "dup qos 0", "dup qos 0 retain"])
def test_invalid_publish_flags_are_malformed(stage: Stage, version: int, flags: int) -> None:
    wire = stage.connect(version=version)

    wire.send(raw.publish(version, "t", flags=flags, packet_id=1 if flags & 6 else None))

    wire.expect_disconnect(0x81)


@pytest.mark.row(18)
def test_an_empty_topic_without_an_alias_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(raw.publish(MQTT5, ""))

    wire.expect_disconnect(0x82)


@pytest.mark.row(18)
def test_an_empty_topic_ends_an_mqtt_3_connection(stage: Stage) -> None:
    wire = stage.connect(version=MQTT311)

    wire.send(raw.publish(MQTT311, "", flags=2, packet_id=1))

    wire.expect_closed()


BAD_TOPICS = {
    "plus": ("a/+/b", 0x90),
    "hash": ("a/#", 0x90),
    "hash inside": ("a#b", 0x90),
    "NUL": (b"a\x00b", 0x81),
    "overlong": (b"a\xc0\xafb", 0x81),
    "surrogate": (b"\xed\xa0\x80", 0x81),
    "latin-1": (b"caf\xe9", 0x81),
    "too deep": ("/" * 128, 0x90),
    "very deep": ("/" * 32_000, 0x90),
    "very deep with names": ("a/" * 32_000, 0x90),
}


@pytest.mark.row(19)
@both_versions
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("topic", "reason"), BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_an_invalid_topic_name_closes_the_connection(
    stage: Stage, version: int, qos: int, topic: str | bytes, reason: int
) -> None:
    wire = stage.connect(version=version)

    wire.send(raw.publish(version, topic, flags=qos << 1, packet_id=qos or None))

    wire.expect_disconnect(reason)


@pytest.mark.row(19)
@both_versions
@pytest.mark.parametrize(("topic", "reason"), BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_an_invalid_will_topic_is_rejected(stage: Stage, version: int, topic: str | bytes, reason: int) -> None:
    wire = stage.open(version)

    wire.send(raw.connect(version, flags=0x06, rest=raw.will(version, topic, b"")))

    wire.expect_refusal(reason, None)


@pytest.mark.row(19)
def test_topics_with_the_maximum_of_levels_are_handled_without_recursion(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"topic_levels_max": 32_768})
    deep = "/" * 32_000
    one, other = stage.connect(), stage.connect()

    one.subscribe(deep, "+/" * 32_000 + "#", qos=1)
    other.publish(deep, b"down", qos=1, retain=True)
    other.subscribe("+" + "/+" * 32_000)

    assert one.receive_publish().payload == b"down"
    assert other.receive(Publish).payload == b"down"
    one.unsubscribe(deep)


BROKERS_OWN = ["$SYS/broker/uptime", "$SYS", "$LINK/to/b", "$share/g/t", "$exclusive/t", "$unheard/of"]


@pytest.mark.row(20)
@pytest.mark.parametrize("topic", BROKERS_OWN)
def test_clients_cannot_publish_to_the_brokers_topics(stage: Stage, topic: str) -> None:
    witness = stage.connect()
    witness.subscribe("$SYS/#", "$LINK/#", "$unheard/#", "t", "#")
    client = stage.connect()
    witness.drain()  # the client's coming is an event below $SYS
    before = stage.drops("reserved")

    reasons = [client.publish(topic, b"fake", qos=qos, retain=True) for qos in (1, 2)]
    client.publish(topic, b"fake", qos=0, retain=True)

    assert reasons == [0x87, 0x87]
    assert stage.drops("reserved") - before == 3
    witness.expect_silence()
    assert stage.look(lambda inside: inside.retained.get(topic.encode())) is None


@pytest.mark.row(20)
def test_mqtt_3_messages_to_the_brokers_topics_are_acknowledged_and_ignored(stage: Stage) -> None:
    witness = stage.connect()
    witness.subscribe("$SYS/fake")
    client = stage.connect(version=MQTT311)

    for qos in (0, 1, 2):
        client.publish("$SYS/fake", b"", qos=qos)

    witness.expect_silence()


@pytest.mark.row(20)
def test_a_will_cannot_be_published_to_the_brokers_topics(stage: Stage) -> None:
    witness = stage.connect()
    witness.subscribe("$SYS/fake")
    client = stage.connect(will=Will("$SYS/fake", b"", 0, True))

    client.close()
    stage.connect(client.client_id)  # after the end of the old session

    witness.expect_silence()


@pytest.mark.row(22)
def test_repeating_one_qos_2_packet_a_million_times_delivers_one_message(stage: Stage) -> None:
    topic = unique("t/")
    witness = stage.connect()
    witness.subscribe(topic, qos=2)
    wire = stage.connect(version=MQTT311)
    rounds, frames_each = 1000, 1000
    burst = raw.publish(MQTT311, topic, b"once", flags=0x04, packet_id=7) * frames_each
    wire.send(burst)
    before = resident_bytes()

    def send() -> None:
        for _ in range(rounds - 1):
            wire.send(burst)

    sender = threading.Thread(target=send)
    sender.start()
    answers = wire.receive_bytes(rounds * frames_each * 4, timeout_s=30)
    sender.join()

    assert answers == b"\x50\x02\x00\x07" * (rounds * frames_each)
    assert witness.receive_publish().payload == b"once"
    witness.expect_silence()
    assert resident_bytes() - before < 32 * 1024 * 1024
    assert stage.look(lambda inside: present(inside.sessions.get(wire.client_id)).flow.received_ids()) == [7]


@pytest.mark.row(24)
def test_exceeding_the_receive_maximum_closes_the_connection(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"receive_maximum": 3})
    witness = stage.connect()
    witness.subscribe("t", qos=2)
    wire = stage.connect()
    assert wire.connack.properties.receive_maximum == 3

    wire.send(*(raw.publish(MQTT5, "t", bytes([n]), flags=0x04, packet_id=n) for n in range(1, 5)))

    # What comes with the packet too many may be answered or not: the disk is slower than the end.
    packets = wire.receive_until(Disconnect)
    assert packets[-1].reason == 0x93
    assert {packet.packet_id for packet in packets[0] if isinstance(packet, Pubrec)} <= {1, 2, 3}
    assert [witness.receive_publish().payload for _ in range(3)] == [b"\x01", b"\x02", b"\x03"]
    witness.expect_silence()


@pytest.mark.row(24)
def test_pubrel_frees_room_under_the_receive_maximum(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"receive_maximum": 3})
    wire = stage.connect()

    for _ in range(10):
        wire.publish("t", b"", qos=2)

    wire.ping()


@pytest.mark.row(26)
@pytest.mark.parametrize("payload", [b"\xff", b"\xc0\xaf", b"caf\xe9", b"\xed\xa0\x80"], ids=repr)
def test_a_payload_that_is_not_the_declared_utf8_is_rejected_if_checked(start: Callable[..., Stage], payload: bytes) -> None:
    stage = start(mqtt={"check_payload_format": True})
    witness = stage.connect()
    witness.subscribe("t")
    wire = stage.connect()

    reasons = [wire.publish("t", payload, qos=qos, payload_format_indicator=1) for qos in (1, 2)]
    wire.publish("t", payload, qos=0, payload_format_indicator=1)
    wire.publish("t", "café".encode(), qos=1, payload_format_indicator=1)
    wire.publish("t", payload, qos=1, payload_format_indicator=0)

    assert reasons == [0x99, 0x99]
    assert [packet.payload for packet in witness.receive_publishes(2)] == ["café".encode(), payload]
    witness.expect_silence()
    assert stage.drops("payload_format") == 3


@pytest.mark.row(26)
def test_a_payload_that_is_not_the_declared_utf8_passes_unchanged_if_unchecked(stage: Stage) -> None:
    topic = unique("t/")
    witness = stage.connect()
    witness.subscribe(topic)
    wire = stage.connect()

    wire.publish(topic, b"\xff\x00\xfe", qos=1, payload_format_indicator=1)

    passed = witness.receive(Publish)
    assert passed.payload == b"\xff\x00\xfe"
    assert passed.properties.payload_format_indicator == 1


@pytest.mark.row(43)
def test_a_message_without_subscribers_is_acknowledged_with_0x10(stage: Stage) -> None:
    topic = unique("nobody/")
    wire = stage.connect()

    wire.send(raw.publish(MQTT5, topic, flags=0x02, packet_id=1), raw.publish(MQTT5, topic, flags=0x04, packet_id=2))

    assert wire.receive(Puback) == Puback(1, 0x10)
    assert wire.receive(Pubrec) == Pubrec(2, 0x10)


@pytest.mark.row(43)
def test_a_retained_message_without_subscribers_is_stored(stage: Stage) -> None:
    topic = unique("later/")
    wire = stage.connect()

    reason = wire.publish(topic, b"kept", qos=1, retain=True)
    wire.subscribe(topic)

    assert reason == 0x10
    assert wire.receive(Publish).payload == b"kept"


@pytest.mark.row(48)
@both_versions
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("topic", "payload", "retain", "reason"),
    [
        ("b", b"one too many", True, 0x97),
        ("a", b"more than a retained message may have", True, 0x97),
        ("$delayed/1/b", b"one too many", False, 0x97),
        ("$delayed/soon/b", b"never", False, 0x90),
    ],
    ids=["retained", "large", "delayed", "no delay"],
)
def test_a_rejected_message_is_not_acknowledged_as_accepted(
    start: Callable[..., Stage], version: int, qos: int, topic: str, payload: bytes, retain: bool, reason: int
) -> None:
    stage = start(retained={"messages_max": 1, "payload_bytes_max": 16}, delayed={"messages_max": 0})
    reader, sender = stage.connect(), stage.connect("sender", version=version, persistent=True)
    reader.subscribe("#", qos=2)
    sender.publish("a", b"the first", qos, retain=True)
    assert reader.receive_publish().payload == b"the first"

    packet_id = sender.next_packet_id()
    sender.send(Publish(topic, payload, qos, retain, packet_id=packet_id))

    if version == MQTT5:
        assert sender.finish_publish(qos, packet_id) == reason
    else:
        sender.expect_closed()
        again = stage.connect("sender", version=version, persistent=True)
        assert again.publish("c", b"", qos) == 0, "there is nothing that it waits for"
        assert reader.receive_publish().topic == "c"
    reader.expect_silence()


@pytest.mark.row(48)
@both_versions
def test_a_rejected_qos_0_message_is_dropped_and_counted(start: Callable[..., Stage], version: int) -> None:
    stage = start(retained={"messages_max": 0, "payload_bytes_max": 1}, delayed={"messages_max": 0})
    sender = stage.connect(version=version)

    sender.publish("a", b"too large", retain=True)
    sender.publish("$delayed/1/a", b"")

    assert (stage.drops("retained_full"), stage.drops("delayed_full")) == (1, 1)
