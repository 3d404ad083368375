"""Log classes: records with a retention of their own, in the same order and at the same positions as all others."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.base.config.settings import HistoryClassSettings, HistorySettings
from braidmq.base.errors import ConfigError, Corruption, UsageError
from braidmq.base.units import Seconds
from braidmq.lane.records.records import Record
from braidmq.mqtt.topics import matches
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.reading.positions import At, Latest
from braidmq.storage.shard.classes import ClassRow, ClassTable, decode_class, encode_class, merge_classes
from braidmq.storage.shard.clock import ShardClock
from tests.storage.log import NOON, Hands
from tests.storage.message_log import Stage, clients_of

SECOND = 1_000_000
SMALL = LogOptions(limits=EpochLimits(count_max=5), tail_bytes_max=2000)
SINGLE = LogOptions(limits=EpochLimits(count_max=1), tail_bytes_max=0)


def log_class(*topics: str, retention: float = 1e6, retention_bytes: str = "") -> HistoryClassSettings:
    return HistoryClassSettings(topics=topics, retention=Seconds(retention), retention_bytes=retention_bytes)


AUDIT = {"audit": log_class("audit/#", "+/audit")}
TWO = {"audit": log_class("audit/#"), "raw": log_class("raw/+/x")}


class AgedStage(Stage):
    """A log with classes whose time the test moves."""

    def __init__(self, path: Path, classes: dict[str, HistoryClassSettings], retention: float = 1e6, shards: int = 1) -> None:
        self.hands = Hands()
        clock = ShardClock(lambda: self.hands.boot, lambda: self.hands.wall)
        super().__init__(path, shards=shards, options=SINGLE, clock=clock, classes=classes, retention=Seconds(retention))

    def publish_each_second(self, *topics: str) -> None:
        for topic in topics:
            self.publish("a", topic, topic.encode())
            self.hands.move(SECOND)


# What may be configured


@pytest.mark.parametrize(("one", "other"), [("a/#", "a/b"), ("+/b", "a/+"), ("#", "x"), ("a", "a"), ("a/#", "a")])
def test_classes_with_overlapping_filters_are_rejected_with_a_clear_message(tmp_path: Path, one: str, other: str) -> None:
    overlapping = HistorySettings(classes={"long": log_class(one), "short": log_class("elsewhere", other)})

    with pytest.raises(ConfigError, match=r"history\.classes\.short\.topics: .* of the class 'long' match the same topics"):
        DurableLog.open(tmp_path, overlapping)

    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a+", "", "$share/g/a"])
def test_an_invalid_filter_is_rejected_with_its_key(tmp_path: Path, topic_filter: str) -> None:
    with pytest.raises(ConfigError, match=r"history\.classes\.c\.topics"):
        DurableLog.open(tmp_path, HistorySettings(classes={"c": log_class(topic_filter)}))


def test_filters_of_one_class_may_overlap(tmp_path: Path) -> None:
    with Stage(tmp_path, classes={"c": log_class("a/#", "a/b")}) as stage:
        stage.publish("p", "a/b", b"1")

        assert stage.payloads("#") == [b"1"]


def test_each_class_has_a_family_in_each_shard(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=2, classes=TWO):
        pass

    with Store.open(tmp_path / "log", ()) as store:
        assert sorted(store.families) == [
            "class-audit-00",
            "class-audit-01",
            "class-raw-00",
            "class-raw-01",
            "default",
            "shard-00",
            "shard-01",
        ]


# One order


def test_records_of_a_class_lie_in_its_family(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, classes=AUDIT) as stage:
        for topic in ("audit/1", "x/1", "y/audit", "x/2"):
            stage.publish("a", topic, topic.encode())
        stats = stage.log.stats()
        assert stats.records == 4
        assert 0 < stats.classes["audit"] < stats.size_bytes

    with Store.open(tmp_path / "log", ()) as store:
        values = {
            family: sorted(Record(0, value).topic for _, value in store.items(family, b"\0", b"\1"))
            for family in ("shard-00", "class-audit-00")
        }
    assert values == {"shard-00": [b"x/1", b"x/2"], "class-audit-00": [b"audit/1", b"y/audit"]}


def test_one_flush_keeps_the_order_of_the_appends_over_all_classes(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, classes=TWO) as stage:
        topics = ["x", "audit/1", "raw/1/x", "raw/1/x", "x", "audit/2", "x"] * 20
        for number, topic in enumerate(topics):
            stage.append("a", topic, b"%d" % number)
        stage.settle()

        stamps = [timestamp for _, _, timestamp in stage.acks]
        assert stamps == sorted(set(stamps))
        assert stage.payloads("#") == [b"%d" % number for number in range(len(topics))]
        assert stage.log.watermarks == {0: stamps[-1]}


def test_followers_get_the_records_of_all_classes_in_one_list_in_order(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, classes=TWO) as stage:
        seen: list[list[bytes]] = []
        stage.log.follow(0, lambda shard, records: seen.append([record.topic for record in records]))
        for topic in ("audit/1", "x", "raw/1/x", "audit/2"):
            stage.append("a", topic, b"")
        stage.settle()

        assert seen == [[b"audit/1", b"x", b"raw/1/x", b"audit/2"]]


TOPICS = st.sampled_from(["x", "x/1", "audit/1", "audit/2", "raw/1/x", "raw/2/x", "raw/1/y", "y/audit"])
FILTERS = st.sampled_from(["#", "audit/#", "raw/+/x", "raw/#", "+/1", "x", "+/+/x", "nothing/here"])
STEPS: st.SearchStrategy[list[tuple[str, Any, list[str]]]] = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3), st.lists(TOPICS, min_size=1, max_size=8)),
        st.tuples(st.just("reopen"), st.sampled_from([{}, AUDIT, TWO, {"raw": log_class("x/#")}]), st.just([])),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    filters=st.lists(FILTERS, min_size=1, max_size=2, unique=True),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=6),
)
def test_a_replay_over_any_classes_equals_that_of_one_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object, list[str]]], filters: list[str], counts: list[int]
) -> None:
    place = tmp_path_factory.mktemp("log")
    oracle: list[tuple[int, int, bytes]] = []  # timestamp, shard, topic
    stage = Stage(place, shards=2, options=SMALL, classes=AUDIT)
    try:
        for kind, argument, topics in steps:
            if kind == "reopen":
                stage.log.close()
                stage = Stage(place, shards=2, options=SMALL, classes=argument)
                continue
            stage.acks.clear()
            for topic in topics:
                stage.append(f"client-{argument}", topic, topic.encode())
            stage.settle()
            oracle += [(timestamp, shard, payload) for payload, shard, timestamp in stage.acks]
        expected = sorted(each for each in oracle if any(matches(wanted, each[2].decode()) for wanted in filters))

        found: list[tuple[int, int, bytes]] = []
        positions: dict[int, int] | int = 0
        for count in [*counts, 1000, 1000]:
            replay = stage.log.replay(filters, positions)
            got: list[tuple[int, Record]] = []
            while not got and not replay.is_caught_up:
                got = replay.next(count)
            found += [(record.timestamp, shard, record.topic) for shard, record in got]
            positions = replay.positions()

        assert found == expected
    finally:
        stage.log.close()


@pytest.mark.parametrize("classes", [{}, TWO])
def test_positions_say_at_every_record_exactly_what_was_handed_out(
    tmp_path: Path, classes: dict[str, HistoryClassSettings]
) -> None:
    # The clock hardly moves, so that shards give the same timestamps; more records than are read ahead in one go.
    hands = Hands()
    clock = ShardClock(lambda: hands.boot, lambda: hands.wall)
    with Stage(tmp_path, shards=2, options=LogOptions(tail_bytes_max=0), clock=clock, classes=classes) as stage:
        (even,), (odd,) = clients_of(stage.log, 0), clients_of(stage.log, 1)
        for client, count in ((even, 1600), (odd, 600)):
            for number in range(count):
                stage.append(client, ("x", "audit/1", "raw/1/x")[number % 3], b"")
            stage.settle()
            hands.move(300)  # what is read ahead of the second shard is then later than that of the first
        stamps: dict[int, list[int]] = {0: [], 1: []}
        for _, shard, timestamp in stage.acks:
            stamps[shard].append(timestamp)

        replay = stage.log.replay(["#"], 0)
        handed = {0: 0, 1: 0}
        while not replay.is_caught_up:
            for shard, _ in replay.next(1):
                handed[shard] += 1
            positions = replay.positions()
            assert {shard: bisect_right(each, positions[shard]) for shard, each in stamps.items()} == handed

        assert handed == {0: 1600, 1: 600}


def test_timestamps_of_one_flush_rise_over_all_classes_although_the_clock_stands_still(tmp_path: Path) -> None:
    with AgedStage(tmp_path, TWO) as stage:
        for number in range(50):
            stage.append("a", ("x", "x", "audit/1", "raw/1/x")[number % 4], b"%d" % number)
        stage.settle()

        assert [timestamp for _, _, timestamp in stage.acks] == [NOON + number for number in range(50)]


def test_the_latest_position_is_behind_the_records_of_all_classes(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, classes=AUDIT) as stage:
        stage.publish("a", "x", b"")
        stage.publish("a", "audit/1", b"")

        assert stage.log.watermarks == {0: stage.acks[-1][2]}
        assert stage.payloads("#", start=stage.log.positions_at(Latest())) == []
    with Stage(tmp_path, shards=1, classes=AUDIT) as again:
        assert again.log.watermarks == {0: stage.acks[-1][2]}


# Retention


def test_each_class_is_kept_as_long_as_it_says(tmp_path: Path) -> None:
    classes = {"long": log_class("long/#", retention=100), "short": log_class("short/#", retention=2.5)}
    with AgedStage(tmp_path, classes, retention=4.5) as stage:
        stage.publish_each_second("long/0", "short/1", "x/2", "long/3", "short/4", "x/5", "short/6", "x/7")

        stage.log.retain()

        assert stage.payloads("#") == [b"long/0", b"long/3", b"x/5", b"short/6", b"x/7"]


def test_the_bytes_of_a_class_do_not_count_for_others(tmp_path: Path) -> None:
    with AgedStage(tmp_path, {"short": log_class("short/#", retention_bytes="150")}) as stage:
        stage.publish_each_second("x/0", *(f"short/{number}" for number in range(1, 9)), "x/9")

        stage.log.retain()

        kept = stage.payloads("#")
        assert (kept[0], kept[-1]) == (b"x/0", b"x/9")
        assert b"short/1" not in kept
        assert b"short/8" in kept


def test_a_gap_is_reported_only_to_readers_whose_filters_match_it(tmp_path: Path) -> None:
    with AgedStage(tmp_path, {"short": log_class("short/#", retention=2.5)}) as stage:
        stage.publish_each_second("short/0", "x/1", "short/2", "x/3", "short/4", "x/5")
        stage.log.retain()
        start = stage.log.positions_at(At(NOON))

        assert stage.log.gaps(start, ["x/+"]) == {}
        assert list(stage.log.gaps(start, ["short/#"])) == [0]
        replay = stage.log.replay(["x/#", "y"], start)
        while not replay.is_caught_up:
            replay.next(10)
        assert replay.take_gaps() == {}


def test_a_removed_class_stays_readable_until_retention_has_emptied_it(tmp_path: Path) -> None:
    with AgedStage(tmp_path, {"short": log_class("short/#", retention=10)}) as stage:
        stage.publish_each_second("short/0", "x/1", "short/2")
    with AgedStage(tmp_path, {}) as stage:
        stage.hands.move(5 * SECOND)
        stage.publish_each_second("short/3")
        stage.log.retain()
        assert stage.payloads("#") == [b"short/0", b"x/1", b"short/2", b"short/3"]

        stage.hands.move(20 * SECOND)
        stage.log.retain()

        # What came after the class was taken away is kept as long as the rest.
        assert stage.payloads("#") == [b"x/1", b"short/3"]


def test_a_new_class_in_an_old_log_takes_new_records(tmp_path: Path) -> None:
    with AgedStage(tmp_path, {}) as stage:
        stage.publish_each_second("short/0", "x/1")
    with AgedStage(tmp_path, {"short": log_class("short/#", retention=1)}) as stage:
        stage.hands.move(5 * SECOND)
        stage.publish_each_second("short/2", "x/3")
        stage.hands.move(5 * SECOND)
        stage.log.retain()

        assert stage.payloads("#") == [b"short/0", b"x/1", b"x/3"]


def test_the_lag_of_a_named_reader_covers_all_classes(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, options=SINGLE, classes=AUDIT) as stage:
        stage.publish("a", "x", b"")
        positions = stage.log.watermarks
        stage.log.readers.save("r", positions, pins=False, on_saved=lambda: None, on_refused=lambda refusal: None)
        for topic in ("audit/1", "x", "audit/2"):
            stage.publish("a", topic, b"")

        assert stage.log.readers.lag("r")[0].records_max == 3


def test_generations_are_those_of_each_class(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, classes=AUDIT) as stage:
        for topic in ("audit/1", "x"):
            stage.publish("a", topic, topic.encode())
        stage.log.add_generation("hashed")
        stage.publish("a", "audit/2", b"audit/2")

        assert [(each.log_class, each.number, each.records) for each in stage.log.generations()] == [
            ("", 1, 1),
            ("", 2, 0),
            ("audit", 1, 1),
            ("audit", 2, 1),
        ]
        stage.log.drop_generation(1, "audit")
        assert stage.payloads("#") == [b"x", b"audit/2"]
        with pytest.raises(UsageError, match="no class"):
            stage.log.drop_generation(1, "other")


# Parts


def test_the_row_of_a_class_is_as_documented() -> None:
    row = ClassRow(("a/#", "b"), 3_600_000_000, None, ("b",))

    assert encode_class(row).hex() == "01" + "94" + "92a3612f23a162" + "ced693a400" + "c0" + "91a162"
    assert decode_class(encode_class(row)) == row
    # As rows were before it was known which topics a class has now.
    old = bytes.fromhex("01" + "93" + "92a3612f23a162" + "ced693a400" + "c0")
    assert decode_class(old) == ClassRow(("a/#", "b"), 3_600_000_000, None)
    with pytest.raises(UsageError, match="newer"):
        decode_class(b"\x02")
    with pytest.raises(Corruption):
        decode_class(b"\x01\x93")


def test_a_class_remembers_every_topic_that_it_had() -> None:
    row = ClassRow(("a/#",), 1, None)

    (merged,) = merge_classes(HistorySettings(classes={"c": log_class("b", retention=2)}), {"c": row})

    assert merged.topics == ("b",)
    assert merged.row == ClassRow(("a/#", "b"), 2_000_000, None)
    table = ClassTable([merged])
    assert [table.class_of(topic) for topic in (b"a/1", b"b")] == [0, 1]
    assert [table.may_hold(1, [each]) for each in ("a/1", "b", "c", "+")] == [True, True, False, True]


def test_runs_are_neighbours_of_one_class() -> None:
    table = ClassTable(merge_classes(HistorySettings(classes=TWO), {}))

    assert list(table.runs([])) == []
    assert list(table.runs([b"x"])) == [(0, 0, 1)]
    assert list(table.runs([b"x", b"y", b"audit/1", b"raw/1/x", b"raw/2/x"])) == [(0, 0, 2), (1, 2, 3), (2, 3, 5)]


def test_clients_of_one_shard_share_its_classes(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=2, classes=AUDIT) as stage:
        for shard in (0, 1):
            for client in clients_of(stage.log, shard, 2):
                stage.publish(client, "audit/1", client.encode())

        assert len(stage.payloads("audit/1")) == 4
