"""The codec against the case tables, and the lists of the specification against the codec's own tables."""

from __future__ import annotations

import pytest

from braidmq.base.errors import ProtocolViolation, UnsupportedProtocol
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import Connect
from tests.mqtt.cases import ACCEPTED, REFUSED, Accepted, Refused


def _each_version(cases: list[Accepted] | list[Refused]) -> list[object]:
    return [pytest.param(case, version, id=f"{case.name} [{version}]") for case in cases for version in case.versions]


@pytest.mark.parametrize(("case", "version"), _each_version(ACCEPTED))
def test_decode_reads_the_packet_that_the_bytes_mean(case: Accepted, version: int) -> None:
    assert decode(case.first_byte, case.body, version) == case.packet


@pytest.mark.parametrize(("case", "version"), _each_version([case for case in ACCEPTED if case.canonical]))
def test_encode_writes_the_bytes_of_the_specification(case: Accepted, version: int) -> None:
    assert encode(case.packet, version) == case.frame


@pytest.mark.parametrize(("case", "version"), _each_version(ACCEPTED))
def test_encode_keeps_the_meaning_of_every_accepted_packet(case: Accepted, version: int) -> None:
    ((first_byte, body),) = FrameSplitter(1000).feed(encode(case.packet, version))

    assert decode(first_byte, body, version) == case.packet


@pytest.mark.parametrize(("case", "version"), _each_version(REFUSED))
def test_decode_refuses_with_the_right_reason(case: Refused, version: int) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        decode(case.first_byte, case.body, version)

    assert refused.value.reason == case.reason


@pytest.mark.parametrize(("case", "version"), _each_version(ACCEPTED))
def test_every_cut_of_a_packet_is_refused_or_means_something_else(case: Accepted, version: int) -> None:
    for size in range(len(case.body)):
        try:
            packet = decode(case.first_byte, case.body[:size], version)
        except ProtocolViolation:
            continue
        assert packet != case.packet or not case.canonical


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_is_encoded_with_its_own_version_not_the_callers(version: int) -> None:
    packet = decode(0x10, b"\0\x04MQTT\x04\x02\0\x3c\0\x01c", version)

    assert isinstance(packet, Connect)
    assert packet.version == 4


def test_an_unsupported_protocol_tells_the_level_that_was_asked_for() -> None:
    with pytest.raises(UnsupportedProtocol) as refused:
        decode(0x10, b"\0\x04MQTT\x86\x02\0\0\0\x01c", 4)

    assert (refused.value.reason, refused.value.level) == (0x84, 0x86)


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in ACCEPTED] + [case.name for case in REFUSED]

    assert len(names) == len(set(names))
