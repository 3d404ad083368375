"""Many searches in vain: an epoch is walked once, then says by itself what it does not have, and never denies what it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Unavailable
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts.contract import Query
from braidmq.storage.reading.epoch_scan import ScanCache
from braidmq.storage.reading.reader import LogReader
from braidmq.storage.shard.epoch_topics import MISSES, MISSES_WITHIN_S, EpochTopics, TopicDirectory
from tests.storage.log import FAMILY, LAYOUTS, Log, drain, stamps_of

LEVELS = st.sampled_from(["a", "b", "c", "d", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(st.sampled_from(["a", "b", "e", "+", ""]), min_size=1, max_size=4).map("/".join).filter(bool)


def never() -> bool:
    return False


class Desk:
    """A log of several closed epochs with ten topics each, and a clock that stands still."""

    def __init__(self) -> None:
        self.log = Log(limits=EpochLimits(count_max=1000))
        for epoch in range(4):
            self.log.append(*(f"d/{epoch * 10 + number % 10}/t" for number in range(1000)))
        self.log.append("last")
        self.time = 100.0
        self.reader = LogReader(self.log.store, self.log.shard, ScanCache(now=self.now), self.now)
        self.log.store.seeks = 0

    def now(self) -> float:
        return self.time

    def read(self, topic: str) -> list[int]:
        return stamps_of(drain(self.reader.start_replay([topic], 0)))


def test_after_many_searches_without_matches_an_epoch_is_skipped() -> None:
    desk = Desk()
    for number in range(MISSES + 1):
        desk.read(f"d/{1000 + number}/t")
    desk.log.store.seeks = 0

    found = [desk.read(f"d/{number}/t") for number in range(40)]

    assert [len(each) for each in found] == [100] * 40
    assert desk.log.store.seeks <= 2 * 40  # where the topic is, and in the open epoch
    assert desk.read("d/5000/t") == []


def test_rare_searches_without_matches_do_not_index_an_epoch() -> None:
    desk = Desk()

    for number in range(3 * MISSES):
        desk.time += 2 * MISSES_WITHIN_S / MISSES
        desk.read(f"d/{1000 + number}/t")

    assert desk.reader.topics.size_bytes == 0


def test_searches_with_matches_do_not_index_an_epoch() -> None:
    desk = Desk()

    for number in range(3 * MISSES):
        desk.reader.scans = ScanCache(now=desk.now)
        replay = desk.reader.start_replay([f"d/{number % 10}/t"], 0)
        assert replay.next(50)

    assert desk.reader.topics.size_bytes == 0


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@given(topics=st.lists(TOPICS, min_size=1, max_size=60), filters=st.lists(FILTERS, min_size=1, max_size=5))
def test_a_query_that_has_matches_is_never_dropped(layout: str, topics: list[str], filters: list[str]) -> None:
    log = Log(layout)
    log.append(*topics)
    (epoch,) = log.shard.epochs
    planner = log.shard.generations.of(epoch.start).layout
    known = EpochTopics(log.store, FAMILY, epoch, 1_000_000)
    assert known.advance(never)

    for topic_filter in [*filters, *topics]:
        kept: list[Query] = [query for query in planner.plan(topic_filter) if known.may_hold(query)]
        for topic in topics:
            if matches(topic_filter, topic):
                assert any(query.matches(planner.index(topic.encode())) for query in kept)


def test_an_epoch_is_walked_in_slices_and_by_seeking_over_long_runs_of_a_topic() -> None:
    log = Log(limits=EpochLimits(count_max=10_000))
    log.append(*["a/1"] * 4_000, *["a/2"] * 4_000)
    (epoch,) = log.shard.epochs
    log.store.records_read = 0
    known = EpochTopics(log.store, FAMILY, epoch, 1_000_000)
    looks = iter([False, True] * 100)

    slices = 1
    while not known.advance(lambda: next(looks)):
        assert slices < 100
        slices += 1

    assert slices > 1
    assert log.store.records_read < 100


def test_an_epoch_with_too_many_topics_is_never_skipped() -> None:
    log = Log()
    log.append(*(f"{number}/{number}" for number in range(500)))
    (epoch,) = log.shard.epochs
    (query, *_) = log.shard.generations.of(epoch.start).layout.plan("7/7")
    known = EpochTopics(log.store, FAMILY, epoch, 1_000)

    assert known.advance(never)
    assert known.may_hold(query)
    assert known.size_bytes == 0


def test_the_lists_of_all_epochs_are_bounded() -> None:
    log = Log(limits=EpochLimits(count_max=100))
    for _ in range(20):
        log.append(*(f"{number}/t" for number in range(100)))
    directory = TopicDirectory(log.store, FAMILY, lambda: 0.0, bytes_max=30_000)

    for epoch in log.shard.epochs.closed:
        for _ in range(MISSES):
            directory.note_miss(epoch)
        assert directory.narrow(epoch, [], never) == []
        assert 0 < directory.size_bytes <= 30_000


class BreakingStore:
    """A store whose first reads break off after a few rows."""

    def __init__(self, log: Log, times: int) -> None:
        self._log = log
        self._times = times

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._log.store.get(family, key)

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        for number, pair in enumerate(self._log.store.items(family, lower, upper)):
            if number == 45 and self._times:
                self._times -= 1
                raise Unavailable("the log cannot be read")
            yield pair


def test_an_interrupted_and_repeated_walk_finds_the_same_topics() -> None:
    log = Log(limits=EpochLimits(count_max=1000))
    log.append(*(f"d/{number % 50}/t" for number in range(1000)))
    [epoch] = log.shard.epochs
    whole = EpochTopics(log.store, FAMILY, epoch, 1_000_000)
    whole.advance(never)
    known = EpochTopics(BreakingStore(log, 3), FAMILY, epoch, 1_000_000)

    for _ in range(3):
        with pytest.raises(Unavailable):
            known.advance(never)
    assert known.advance(never)

    assert known._indexes == whole._indexes
    assert known.size_bytes == whole.size_bytes
