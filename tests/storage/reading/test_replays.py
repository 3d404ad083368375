"""Reading the log as one: merged replays, followers, and the way from one to the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.lane.records.records import Record
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from braidmq.storage.reading.positions import EARLIEST, Ago, At, Earliest, Latest
from braidmq.storage.shard.clock import ShardClock
from tests.storage.log import NOON, Hands
from tests.storage.message_log import Stage, clients_of, drain

# Small epochs and a small tail: a replay crosses many of both.
SMALL = LogOptions(limits=EpochLimits(count_max=7), tail_bytes_max=3 * 2_000)


def fill(stage: Stage, count: int, seed: int = 1, first: int = 0) -> None:
    """Publish from many clients to some topics, flushing at random."""
    chance = random.Random(seed)
    for number in range(first, first + count):
        stage.append(f"client-{chance.randrange(20)}", f"t/{chance.randrange(5)}/{chance.randrange(3)}", b"%d" % number)
        if chance.random() < 0.1:
            stage.log.flush()
    stage.settle()


def places(found: Sequence[tuple[int, Record]]) -> list[tuple[int, int]]:
    return [(shard, record.timestamp) for shard, record in found]


def test_a_merged_replay_is_the_sorted_union_of_the_shards(tmp_path: Path) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        fill(stage, 500)
        expected = sorted((timestamp, shard) for _, shard, timestamp in stage.acks)

        assert [(timestamp, shard) for shard, timestamp in places(stage.read("#"))] == expected
        assert len({shard for _, shard in expected}) == 3


@pytest.mark.parametrize("topic_filter", ["t/1/2", "t/+/0", "t/3/#", "nothing/+", "+/+/+"])
def test_filters_select_from_the_merged_shards(tmp_path: Path, topic_filter: str) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        fill(stage, 300)
        expected = [record.value for _, record in stage.read("#") if matches(topic_filter, record.topic.decode())]

        assert [record.value for _, record in stage.read(topic_filter)] == expected


def test_order_per_publisher_and_topic_is_that_of_the_appends(tmp_path: Path) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        fill(stage, 500)
        numbers: dict[tuple[str, bytes], list[int]] = {}
        for _, record in stage.read("#"):
            numbers.setdefault((record.publisher, record.topic), []).append(int(record.payload))

        assert all(each == sorted(each) for each in numbers.values())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=60), seed=st.integers(0, 1000))
def test_a_replay_stopped_anywhere_resumes_without_gap_or_repeat(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], seed: int
) -> None:
    with Stage(tmp_path_factory.mktemp("log"), options=SMALL) as stage:
        fill(stage, 150, seed)
        expected = places(stage.read("t/+/1", "t/2/#"))
        found: list[tuple[int, int]] = []
        positions: dict[int, int] | int = EARLIEST
        for count in counts:
            replay = stage.log.replay(["t/+/1", "t/2/#"], positions)
            found += places(replay.next(count))
            positions = replay.positions()
        found += places(stage.read("t/+/1", "t/2/#", start=positions))

        assert found == expected


def test_a_replay_includes_records_committed_meanwhile(tmp_path: Path) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        fill(stage, 100)
        replay = stage.log.replay(["#"], EARLIEST)
        found = replay.next(40)
        fill(stage, 100, seed=2, first=100)
        found += drain(replay)
        fill(stage, 20, seed=3, first=200)
        found += drain(replay)

        assert sorted(int(record.payload) for _, record in found) == list(range(220))
        for shard in range(3):
            stamps = [record.timestamp for number, record in found if number == shard]
            assert stamps == sorted(set(stamps))


def test_a_quiet_shard_does_not_delay_a_replay(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        quiet, busy = clients_of(stage.log, 0)[0], clients_of(stage.log, 1)[0]
        stage.publish(quiet, "t", b"old")
        for number in range(5):
            stage.publish(busy, "t", b"%d" % number)

        assert stage.payloads("#") == [b"old", b"0", b"1", b"2", b"3", b"4"]


def test_slices_without_time_still_make_progress(tmp_path: Path) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        fill(stage, 200)
        replay = stage.log.replay(["#"], EARLIEST)
        assert replay.next(1000, slice_s=0.0) == []
        found: list[tuple[int, Record]] = []
        for _ in range(20_000):
            found += replay.next(1000, slice_s=1e-5)
            if replay.is_caught_up:
                break

        assert places(found) == places(stage.read("#"))


def test_session_only_records_are_hidden_unless_requested(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.append("a", "t", b"history")
        stage.append("a", "t", b"session", session_only=True)
        stage.settle()

        assert stage.payloads("t") == [b"history"]
        assert [record.payload for _, record in stage.read("t", with_session_only=True)] == [b"history", b"session"]


def test_followers_see_each_record_once_and_in_order(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        seen: list[tuple[int, int]] = []
        for shard in range(3):
            stage.log.follow(shard, lambda shard, records: seen.extend((shard, each.timestamp) for each in records))
        fill(stage, 300)

        for shard in range(3):
            assert [at for number, at in seen if number == shard] == [at for _, number, at in stage.acks if number == shard]


def test_followers_get_a_commit_as_one_list_before_it_is_acknowledged(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        client = clients_of(stage.log, 1)[0]
        seen: list[tuple[list[bytes], int]] = []
        stage.log.follow(1, lambda _, records: seen.append(([each.payload for each in records], len(stage.acks))))
        for number in range(4):
            stage.append(client, "t", b"%d" % number)
        stage.settle()

        assert seen == [([b"0", b"1", b"2", b"3"], 0)]


def test_a_follower_that_stops_during_a_commit_is_not_called(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1) as stage:
        seen: list[str] = []

        def stop_second(_: int, records: Sequence[Record]) -> None:
            seen.append("first")
            second.stop()

        stage.log.follow(0, stop_second)
        second = stage.log.follow(0, lambda _, records: seen.append("second"))
        stage.publish("a", "t", b"1")
        stage.publish("a", "t", b"2")

        assert seen == ["first", "first"]


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_hands_over_to_following_without_gap_or_repeat(tmp_path: Path, seed: int) -> None:
    with Stage(tmp_path, options=SMALL) as stage:
        chance = random.Random(seed)
        fill(stage, 100, seed)
        replay = stage.log.replay(["#"], EARLIEST)
        seen: list[tuple[int, Record]] = []
        is_following = False

        def follow(shard: int, records: Sequence[Record]) -> None:
            seen.extend((shard, each) for each in records)

        for number in range(100, 400):
            stage.append(f"client-{chance.randrange(20)}", "t/1", b"%d" % number)
            if chance.random() < 0.3:
                stage.log.flush()
            if chance.random() < 0.3 and not stage.calls.empty():
                stage.turn()
            if not is_following and chance.random() < 0.5:
                seen += replay.next(chance.randrange(1, 30))
                if replay.is_caught_up:
                    is_following = True
                    for shard in range(3):
                        stage.log.follow(shard, follow)
        stage.settle()

        assert is_following
        assert sorted(int(record.payload) for _, record in seen) == list(range(400))
        for shard in range(3):
            stamps = [record.timestamp for number, record in seen if number == shard]
            assert stamps == sorted(stamps)


def test_a_follower_added_in_a_callback_does_not_get_earlier_records(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        seen: list[bytes] = []

        def begin(_: int, records: Sequence[Record]) -> None:
            first.stop()
            seen.extend(stage.payloads("#"))
            for shard in range(3):
                stage.log.follow(shard, lambda _, records: seen.extend(each.payload for each in records))

        first = stage.log.follow(0, begin)
        for shard in range(3):
            stage.append(clients_of(stage.log, shard)[0], "t", b"%d" % shard)
        stage.settle()
        stage.publish(clients_of(stage.log, 2)[0], "t", b"3")

        assert sorted(seen) == [b"0", b"1", b"2", b"3"]


def test_starts_become_positions(tmp_path: Path) -> None:
    hands = Hands()
    with Stage(tmp_path, shards=1, clock=ShardClock(lambda: hands.boot, lambda: hands.wall)) as stage:
        for number in range(5):
            stage.publish("a", "t", b"%d" % number)
            hands.move(1_000_000)

        def read(start: Latest | Earliest | At | Ago) -> list[bytes]:
            return stage.payloads("#", start=stage.log.positions_at(start))

        assert read(Earliest()) == [b"0", b"1", b"2", b"3", b"4"]
        assert read(At(0)) == [b"0", b"1", b"2", b"3", b"4"]
        assert read(At(NOON + 2_000_000)) == [b"2", b"3", b"4"]
        assert read(At(NOON + 2_000_001)) == [b"3", b"4"]
        assert read(Ago(2_000_000)) == [b"3", b"4"]
        assert read(Ago(10**18)) == [b"0", b"1", b"2", b"3", b"4"]
        assert read(Latest()) == []


def test_a_start_in_the_future_is_now(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1) as stage:
        stage.publish("a", "t", b"old")
        positions = stage.log.positions_at(At(4_000_000_000_000_000))
        stage.publish("a", "t", b"new")

        assert stage.payloads("#", start=positions) == [b"new"]


def test_a_start_needs_every_shard_and_no_other(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for start in ({}, {0: 1, 1: 1}, {0: 1, 1: 1, 2: 1, 3: 1}):
            with pytest.raises(UsageError, match="each of the 3 shards"):
                stage.log.replay(["#"], start)
