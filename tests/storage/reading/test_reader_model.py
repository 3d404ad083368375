"""Readers against a list: whatever happens to the log, each sees a prefix of it, each record once, in order.

A reader's contract is checked at every call: between its position before and its position after lies exactly what it returned,
together with what it reported as removed by retention. Positions only rise and never pass the watermark.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from braidmq.base.errors import Unavailable
from braidmq.lane.records.records import Record, encode_record
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts import make_layout
from braidmq.storage.reading.epoch_scan import ScanCache, ScanLimits
from braidmq.storage.reading.reader import LogReader, ShardScan
from braidmq.storage.shard.shard import Shard, ShardOptions
from braidmq.storage.upkeep.floors import RetentionLimits, choose_floor
from tests.storage.log import FAMILY, LAYOUTS, Hands
from tests.support.fakes.store import FakeBatch, FakeStore

LIMITS = EpochLimits(count_max=20, bytes_max=1_500, age_max_us=2_000)
LEVELS = ("a", "b", "c", "", "$s")

topics = st.one_of(
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool),
    st.builds("dev/{}/t".format, st.integers(0, 20)),
)
filters = st.just(["#"]) | st.lists(
    st.one_of(
        topics,
        st.sampled_from(("#", "+/#", "+", "a/#", "dev/+/t", "dev/#", "+/+/t", "a/+", "+/b/#", "$s/#", "/#")),
    ),
    min_size=1,
    max_size=3,
)


class Reading:
    """A replay and what it was started with."""

    def __init__(self, replay: ShardScan, with_session_only: bool) -> None:
        self.replay = replay
        self.with_session_only = with_session_only


class LogMachine(RuleBasedStateMachine):
    """The log under test beside lists of what was written and of what is committed."""

    readings = Bundle("readings")

    def __init__(self) -> None:
        super().__init__()
        self.hands = Hands()
        self.store = FakeStore()
        self.ticks = 0
        self.written: list[tuple[int, Record]] = []  # number of the write, record
        self.live: list[Reading] = []
        self.tail_bytes_max = 0
        self._open("learned")

    def _open(self, layout: str) -> None:
        options = ShardOptions(layout, LAYOUTS[layout], LIMITS, self.tail_bytes_max)
        self.shard = Shard(self.store, FAMILY, self.hands.clock(), make_layout, options)
        self.shard.recover()
        self._fresh_reader()

    def _fresh_reader(self) -> None:
        # Two lists at most, little memory and few steps, so that readers stop halfway and get into each other's way.
        scans = ScanCache(2, 4000, claim_s=40, now=self._now)
        self.reader = LogReader(self.store, self.shard, scans, self._now, ScanLimits(steps=2, values_bytes_max=400))

    def _now(self) -> float:
        self.ticks += 1
        return float(self.ticks)

    def _write(self, batch: FakeBatch) -> int:
        self.shard.seal(batch)
        number = self.store.write(batch)
        self.shard.adopt(number)
        return number

    def _committed(self) -> list[Record]:
        return [record for number, record in self.written if number <= self.store.committed]

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)), tail_bytes_max=st.sampled_from((0, 0, 1500)))
    def begin(self, layout: str, tail_bytes_max: int) -> None:
        self.tail_bytes_max = tail_bytes_max
        self._open(layout)

    @rule(
        batch_topics=st.lists(st.tuples(topics, st.integers(0, 90), st.booleans()), min_size=1, max_size=6),
        passed=st.sampled_from((0, 0, 1, 3, 500, 3_000)),
        fails=st.booleans(),
        twice=st.booleans(),
        commits=st.booleans(),
    )
    def append(self, batch_topics: list[tuple[str, int, bool]], passed: int, fails: bool, twice: bool, commits: bool) -> None:
        self._append(batch_topics, passed, fails, twice, commits)

    def _append(self, batch_topics: list[tuple[str, int, bool]], passed: int, fails: bool, twice: bool, commits: bool) -> None:
        self.hands.move(passed)
        batch = self.store.batch()
        values = [
            (topic.encode(), encode_record(topic.encode(), bytes(size), 1, False, "p", session_only=session_only))
            for topic, size, session_only in batch_topics
        ]
        before = (self.shard.last, list(self.shard.epochs), len(self.shard.generations), self.shard.watermark)
        stamps = self.shard.append(batch, values)
        if twice:
            stamps += self.shard.append(batch, values)
            values = values * 2
        self.store.fails = fails and passed == 0
        try:
            number = self._write(batch)
        except Unavailable:
            self.shard.discard()
            assert before == (self.shard.last, list(self.shard.epochs), len(self.shard.generations), self.shard.watermark)
            return
        finally:
            self.store.fails = False
        assert all(earlier < later for earlier, later in zip([before[0], *stamps], stamps, strict=False))
        self.written += [(number, Record(stamp, value)) for stamp, (_, value) in zip(stamps, values, strict=True)]
        if commits:
            self.store.committed = number
            self.shard.commit(number)

    @rule(some=st.lists(st.sampled_from(("a", "a/b", "dev/1/t", "dev/2/t")), min_size=1, max_size=4), commits=st.booleans())
    def append_a_little(self, some: list[str], commits: bool) -> None:
        self._append([(topic, 5, False) for topic in some], 1, False, False, commits)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        behind = len(self.store.writes) - self.store.committed
        before = self.store.committed
        self.store.committed += round(share * behind)
        shown = self.shard.commit(self.store.committed)
        assert [record.value for record in shown] == [
            record.value for number, record in self.written if before < number <= self.store.committed
        ]

    @rule(share=st.floats(0, 1), passed=st.sampled_from((-4_000, 0, 5_000)))
    def crash_and_recover(self, share: float, passed: int) -> None:
        kept = self.store.committed + round(share * (len(self.store.writes) - self.store.committed))
        self.hands.move(passed)
        self.store = self.store.crashed(kept)
        self.written = [(number, record) for number, record in self.written if number <= kept]
        self._open("hashed")
        for reading in self.live:
            self._resume(reading)

    @rule(layout=st.sampled_from(sorted(LAYOUTS)))
    def new_generation(self, layout: str) -> None:
        batch = self.store.batch()
        self.shard.add_generation(batch, layout, LAYOUTS[layout])
        self._write(batch)

    @rule(size_bytes=st.sampled_from((300, 1_000, 4_000)), pinned=st.booleans())
    def retain(self, size_bytes: int, pinned: bool) -> None:
        pins = [reading.replay.position for reading in self.live] if pinned else []
        limits = RetentionLimits(size_bytes=size_bytes, pin_bytes=size_bytes)
        wanted = choose_floor(self.shard.epochs, limits, self.hands.wall, self.shard.watermark, pins, self.shard.floor)
        batch = self.store.batch()
        floor = self.shard.raise_floor(batch, wanted)
        assert floor == wanted
        self._write(batch)

    @rule(target=readings, wanted=filters, place=st.floats(0, 1), with_session_only=st.booleans())
    def start_reading(self, wanted: list[str], place: float, with_session_only: bool) -> Reading:
        known = [0, *(record.timestamp for record in self._committed())]
        start = known[round(place * (len(known) - 1))]
        replay = self.reader.start_replay(wanted, start, with_session_only=with_session_only)
        reading = Reading(replay, with_session_only)
        self.live.append(reading)
        return reading

    @rule(
        reading=readings,
        count=st.integers(1, 30),
        slice_s=st.sampled_from((1, 2, 5, 100)),
        bytes_max=st.sampled_from((1, 200, 10_000)),
    )
    def read(self, reading: Reading, count: int, slice_s: int, bytes_max: int) -> None:
        self._read(reading, count, slice_s, bytes_max)

    def _read(self, reading: Reading, count: int, slice_s: int, bytes_max: int) -> None:
        replay = reading.replay
        before = replay.position
        found = replay.next(count, slice_s=slice_s, bytes_max=bytes_max)
        gap = replay.take_gap()
        if gap is not None:
            assert gap.wanted == before
            assert gap.floor == self.shard.floor
            before = gap.floor - 1
        assert before <= replay.position <= max(self.shard.watermark, before)
        assert len(found) <= count
        expected = [
            record
            for record in self._committed()
            if before < record.timestamp <= replay.position
            and (reading.with_session_only or not record.session_only)
            and any(matches(each, record.topic.decode()) for each in replay.filters)
        ]
        assert [(record.timestamp, record.value) for record in found] == [(record.timestamp, record.value) for record in expected]

    @rule(reading=readings)
    def stop_and_resume(self, reading: Reading) -> None:
        self._resume(reading)

    def _resume(self, reading: Reading) -> None:
        old = reading.replay
        # Position 0 means "from the earliest", which is what such a reader was started with.
        reading.replay = self.reader.start_replay(old.filters, old.position, with_session_only=reading.with_session_only)

    @invariant()
    def the_watermark_is_the_last_committed_record(self) -> None:
        committed = self._committed()
        assert self.shard.watermark == (committed[-1].timestamp if committed else 0)
        assert self.shard.last == (self.written[-1][1].timestamp if self.written else 0)

    def teardown(self) -> None:
        for reading in self.live:
            for _ in range(5_000):
                if reading.replay.is_caught_up:
                    break
                self._read(reading, 5, 3, 10_000)
            assert reading.replay.is_caught_up


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
pytestmark = pytest.mark.smoke
