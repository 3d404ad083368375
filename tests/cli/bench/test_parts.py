"""The parts of ``bench`` that make it fast, held equal to the codec and to plain arithmetic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ProtocolViolation
from braidmq.cli.bench.frames import HEADER, MAGIC, PublishBlock, packet_id_of, payload_with_header
from braidmq.cli.bench.histogram import Histogram
from braidmq.cli.bench.runs import find_runs
from braidmq.cli.bench.tally import Sequences, Tally
from braidmq.mqtt.codec import FrameSplitter, encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback

VERSIONS = st.sampled_from([MQTT311, MQTT5])
TOPICS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0+#", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200
)


def header(publisher: int, sequence: int, sent_ns: int, size: int) -> bytes:
    return HEADER.pack(MAGIC, publisher, sequence, sent_ns).ljust(size, b"x")


# -- frames that go out ----------------------------------------------------------------------------------------------------


@given(
    version=VERSIONS,
    topic=TOPICS,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    size=st.integers(HEADER.size, 300),
    frames_max=st.integers(1, 300),
    takes=st.lists(st.tuples(st.integers(1, 600), st.integers(0, 2**63)), min_size=1, max_size=4),
    first=st.integers(0, 2**40),
)
def test_a_block_writes_the_same_frames_as_the_codec(
    version: int, topic: str, qos: int, retain: bool, size: int, frames_max: int, takes: list[tuple[int, int]], first: int
) -> None:
    block = PublishBlock(Publish(topic, payload_with_header(9, size), qos, retain), version, frames_max)

    for count, now_ns in takes:
        expected = [
            Publish(topic, header(9, sequence, now_ns, size), qos, retain, packet_id=packet_id_of(sequence) if qos else None)
            for sequence in range(first, first + count)
        ]
        assert block.take(first, count, now_ns) == b"".join(encode(message, version) for message in expected)
        first += count


def test_a_payload_without_a_header_is_left_alone() -> None:
    block = PublishBlock(Publish("t", b"just this and nothing more than this", 1), MQTT311)

    frames = FrameSplitter(1000).feed(block.take(510, 5, 123))

    assert [body[3:] for _, body in frames] == [
        packet_id_of(sequence).to_bytes(2, "big") + b"just this and nothing more than this" for sequence in range(510, 515)
    ]


@given(st.integers(0, 2**62))
def test_a_packet_id_is_valid_and_not_used_again_within_a_window(sequence: int) -> None:
    assert 1 <= packet_id_of(sequence) <= 65_535
    assert packet_id_of(sequence) != packet_id_of(sequence + 65_279)


# -- frames that come in ---------------------------------------------------------------------------------------------------

PACKETS = st.one_of(
    st.builds(
        lambda topic, payload, qos: Publish(topic, payload, qos, packet_id=5 if qos else None),
        st.sampled_from(["a", "b", "a/longer/topic"]),
        st.binary(max_size=200),
        st.integers(0, 2),
    ),
    st.builds(
        lambda kind, packet_id: kind(packet_id), st.sampled_from([Puback, Pubrec, Pubrel, Pubcomp]), st.integers(1, 65_535)
    ),
    st.just(Pingresp()),
    st.just(Suback(1, [0, 1])),
)


@given(
    version=VERSIONS,
    groups=st.lists(st.tuples(PACKETS, st.integers(1, 40)), max_size=6),
    cut=st.integers(0, 50),
)
def test_runs_hold_the_same_frames_as_the_splitter_finds(version: int, groups: list[tuple[object, int]], cut: int) -> None:
    data = b"".join(encode(packet, version) * count for packet, count in groups)  # type: ignore[arg-type]
    data = data[: max(0, len(data) - cut)]

    runs, used = find_runs(data, version)

    found = [(data[at], data[at + run.body_at : at + run.stride]) for run in runs for at in range(run.at, run.end, run.stride)]
    assert found == FrameSplitter(1 << 20).feed(data)
    assert used == sum(run.stride * run.frames for run in runs)


def test_equal_frames_are_one_run_with_their_payload_and_packet_ids() -> None:
    frames = [encode(Publish("topic", bytes([number]) * 9, 1, packet_id=300 + number), MQTT5) for number in range(200)]

    runs, used = find_runs(b"".join(frames) + frames[0][:7], MQTT5)

    (run,) = runs
    data = b"".join(frames)
    assert (run.frames, used) == (200, len(data))
    assert run.lane(data, run.payload_at) == bytes(range(200))
    assert run.lane(data, run.packet_id_at + 1) == bytes((300 + number) & 0xFF for number in range(200))


@pytest.mark.parametrize("data", [b"\x30\xff\xff\xff\xff\xff", b"\x30\x04\x00\x09abcdef"])
def test_invalid_frames_are_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        find_runs(data, MQTT311)


# -- loss, duplicates and latency ------------------------------------------------------------------------------------------


def take(
    sequences: Sequences, messages: list[tuple[int, int]], *, sent_ns: int = 1000, now_ns: int = 51_000
) -> list[tuple[int, int]]:
    """Let a subscriber receive (publisher, sequence) pairs in one buffer."""
    data = b"".join(encode(Publish("t", header(publisher, sequence, sent_ns, 40)), MQTT311) for publisher, sequence in messages)
    runs, _ = find_runs(data, MQTT311)
    return [each for run in runs for each in sequences.take(data, run, now_ns)]


def test_messages_in_order_count_as_neither_lost_nor_duplicate() -> None:
    tally = Tally()
    sequences = Sequences(tally, starts_at_zero=True)

    assert take(sequences, [(1, number) for number in range(100)]) == [(1, 100)]
    assert take(sequences, [(1, 100), (2, 0), (1, 101)]) == [(1, 2), (2, 1)]
    assert (tally.received, tally.lost, tally.duplicates) == (103, 0, 0)


def test_a_gap_is_counted_as_lost_and_a_repeat_as_duplicate() -> None:
    tally = Tally()
    sequences = Sequences(tally, starts_at_zero=True)

    take(sequences, [(1, 0), (1, 1), (1, 5), (1, 6), (1, 5)])

    assert (tally.received, tally.lost, tally.duplicates) == (5, 3, 1)


def test_messages_missing_at_the_start_count_only_if_the_start_is_known() -> None:
    known, unknown = Tally(), Tally()

    take(Sequences(known, starts_at_zero=True), [(1, 4)])
    take(Sequences(unknown), [(1, 4)])

    assert (known.lost, unknown.lost) == (4, 0)


def test_foreign_payloads_are_counted_and_not_understood() -> None:
    tally = Tally()
    data = encode(Publish("t", b"y" * 40), MQTT311) * 3
    (run,) = find_runs(data, MQTT311)[0]

    assert Sequences(tally).take(data, run, 0) == []
    assert (tally.received, tally.latency.count) == (3, 0)


def test_latency_is_the_time_since_sending() -> None:
    tally = Tally()

    take(Sequences(tally), [(1, 0), (1, 1)], sent_ns=1_000_000, now_ns=3_000_000)

    assert tally.latency.count == 2
    assert (tally.latency.min_ns, tally.latency.max_ns) == (2_000_000, 2_000_000)


@given(st.lists(st.integers(32, 10**11), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_right_to_about_three_percent(durations: list[int], share: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)

    ordered = sorted(durations)
    exact = ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)]

    assert exact <= histogram.quantile_ns(share) <= exact * 1.032 + 1


@given(st.lists(st.integers(-5, 10**11), max_size=100))
def test_every_duration_is_in_one_octave(durations: list[int]) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)

    octaves = histogram.by_octave()

    assert sum(count for _, _, count in octaves) == len(durations)
    assert all(first[1] == second[0] for first, second in itertools.pairwise(octaves))
