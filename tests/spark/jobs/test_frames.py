"""What jobs make of frames: patterns, event times, typed columns, quarantine, windows. On frames that are made here."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import cbor2
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.mqtt.topics import matches
from braidmq.spark.jobs.archive import with_partitions
from braidmq.spark.jobs.framework.expressions import device_of, event_time, levels_of, matches_filter, pattern_of
from braidmq.spark.jobs.framework.patterns import make_patterns
from braidmq.spark.jobs.framework.payloads import decode, parse_schema, quarantined, schema_of, typed
from braidmq.spark.jobs.learn.command import count_topics
from braidmq.spark.jobs.replay.command import ordered
from braidmq.spark.jobs.rollup import SLOTS, Windows, roll_up
from braidmq.spark.jobs.sparkplug.frames import metrics
from braidmq.spark.jobs.sparkplug.payload import COLUMNS
from tests.spark.jobs.sparkplug.payloads import data, metric, number

AT = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)
SCHEMA = (
    "topic string, payload binary, qos int, retain boolean, client_id string, publish_timestamp timestamp, "
    "store_timestamp timestamp, payload_format int, content_type string, response_topic string, correlation_data binary, "
    "user_properties array<struct<name: string, value: string>>, expires_at timestamp, shard int, position long"
)


def frame_of(spark: SparkSession, *rows: tuple[str, bytes] | tuple[str, bytes, datetime]) -> DataFrame:
    """History with these topics, payloads and times."""
    records = []
    for place, (topic, payload, *when) in enumerate(rows):
        stored = when[0] if when else AT + timedelta(seconds=place)
        rest = (None, None, None, None, None, None, place % 2, place)
        records.append((topic, bytearray(payload), 1, False, "c", None, stored, *rest))
    return spark.createDataFrame(records, SCHEMA)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_expressions_agree_with_the_rules_of_mqtt(spark: SparkSession) -> None:
    topics = ["a", "a/b", "a/b/c", "a//c", "/", "b/x/temp", "$SYS/x", "$SYS", "a/b/c/d", "ü/b"]
    patterns = make_patterns(["a/+", "a/b/#", "+/x/temp", "+/+/+", "#", "$SYS/+", "a/b", "/+", "ü/#"])
    filters = ["a/#", "+", "+/b", "$SYS/#"]
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic string")
    topic = F.col("topic")

    second = device_of(topic, patterns, 2).alias("second")
    matched = [matches_filter(topic, [each]).alias(each) for each in filters]
    found = rows_of(frame.select("topic", pattern_of(levels_of(topic), patterns), device_of(topic, patterns), second, *matched))

    assert {row["topic"]: row["pattern"] for row in found} == {topic: patterns.of(topic) for topic in topics}
    assert all(row[each] == matches(each, row["topic"]) for row in found for each in filters)
    devices = {row["topic"]: row["device"] for row in found}
    assert (devices["a/b"], devices["b/x/temp"], devices["a//c"], devices["$SYS"]) == ("", "b", "a//c", "$SYS")
    assert {row["topic"]: row["second"] for row in found}["a/b/c"] == "b"


def test_event_times_are_read_as_they_are_written_and_null_elsewhere(spark: SparkSession) -> None:
    frame = frame_of(spark, ("t", b'{"ms": 1700000000123, "s": 1700000000.5, "iso": "2024-03-01T12:00:00.25Z"}'), ("t", b"\xff"))

    good, bad = rows_of(
        frame.select(*(event_time(each).alias(each) for each in ("$.ms:ms", "$.s:s", "$.iso", "$.none:ms", "publish_timestamp")))
    )

    # Spark gives times of the session without their zone, which is UTC.
    assert good["$.ms:ms"] == datetime.fromtimestamp(1700000000.123, UTC).replace(tzinfo=None)
    assert good["$.s:s"] == datetime.fromtimestamp(1700000000.5, UTC).replace(tzinfo=None)
    assert good["$.iso"] == datetime(2024, 3, 1, 12, 0, 0, 250_000)
    assert good["$.none:ms"] is None
    assert good["publish_timestamp"] == AT.replace(tzinfo=None)
    assert (bad["$.ms:ms"], bad["$.iso"]) == (None, None)
    for wrong in ("ts", "$.ts:minutes", "store"):
        with pytest.raises(UsageError):
            event_time(wrong)


def test_a_day_of_the_lake_is_a_day_of_utc(spark: SparkSession) -> None:
    late = datetime(2024, 3, 1, 23, 59, 59, tzinfo=UTC)
    frame = frame_of(spark, ("p/1/temp", b"", late), ("x", b"", late + timedelta(seconds=1)))

    found = rows_of(with_partitions(frame, make_patterns(["p/+/temp"])))

    assert [(row["date"], row["pattern"]) for row in found] == [(date(2024, 3, 1), "p/+/temp"), (date(2024, 3, 2), "#")]


def test_json_becomes_columns_and_everything_else_goes_to_quarantine_with_a_reason(spark: SparkSession) -> None:
    payloads = {
        b'{"v": 1.5, "u": "C", "topic": "mine"}': None,
        b' {"other": 1} ': None,
        b'{"v": "warm"}': "a field does not fit the schema",
        b'{"v":': "not JSON",
        b'{"v": 1} and more': "not JSON",
        b'{"v": 1]}': "not JSON",
        b"\xff\xfe": "not UTF-8",
        b"  ": "empty",
        b"[1, 2]": "not a JSON object",
        b"21.5": "not a JSON object",
    }
    frame = frame_of(spark, *(("t", payload) for payload in payloads))

    decoded = decode(frame, "json", parse_schema("v double, u string, topic string")).persist()
    good, bad = rows_of(typed(decoded)), rows_of(quarantined(decoded))
    decoded.unpersist()

    assert [(row["v"], row["u"], row["payload_topic"], row["topic"]) for row in good] == [
        (1.5, "C", "mine", "t"),
        (None, None, None, "t"),
    ]
    assert {bytes(row["payload"]): row["reason"] for row in bad} == {each: why for each, why in payloads.items() if why}
    assert {row["date"] for row in [*good, *bad]} == {date(2024, 3, 1)}


def test_a_schema_is_found_in_what_decodes(spark: SparkSession) -> None:
    frame = frame_of(spark, ("t", b'{"v": 1}'), ("t", b'{"v": 2.5, "in": {"x": true}}'), ("t", b"junk"))

    assert schema_of(frame, "json").simpleString() == "struct<in:struct<x:boolean>,v:double>"
    with pytest.raises(UsageError, match="--schema"):
        schema_of(frame_of(spark, ("t", b"junk")), "json")
    with pytest.raises(UsageError, match="cannot be read"):
        parse_schema("not a schema, at all")


def test_cbor_becomes_the_same_columns(spark: SparkSession) -> None:
    value = {"v": 1.5, "when": AT, "raw": b"\0\1", "list": [1, None], 7: "seven"}
    junk = [b"21.5", b"\x9f", cbor2.dumps([1]), b"\x81" * 3000, b""]
    frame = frame_of(spark, ("t", cbor2.dumps(value)), *(("t", each) for each in junk))

    schema = parse_schema("v double, when timestamp, raw string, list array<int>, `7` string")
    decoded = decode(frame, "cbor", schema).persist()
    [good], bad = rows_of(typed(decoded)), rows_of(quarantined(decoded))
    decoded.unpersist()

    assert (good["v"], good["when"], good["raw"]) == (1.5, AT.replace(tzinfo=None), "AAE=")
    assert (good["list"], good["7"]) == ([1, None], "seven")
    assert [bytes(row["payload"]) for row in bad] == junk
    assert bad[0]["reason"] == "not CBOR: 3 bytes are left over"
    assert bad[2]["reason"] == "not a CBOR map"


def test_sparkplug_metrics_are_rows_with_the_parts_of_their_topic(spark: SparkSession) -> None:
    payload = (
        number(1, 1_700_000_000_000) + metric(b"temp", 10, b"\x69" + bytes(6) + b"\xf0\x3f") + metric(b"on", 11, number(14, 1))
    )
    frame = frame_of(
        spark,
        ("spBv1.0/plant/DDATA/edge1/dev7", payload),
        ("spBv1.0/plant/NDEATH/edge1", number(1, 5) + data(5, b"")),
        ("spBv1.0/STATE/host", b'{"online": true}'),
        ("spBv1.0/plant/DDATA/edge1/dev7", b"junk"),
    )

    decoded = decode(frame, "sparkplug", parse_schema(COLUMNS)).persist()
    good, bad = rows_of(metrics(decoded)), rows_of(quarantined(decoded))
    decoded.unpersist()

    assert [(row["message_type"], row["edge_node"], row["device"], row["metric"], row["datatype"]) for row in good] == [
        ("DDATA", "edge1", "dev7", "temp", "Double"),
        ("DDATA", "edge1", "dev7", "on", "Boolean"),
        ("NDEATH", "edge1", None, None, None),
    ]
    assert (good[0]["double_value"], good[1]["boolean_value"]) == (1.0, True)
    assert good[0]["payload_timestamp"] == datetime.fromtimestamp(1_700_000_000, UTC).replace(tzinfo=None)
    assert [row["reason"].partition(":")[0] for row in bad] == ["not a topic of Sparkplug B messages", "not Sparkplug B"]


def test_windows_have_the_figures_of_their_numbers_and_of_the_messages(spark: SparkSession) -> None:
    def at(second: float, **fields: Any) -> tuple[str, bytes]:
        return "plant/d1/env", json.dumps({"ts": (AT.timestamp() + second) * 1000, **fields}).encode()

    frame = frame_of(
        spark,
        *(at(second, temp=second, name="x") for second in (0, 1, 2, 3, 30)),
        at(61, temp=100),
        ("plant/d2/env", b"7.5", AT),
        ("plant/d2/env", b"\xff", AT),
    )

    found = rows_of(roll_up(frame, make_patterns(["plant/+/env"]), Windows(event_time="$.ts:ms", window_s=60)))

    rows = {(row["device"], row["field"], row["window_start"].minute): row for row in found}
    assert set(rows) == {("d1", "", 0), ("d1", "temp", 0), ("d1", "", 1), ("d1", "temp", 1), ("d2", "", 0), ("d2", "value", 0)}
    temp = rows["d1", "temp", 0]
    assert (temp["count"], temp["min"], temp["max"], temp["avg"]) == (5, 0.0, 30.0, 7.2)
    assert (temp["p50"], temp["p95"], temp["bytes"], temp["largest_silence_s"]) == (2.0, 30.0, None, None)
    messages = rows["d1", "", 0]
    assert messages["count"] == 5
    assert messages["bytes"] == sum(len(at(second, temp=second, name="x")[1]) for second in (0, 1, 2, 3, 30))
    # The last message was at 30 s, so that half of the window is silent, but for the slot of that message.
    assert messages["largest_silence_s"] == pytest.approx(30.0 - 60 / SLOTS)
    assert (rows["d2", "", 0]["count"], rows["d2", "value", 0]["max"]) == (2, 7.5)
    assert {row["pattern"] for row in found} == {"plant/+/env"}


def test_chosen_fields_may_be_deep_and_devices_may_be_a_level(spark: SparkSession) -> None:
    frame = frame_of(spark, ("plant/d1/env", b'{"motor": {"speed": 5}, "temp": 1}'), ("plant/d1/env", b'{"temp": "2"}'))
    windows = Windows(fields=("motor.speed", "temp"), device_level=1)

    found = rows_of(roll_up(frame, make_patterns([]), windows))

    assert {(row["device"], row["field"], row["count"]) for row in found} == {
        ("plant", "", 2),
        ("plant", "motor.speed", 1),
        ("plant", "temp", 2),
    }
    with pytest.raises(UsageError):
        roll_up(frame, make_patterns([]), Windows(window_s=0.5))


def test_topics_are_counted_by_shard_and_an_even_share_stands_for_too_many(spark: SparkSession) -> None:
    frame = frame_of(spark, *((f"d/{number % 50}", b"xy") for number in range(200)))

    census = count_topics(frame)
    some = count_topics(frame, topics_max=10)

    # Even numbers are in one shard, odd ones in the other.
    assert sorted((each.topic, each.records, each.payload_bytes, each.shard) for each in census.topics) == sorted(
        (f"d/{number}", 4, 8, number % 2) for number in range(50)
    )
    assert (census.records, census.one_of, census.seconds) == (200, 1, 199.0)
    assert some.one_of == 5
    assert 0 < len(some.topics) < 50


def test_a_replay_is_in_order_of_time_over_all_shards(spark: SparkSession) -> None:
    frame = frame_of(
        spark,
        ("a/1", b"3", AT + timedelta(seconds=2)),
        ("a/2", b"1", AT),
        ("b", b"x", AT),
        ("a/1", b"2", AT + timedelta(seconds=1)),
    )

    found = rows_of(ordered(frame, ["a/+"], drops_retain=True))

    assert [bytes(row["payload"]) for row in found] == [b"1", b"2", b"3"]
    assert {row["retain"] for row in found} == {False}
