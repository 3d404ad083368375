"""Rows as PUBLISH frames: the same bytes that the codec makes, and rows that are no messages told apart."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import MQTT5, Publish
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink.rows import RowBatch, RowMaker

NO_TEXT = b"\xff"  # in a string of Spark, which may have any bytes
PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
TYPES = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "qos": pa.int32(),
    "retain": pa.bool_(),
    "payload_format": pa.int32(),
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
    "user_properties": PAIRS,
    "message_expiry_interval": pa.int64(),
    "expires_at": pa.timestamp("us", tz="UTC"),
    "key": pa.string(),
}


def take(usual_qos: int = 1, **columns: list[Any]) -> tuple[RowMaker, RowBatch]:
    maker = RowMaker({name: place for place, name in enumerate(columns)}, usual_qos)
    arrays = [to_array(values, TYPES[name]) for name, values in columns.items()]
    return maker, maker.take(pa.RecordBatch.from_arrays(arrays, names=list(columns)))


def to_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column as Spark gives it, in which a string may be any bytes."""
    if kind == pa.string():
        return pa.array([each.encode() if isinstance(each, str) else each for each in values], pa.binary()).view(kind)
    if kind == PAIRS:
        raw = pa.array(values, pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())])))
        pairs = raw.values
        names = [pairs.field(each).view(pa.string()) for each in ("name", "value")]
        struct = pa.StructArray.from_arrays(names, ["name", "value"], mask=pairs.is_null())
        return pa.ListArray.from_arrays(raw.offsets, struct, mask=raw.is_null())
    return pa.array(values, kind)


def packets(maker: RowMaker, batch: RowBatch, first_id: int = 1) -> list[Publish]:
    frames = FrameSplitter(1 << 28).feed(batch.encode(0, len(batch), first_id, maker.topics))
    return [decode(first, body, MQTT5) for first, body in frames]  # type: ignore[misc]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), max_size=20)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)


@st.composite
def messages(draw: st.DrawFn) -> Publish:
    qos = draw(st.integers(0, 2))
    properties = Properties(
        payload_format_indicator=draw(st.sampled_from([None, 0, 1])),
        message_expiry_interval=draw(st.none() | st.integers(0, 2**32 - 1)),
        content_type=draw(st.none() | texts),
        response_topic=draw(st.none() | topics),
        correlation_data=draw(st.none() | st.binary(max_size=20)),
        user_properties=tuple(draw(st.lists(st.tuples(texts, texts), max_size=3))),
    )
    payload = draw(st.binary(max_size=200) | st.integers(100, 20_000).map(bytes))
    return Publish(draw(topics), payload, qos, draw(st.booleans()), properties=properties)


@given(st.lists(messages(), min_size=1, max_size=8), st.integers(1, 65_535), st.booleans())
def test_frames_are_those_of_the_codec(wanted: list[Publish], first_id: int, is_plain: bool) -> None:
    columns: dict[str, Any] = {"topic": [each.topic for each in wanted], "payload": [each.payload for each in wanted]}
    if not is_plain:
        columns |= {
            "qos": [each.qos for each in wanted],
            "retain": [each.retain for each in wanted],
            "payload_format": [each.properties.payload_format_indicator for each in wanted],
            "message_expiry_interval": [each.properties.message_expiry_interval for each in wanted],
            "content_type": [each.properties.content_type for each in wanted],
            "response_topic": [each.properties.response_topic for each in wanted],
            "correlation_data": [each.properties.correlation_data for each in wanted],
            "user_properties": [[{"name": n, "value": v} for n, v in each.properties.user_properties] for each in wanted],
        }
    maker, batch = take(**columns)

    frames = batch.encode(0, len(batch), first_id, maker.topics)

    expected = b""
    for number, each in enumerate(wanted):
        packet_id = (first_id - 1 + number) % 65_535 + 1
        if is_plain:
            each.qos, each.retain, each.properties = 1, False, NO_PROPERTIES
        each.packet_id = packet_id if each.qos else None
        expected += encode(each, MQTT5)
    assert frames == expected
    assert not batch.problems


def test_a_slice_of_rows_is_encoded_with_its_own_packet_ids() -> None:
    maker, batch = take(topic=["a", "b", "c", "d"], payload=[b"1", b"2", b"3", b"4"])

    frames = FrameSplitter(1000).feed(batch.encode(1, 3, 65_535, maker.topics))

    got = [decode(first, body, MQTT5) for first, body in frames]
    assert [(each.topic, each.packet_id) for each in got] == [("b", 65_535), ("c", 1)]  # type: ignore[union-attr]


def test_a_null_payload_is_an_empty_one_and_other_nulls_are_defaults() -> None:
    maker, batch = take(2, topic=["a", "b"], payload=[None, b"x"], qos=[None, 0], retain=[None, True], content_type=[None, "t"])

    first, second = packets(maker, batch)

    assert (first.payload, first.qos, first.retain, first.properties) == (b"", 2, False, NO_PROPERTIES)
    assert (second.qos, second.retain, second.properties.content_type) == (0, True, "t")


def test_texts_are_sent_as_their_bytes() -> None:
    maker = RowMaker({"topic": 0, "payload": 1}, 1)
    for kind in (pa.string(), pa.large_string()):
        batch = maker.take(pa.record_batch({"topic": pa.array(["é/1"], kind), "payload": pa.array(["€"], kind)}))
        (packet,) = packets(maker, batch)
        assert (packet.topic, packet.payload) == ("é/1", "€".encode())
        assert batch.check(0) == zlib.crc32("é/1€".encode())


def test_an_expiry_time_becomes_the_remaining_interval() -> None:
    now = datetime.now(UTC)
    maker, batch = take(topic=["a", "b"], payload=[b"", b""], expires_at=[now + timedelta(seconds=100), now - timedelta(days=1)])

    first, second = packets(maker, batch)

    assert 95 <= (first.properties.message_expiry_interval or 0) <= 100
    assert second.properties.message_expiry_interval == 0


def test_user_properties_may_be_a_map() -> None:
    maker = RowMaker({"topic": 0, "payload": 1, "user_properties": 2}, 1)
    column = pa.array([[("a", "1"), ("b", "2")]], pa.map_(pa.string(), pa.string()))

    batch = maker.take(pa.record_batch({"topic": ["t"], "payload": [b""], "user_properties": column}))

    assert packets(maker, batch)[0].properties.user_properties == (("a", "1"), ("b", "2"))


def test_a_key_is_the_last_user_property_and_the_same_for_a_text_and_its_bytes() -> None:
    maker, batch = take(topic=["t"], payload=[b""], user_properties=[[{"name": "a", "value": "1"}]], key=["k1"])
    other = RowMaker({"topic": 0, "payload": 1, "key": 2}, 1)
    as_bytes = other.take(pa.record_batch({"topic": ["t", "t"], "payload": [b"", b""], "key": pa.array([b"k1", b"k2"])}))

    (one,) = packets(maker, batch)
    two, three = packets(other, as_bytes)

    assert one.properties.user_properties[0] == ("a", "1")
    assert one.properties.user_properties[1] == two.properties.user_properties[0]
    assert three.properties.user_properties != two.properties.user_properties


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"topic": ["a", None]}, Reason.TOPIC_NAME_INVALID),
        ({"topic": ["a", ""]}, Reason.TOPIC_NAME_INVALID),
        ({"topic": ["a", "x/#"]}, Reason.TOPIC_NAME_INVALID),
        ({"topic": ["a", "x\0"]}, Reason.TOPIC_NAME_INVALID),
        ({"topic": ["a", "x" * 65_536]}, Reason.TOPIC_NAME_INVALID),
        ({"qos": [1, 3]}, Reason.QOS_NOT_SUPPORTED),
        ({"message_expiry_interval": [1, -1]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"payload_format": [1, 2]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"content_type": ["t", "x" * 65_536]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"response_topic": ["t", "a/+"]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"user_properties": [[], [{"name": None, "value": "x"}]]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"user_properties": [[], [None]]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"expires_at": [None, 2**61]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"topic": ["a", NO_TEXT]}, Reason.TOPIC_NAME_INVALID),
        ({"content_type": ["t", NO_TEXT]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"response_topic": ["t", NO_TEXT]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"user_properties": [None, [{"name": NO_TEXT, "value": "x"}]]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"user_properties": [None, [{"name": "x", "value": NO_TEXT}]]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"key": ["k", None]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"key": ["k", None], "content_type": ["t", "t"]}, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_an_invalid_row_is_found_and_the_others_can_be_sent(columns: dict[str, Any], reason: int) -> None:
    whole: dict[str, Any] = {"topic": ["a", "b"], "payload": [b"1", b"2"], **columns}
    maker, batch = take(**whole)

    assert {row: problem.reason for row, problem in batch.problems.items()} == {1: reason}
    assert batch.problems[1].detail
    frames = FrameSplitter(1 << 28).feed(batch.encode(0, 1, 1, maker.topics))
    assert len(frames) == 1


def test_texts_that_are_sent_as_bytes_need_not_be_texts() -> None:
    maker, batch = take(topic=["t"], payload=[b""], correlation_data=[NO_TEXT], key=[NO_TEXT])
    as_bytes = RowMaker({"topic": 0, "payload": 1, "key": 2}, 1)
    key = as_bytes.take(pa.record_batch({"topic": ["t"], "payload": [b""], "key": [NO_TEXT]}))

    (packet,) = packets(maker, batch)

    assert packet.properties.correlation_data == NO_TEXT
    assert packet.properties.user_properties == packets(as_bytes, key)[0].properties.user_properties
