"""Runs of records become one, in order of time, and the last record of each shard is noted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records.merging import merge_runs, note_last
from braidmq.lane.records.records import Record, encode_record

VALUE = encode_record(b"t", b"", 1, False, "")
RUNS = st.lists(st.lists(st.integers(1, 60), unique=True).map(sorted), max_size=5)


@given(runs=RUNS, upto=st.integers(0, 70))
def test_records_up_to_a_time_are_merged_in_order_and_later_ones_wait(runs: list[list[int]], upto: int) -> None:
    left = [[Record(timestamp, VALUE) for timestamp in run] for run in runs]
    shards = [number % 3 for number in range(len(runs))]  # several runs may be of one shard

    merged = merge_runs(left, shards, upto)

    expected = sorted((timestamp, number) for number, run in enumerate(runs) for timestamp in run if timestamp <= upto)
    assert [(shard, record.timestamp) for shard, record in merged] == [(shards[number], each) for each, number in expected]
    assert [[record.timestamp for record in run] for run in left] == [[each for each in run if each > upto] for run in runs]


@given(shards=st.lists(st.integers(0, 3)))
def test_the_last_record_of_each_shard_that_has_one_is_noted(shards: list[int]) -> None:
    last = dict.fromkeys(range(4), 1000)

    note_last([(shard, Record(timestamp, VALUE)) for timestamp, shard in enumerate(shards)], last)

    expected = {shard: max((time for time, each in enumerate(shards) if each == shard), default=1000) for shard in range(4)}
    assert last == expected
