"""The outbox writes what the codec would write."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from braidmq.lane.path.outbox import Outbox
from braidmq.lane.path.parser import FRAME, Parser
from braidmq.mqtt import wire
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, PacketType, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.properties import Properties, write_properties
from tests.mqtt.strategies import publishes

FRAME_MAX = 268_435_460


def properties_of(packet: Publish) -> bytes:
    """The forwardable properties as the parser hands them out: no length, no alias, no identifiers."""
    forwarded = replace(packet.properties, topic_alias=None, subscription_identifiers=())
    encoded = write_properties(forwarded, PacketType.PUBLISH)
    return encoded[wire.read_varint(encoded, 0)[1] :]


def push(outbox: Outbox, packet: Publish, version: int, *, alias: int = 0, frame_max: int = FRAME_MAX, expiry: int = -1) -> int:
    """Put the packet into the outbox the way a channel does."""
    first_byte = 0x30 | packet.qos << 1 | packet.retain | packet.dup << 3
    identifiers = b"".join(b"\x0b" + wire.write_varint(each) for each in packet.properties.subscription_identifiers)
    offset = -1
    if packet.properties.message_expiry_interval is not None:
        offset = 1 if packet.properties.payload_format_indicator is None else 3
    return outbox.push_publish(
        first_byte, packet.topic.encode(), packet.packet_id or 0, version == MQTT5, properties_of(packet), identifiers,
        packet.payload, alias, expiry, offset, frame_max,
    )  # fmt: skip


def taken(outbox: Outbox, version: int) -> Publish:
    """The one PUBLISH in the outbox."""
    ((first_byte, body),) = FrameSplitter(FRAME_MAX).feed(outbox.take())
    packet = decode(first_byte, body, version)
    assert isinstance(packet, Publish)
    return packet


@given(data=st.data(), version=st.sampled_from((MQTT31, MQTT311, MQTT5)))
def test_a_publish_is_written_as_the_codec_writes_it(data: st.DataObject, version: int) -> None:
    packet = data.draw(publishes(version).filter(lambda packet: bool(packet.topic)))
    packet.properties = replace(packet.properties, topic_alias=None)
    outbox = Outbox()

    size = push(outbox, packet, version)

    # Identifiers come last and not in the order of the table, so the frames are compared as what they say.
    assert outbox.size == size == len(encode(packet, version))
    assert taken(outbox, version) == packet
    if not packet.properties.subscription_identifiers:
        push(outbox, packet, version)
        assert outbox.take() == encode(packet, version)


@given(data=st.data(), alias=st.integers(1, 65535))
def test_an_alias_is_set_with_the_topic_and_used_in_its_place(data: st.DataObject, alias: int) -> None:
    packet = data.draw(publishes(MQTT5).filter(lambda packet: bool(packet.topic)))
    outbox = Outbox()

    push(outbox, packet, MQTT5, alias=alias)
    assert taken(outbox, MQTT5) == replace(packet, properties=replace(packet.properties, topic_alias=alias))

    push(outbox, packet, MQTT5, alias=-alias)
    assert taken(outbox, MQTT5) == replace(packet, topic="", properties=replace(packet.properties, topic_alias=alias))


@given(data=st.data(), left=st.integers(0, 2**32 - 1))
def test_the_expiry_is_replaced_by_the_remaining_seconds(data: st.DataObject, left: int) -> None:
    packet = data.draw(publishes(MQTT5).filter(lambda packet: bool(packet.topic)))
    packet.properties = replace(packet.properties, topic_alias=None, message_expiry_interval=1000)
    outbox = Outbox()

    push(outbox, packet, MQTT5, expiry=left)

    assert taken(outbox, MQTT5) == replace(packet, properties=replace(packet.properties, message_expiry_interval=left))


@pytest.mark.parametrize("payload_bytes", [0, 1, 113, 117, 118, 119, 120, 16_370, 16_375, 16_376, 16_380, 2_097_140, 2_097_150])
@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_the_remaining_length_is_right_around_each_size_limit(payload_bytes: int, version: int) -> None:
    properties = Properties(content_type="x" * 100) if version == MQTT5 else Properties()
    packet = Publish("topic", bytes(payload_bytes), 1, packet_id=7, properties=properties)
    outbox = Outbox()

    assert push(outbox, packet, version) == len(encode(packet, version))
    assert outbox.take() == encode(packet, version)


def test_a_publish_above_the_clients_maximum_is_not_written() -> None:
    packet = Publish("t", b"x" * 50)
    size = len(encode(packet, MQTT5))
    outbox = Outbox()
    outbox.push(b"before")

    assert push(outbox, packet, MQTT5, frame_max=size - 1) == 0
    assert outbox.size == 6
    assert push(outbox, packet, MQTT5, frame_max=size) == size
    assert outbox.take() == b"before" + encode(packet, MQTT5)


@pytest.mark.parametrize(
    ("first_byte", "kind"), [(0x40, Puback), (0x50, Pubrec), (0x62, Pubrel), (0x70, Pubcomp)]
)  # fmt: skip
@pytest.mark.parametrize("reason", [0, 0x92])
def test_an_acknowledgement_is_written_as_the_codec_writes_it(first_byte: int, kind: type[Pubrel], reason: int) -> None:
    if reason and kind not in (Pubrel, Pubcomp):
        reason = 0x87
    outbox = Outbox()

    outbox.push_ack(first_byte, 0xABCD, reason)

    assert outbox.take() == encode(kind(0xABCD, reason), MQTT5)


@given(frames=st.lists(st.binary(min_size=1, max_size=70_000), max_size=8))
def test_take_returns_all_bytes_in_order_and_empties_the_outbox(frames: list[bytes]) -> None:
    outbox = Outbox()
    for _ in range(2):
        for frame in frames:
            outbox.push(frame)

        assert outbox.size == sum(map(len, frames))
        assert outbox.take() == b"".join(frames)
        assert outbox.size == 0
        assert outbox.take() == b""


def test_a_frame_is_forwarded_unchanged() -> None:
    parser = Parser()
    data = b"\xc0\x00\x30\x05\x00\x01tok\xc0\x00"
    parser.load(data, len(data), 100)
    assert [parser.next(), parser.next()] == [FRAME, FRAME]
    outbox = Outbox()

    outbox.push_frame(parser)

    assert outbox.take() == b"\x30\x05\x00\x01tok"


def test_bytes_the_socket_does_not_take_stay_in_the_outbox_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = Outbox()
        sent = bytes(range(256)) * 16_384  # 4 MiB, more than the kernel takes
        outbox.push(sent)

        first = outbox.send_to(ours.fileno())

        assert 0 < first < len(sent)
        assert outbox.size == len(sent) - first
        assert outbox.send_to(ours.fileno()) == 0  # no more until the other side reads
        received = b""
        while outbox.size:
            received += theirs.recv(1 << 20)
            outbox.send_to(ours.fileno())
        while len(received) < len(sent):
            received += theirs.recv(1 << 20)
        assert received == sent


def test_the_outbox_keeps_all_bytes_if_the_socket_is_broken() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        outbox = Outbox()
        outbox.push(b"kept")

        assert outbox.send_to(ours.fileno()) == 0  # and SIGPIPE has not ended this process

        assert outbox.take() == b"kept"


@given(timestamp=st.integers(0, (1 << 63) - 1), value=st.binary(max_size=300))
def test_a_record_for_a_peer_has_its_timestamp_unless_it_is_0_and_its_length(timestamp: int, value: bytes) -> None:
    outbox = Outbox()

    outbox.push_record(timestamp, value)

    stamp = struct.pack(">Q", timestamp) if timestamp else b""
    assert outbox.take() == stamp + struct.pack(">I", len(value)) + value
