"""Offsets of checkpoints, and the arithmetic of batches: what is between two offsets is read once, whatever comes between."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.flight import wire
from braidmq.spark.source import offsets
from braidmq.spark.source.offsets import Offset, parse_offset

positions = st.integers(1, 40)
shard_numbers = st.integers(0, 3)
marks = st.dictionaries(shard_numbers, positions, min_size=1)


def shards_of(
    ranges: dict[int, tuple[int, int]], log: str = "00ff", gone: dict[int, dict[str, int]] | None = None
) -> wire.Shards:
    lost = gone or {}
    states = {
        str(shard): wire.ShardState(earliest, latest, 0, 0, lost.get(shard, {})) for shard, (earliest, latest) in ranges.items()
    }
    return wire.Shards(log, 1_000, states)


def test_the_text_of_an_offset_is_this_and_stays_this() -> None:
    offset = Offset({10: 5, 2: 7, 0: 1}, "00ff")

    text = json.dumps(offset.to_json())

    assert text == '{"version": 1, "log": "00ff", "shards": {"0": 1, "2": 7, "10": 5}}'
    assert parse_offset(json.loads(text)) == offset


def test_a_version_2_offset_lists_records_deleted_before_the_stream_began() -> None:
    offset = Offset({0: 1, 2: 7}, "00ff", {2: {"short": 9, "": 8}, 0: {"short": 5}})

    text = json.dumps(offset.to_json())

    assert text == (
        '{"version": 2, "log": "00ff", "shards": {"0": 1, "2": 7}, "gone": {"0": {"short": 5}, "2": {"": 8, "short": 9}}}'
    )
    assert parse_offset(json.loads(text)) == offset


def test_the_version_2_end_of_the_first_batch_has_its_start() -> None:
    end = Offset({0: 9}, "00ff", {}, Offset({0: 2}, "00ff", {0: {"short": 5}}))

    assert json.dumps(end.to_json()) == (
        '{"version": 2, "log": "00ff", "shards": {"0": 9}, "began": {"shards": {"0": 2}, "gone": {"0": {"short": 5}}}}'
    )
    assert parse_offset(end.to_json()) == end


def test_a_version_3_offset_names_the_filters_that_were_read() -> None:
    filters = offsets.to_filters(["plant/#", "a/+", "plant/#"])
    end = Offset({0: 9}, "00ff", {0: {"short": 12}}, Offset({0: 2}, "00ff"), filters)

    assert json.dumps(end.to_json()) == (
        '{"version": 3, "log": "00ff", "filters": ["a/+", "plant/#"], "shards": {"0": 9}, "gone": {"0": {"short": 12}}, '
        '"began": {"shards": {"0": 2}}}'
    )
    assert parse_offset(end.to_json()) == end
    # As progress reports show the latest one.
    assert parse_offset(end.to_json() | {"behind": {"rows": 5, "isEstimate": True}}) == end


@pytest.mark.parametrize(
    ("kept", "now"),
    [
        (None, ["a/#"]),
        (["a/#", "b"], ["b", "a/#"]),
        (["a/#"], ["a/#", "a/b"]),
        (["a/#", "a/+/c"], ["a/#"]),
    ],
)
def test_filters_that_match_the_same_topics_are_the_same(kept: list[str] | None, now: list[str]) -> None:
    offsets.check_filters(Offset({0: 1}, "00ff", filters=None if kept is None else offsets.to_filters(kept)), now)


@pytest.mark.row("K12")
@pytest.mark.parametrize(
    ("kept", "now", "message"),
    [
        (["a/#"], ["b/#"], "to the topic filters a/#, but the query has b/#: older records .*onFilterChange=continue"),
        (["a/#"], ["a/#", "b"], "to the topic filters a/#, but the query has a/#, b"),
        (["a/#"], ["a/b"], "to the topic filters a/#, but the query has a/b"),
        (["a"], [f"t/{n}" for n in range(9)], "but the query has t/0, t/1, t/2, t/3, t/4 and 4 more"),
    ],
)
def test_filters_of_a_checkpoint_that_are_others_are_named(kept: list[str], now: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        offsets.check_filters(Offset({0: 1}, "00ff", filters=offsets.to_filters(kept)), now)


def test_a_user_may_write_positions_only() -> None:
    assert parse_offset({"0": 17, "3": 4}) == Offset({0: 17, 3: 4})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"version": 4, "log": "a", "shards": {}, "more": 1}, "of version 4, of a newer braidmq"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "filters": ["a"]}, "must have exactly"),
        ({"version": 3, "log": "a", "shards": {"0": 1}, "filters": "a"}, "`filters` must be a list of strings"),
        ({"version": 3, "log": "a", "shards": {"0": 1}, "filters": []}, "`filters` must be a list of strings"),
        ({"version": 3, "log": "a", "shards": {"0": 1}, "filters": [1]}, "`filters` must be a list of strings"),
        ({"version": 1, "log": "a", "shards": {"0": 1}, "gone": {}}, "must have exactly log, shards, version"),
        (
            {"version": 2, "log": "a", "shards": {"0": 1}, "gone": {}, "more": 1},
            "must have exactly began, gone, log, shards, version",
        ),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "gone": []}, "not an offset"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "gone": {"0": 5}}, "a position for each class"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "gone": {"0": {"": True}}}, "a position for each class"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "gone": {"x": {"": 5}}}, "a shard must be a number"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "gone": {"0": {"": -5}}}, "between 0 and"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "began": 5}, "not an offset"),
        ({"version": 2, "log": "a", "shards": {"0": 1}, "began": {"shards": {"0": "1"}}}, "not an offset"),
        ({"version": 0, "log": "a", "shards": {}}, "not an offset"),
        ({"shards": {"0": 1}}, "not an offset"),
        ({"version": 1, "log": "a", "shards": {"0": 1}, "extra": 1}, "must have exactly"),
        ({"version": 1, "log": 5, "shards": {"0": 1}}, "not an offset"),
        ({"version": 1, "log": "a", "shards": {"0": "1"}}, "not an offset"),
        ({"0": True}, "not an offset"),
        ({"0": 1.5}, "not an offset"),
        ({"a": 1}, "a shard must be a number"),
        ({"0": -1}, "between 0 and"),
        ([1], "not an offset"),
        ("latest", "not an offset"),
    ],
)
def test_an_invalid_offset_is_rejected_with_a_clear_message(data: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_offset(data)


def test_another_log_is_rejected_with_a_clear_message() -> None:
    offsets.check_log(Offset({0: 1}, "00ff"), "00ff")
    offsets.check_log(Offset({0: 1}), "00ff")

    with pytest.raises(UsageError, match=r"log 00ff, but the servers have log beef.*new checkpoint"):
        offsets.check_log(Offset({0: 1}, "00ff"), "beef")


def test_a_shard_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"no shard 7.*its shards are 0, 1"):
        offsets.check_shards(Offset({0: 1, 7: 1}), shards_of({0: (0, 9), 1: (0, 9)}))


@pytest.mark.parametrize(
    ("place", "start", "end"),
    [
        # Not the position that is the earliest now: nothing is ever missing from the beginning.
        (wire.EARLIEST, {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}),
        # In a shard without records, what retention takes of the first ones is to be told.
        (wire.LATEST, {0: 50, 1: 20, 2: 1}, {0: 50, 1: 20, 2: 0}),
        # At a time: from it on, and up to it but without it. A time to come is now.
        (wire.RangeBound(time=30), {0: 29, 1: 20, 2: 1}, {0: 29, 1: 20, 2: 0}),
        (wire.RangeBound(time=99), {0: 50, 1: 20, 2: 1}, {0: 50, 1: 20, 2: 0}),
        # Before what is kept, which is then missing, and that is told.
        (wire.RangeBound(time=5), {0: 4, 1: 4, 2: 1}, {0: 4, 1: 4, 2: 0}),
        # Shards that are not named: from their beginning, to their end.
        (wire.RangeBound(positions={"0": 33}), {0: 33, 1: 0, 2: 0}, {0: 33, 1: 20, 2: 0}),
    ],
)
def test_places_become_positions_of_each_shard(place: wire.RangeBound, start: dict[int, int], end: dict[int, int]) -> None:
    shards = shards_of({0: (10, 50), 1: (0, 20), 2: (0, 0)})

    assert offsets.start_at(place, shards) == start
    assert offsets.end_at(place, shards) == end


def test_a_stream_that_begins_at_the_beginning_is_at_positions_that_retention_can_pass() -> None:
    shards = shards_of({0: (10, 50), 1: (0, 20), 2: (0, 0)}, gone={0: {"short": 30}, 1: {"short": 9}})
    gone = {0: {"short": 30}, 1: {"short": 9}}

    assert offsets.begin_at(wire.EARLIEST, shards) == Offset({0: 10, 1: 1, 2: 1}, "00ff", gone)
    # What a person writes, or an old checkpoint has.
    assert offsets.begin_at(wire.RangeBound(positions={"0": 0}), shards) == Offset({0: 10, 1: 1, 2: 1}, "00ff", gone)
    assert offsets.settle(Offset({0: 33, 1: 0}, "00ff"), shards) == Offset({0: 33, 1: 1}, "00ff", {1: {"short": 9}})
    # At any other place it is asked for what is later, whether or not it is there.
    assert offsets.begin_at(wire.RangeBound(time=5), shards) == Offset({0: 4, 1: 4, 2: 1}, "00ff")
    assert offsets.begin_at(wire.LATEST, shards) == Offset({0: 50, 1: 20, 2: 1}, "00ff")
    # Or at an offset of a stream that had begun before.
    given_bound = Offset({0: 12, 1: 5}, None, {0: {"short": 30}, 1: {"short": 4}}).to_bound()
    assert offsets.begin_at(given_bound, shards) == Offset({0: 12, 1: 5, 2: 1}, "00ff", {0: {"short": 30}})


@given(marks, marks, st.none() | marks, st.dictionaries(shard_numbers, st.dictionaries(st.sampled_from("ab"), positions)))
def test_deleted_ranges_are_remembered_until_a_batch_has_passed_them(
    start: dict[int, int], latest: dict[int, int], advanced: dict[int, int] | None, gone: dict[int, dict[str, int]]
) -> None:
    begun = Offset(start, "00ff", gone)

    end = offsets.end_of_batch(begun, offsets.bounds(begun, latest, None), advanced)

    for shard, position in end.shards.items():
        for name in "ab":
            known = gone.get(shard, {}).get(name, 0)
            assert max(end.gone.get(shard, {}).get(name, 0), position) == max(known, position)
    assert all(each > end.shards[shard] for shard, classes in end.gone.items() for each in classes.values())
    assert all(end.gone.values())


@given(marks, marks, st.none() | marks, st.none() | marks)
def test_a_batch_never_moves_back_or_past_the_available_records_or_its_target(
    start: dict[int, int], latest: dict[int, int], target: dict[int, int] | None, advanced: dict[int, int] | None
) -> None:
    begun = Offset(start, "00ff")

    limits = offsets.bounds(begun, latest, None if target is None else Offset(target, "00ff"))
    end = offsets.end_of_batch(begun, limits, advanced)

    assert end.log == "00ff"
    assert set(start) <= set(end.shards)
    for shard, position in end.shards.items():
        at = start.get(shard, 0)
        assert position >= at
        if position > at:
            assert position <= latest[shard]
            assert target is None or position <= target[shard]
            assert advanced is None or position <= advanced[shard]


@given(marks, st.lists(st.tuples(marks, st.none() | marks), max_size=8))
def test_batches_one_after_the_other_read_every_position_once(
    start: dict[int, int], steps: list[tuple[dict[int, int], dict[int, int] | None]]
) -> None:
    """Shards appear, the service forgets and knows again, limits come and go: ranges meet without a gap and without overlap."""
    at = Offset(start, "00ff")
    read: dict[int, list[int]] = {}
    for latest, advanced in steps:
        end = offsets.end_of_batch(at, offsets.bounds(at, latest, None), advanced)
        for shard, position in end.shards.items():
            read.setdefault(shard, []).extend(range(at.shards.get(shard, 0) + 1, position + 1))
        assert offsets.is_empty(at, end) == (not any(p > at.shards.get(s, 0) for s, p in end.shards.items()))
        at = end

    for shard, seen in read.items():
        assert seen == list(range(start.get(shard, 0) + 1, at.shards[shard] + 1))


def test_a_service_is_not_asked_to_have_come_further_than_is_wanted() -> None:
    found = offsets.ends_to_ask_for({0: 5, 1: 5, 2: 1, 4: 0}, {0: 9, 1: 5, 2: 1, 3: 4, 4: 1})

    assert found == {"0": 9, "1": 0, "2": 0, "3": 4, "4": 0}


@given(marks, st.dictionaries(shard_numbers, positions))
def test_without_anything_new_the_text_stays_the_same(start: dict[int, int], behind: dict[int, int]) -> None:
    """Spark takes another text for news, and would run a batch for it."""
    at = Offset(start, "00ff")
    latest = {shard: min(behind.get(shard, position), position) for shard, position in start.items()}

    end = offsets.end_of_batch(at, offsets.bounds(at, latest, None))

    assert json.dumps(end.to_json()) == json.dumps(at.to_json())


@given(marks, marks, marks)
def test_a_run_with_a_target_ends_there_and_leaves_later_shards_alone(
    start: dict[int, int], target: dict[int, int], later: dict[int, int]
) -> None:
    latest = {shard: max(later.get(shard, 0), position) for shard, position in target.items()} | {
        shard: position for shard, position in later.items() if shard not in target
    }
    at = Offset(start, "00ff")
    goal = Offset(target, "00ff")

    end = offsets.end_of_batch(at, offsets.bounds(at, latest, goal))

    assert end == offsets.end_of_batch(end, offsets.bounds(end, latest, goal)), "one more batch has nothing to do"
    assert all(end.shards[shard] == max(position, start.get(shard, 0)) for shard, position in target.items())
    assert set(end.shards) == set(start) | set(target)
