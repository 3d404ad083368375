"""A stream from the earliest record over a real log: a loss is told if the reader could have read it, and only then."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.errors import DataLoss
from braidmq.flight.wire import ShardGap
from braidmq.storage.format.rows import EpochLimits
from tests.history.staged import SECOND, Known, Viewed, folder
from tests.spark.view_client import Query, read_batch

SHORT = {"short": HistoryClassSettings(topics=("x/#",), retention=Seconds(20.0), retention_bytes="")}
EACH = EpochLimits(count_max=1)  # an epoch for each record, so that retention is exact


def staged(path: Path) -> Viewed:
    """A log that keeps x/# for 20 s and the rest for 100 s."""
    return Viewed(path, limits=EACH, retention_s=100, classes=SHORT)


def publish_each_second(stage: Viewed, count: int) -> None:
    """Records of both classes in turn, of shard 0."""
    for number in range(count):
        stage.publish_all((0, ("a", "x/1")[number % 2]))
        stage.hands.move(SECOND)


def expire(stage: Viewed, seconds: int) -> None:
    """Let time go by, and retention take what it may."""
    stage.hands.move(seconds * SECOND)
    stage.log.retain()
    stage.catch_up()


def kept(stage: Viewed) -> set[Known]:
    return {record for record in stage.known if record.position >= stage.floor(record)}


def test_records_that_a_shorter_class_lost_before_the_stream_began_are_not_a_loss_in_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        expire(stage, 14)  # 0 to 5 are older than 20 s then
        query = Query(stage.view, 1, monkeypatch)

        assert query.drain() == [[0], [2], [4], [6], [7], [8], [9], [10], [11]]


def test_an_offset_lists_records_deleted_before_its_start_until_it_has_passed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        expire(stage, 14)
        query = Query(stage.view, 2, monkeypatch)
        gone = {"0": {"short": stage.known[5].position}}

        begun = json.loads(query.checkpoint)
        query.batch()
        middle = json.loads(query.checkpoint)
        query.drain()

        assert (begun["version"], begun["shards"], begun["gone"]) == (3, {"0": 1, "1": 1}, gone)
        assert (middle["version"], middle["shards"]["0"], middle["gone"]) == (3, stage.known[2].position, gone)
        # What is said then is what it was before there were classes to remember.
        log = stage.log.log_id.hex()
        assert json.loads(query.checkpoint) == {
            "version": 3,
            "log": log,
            "filters": ["#"],
            "shards": {"0": stage.known[-1].position, "1": 1},
        }


def test_records_that_a_shorter_class_loses_after_the_stream_began_are_reported_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        expire(stage, 14)
        query = Query(stage.view, 1, monkeypatch)
        assert query.batch() == [0]
        expire(stage, 4)  # 7 and 9 were there when it began

        with pytest.raises(DataLoss) as caught:
            query.drain()

        assert caught.value.gaps == {0: ShardGap(stage.known[5].position, stage.known[9].position + 1)}


@pytest.mark.parametrize("later_than", [None, 5])
def test_a_table_that_starts_at_an_offset_of_a_stream_misses_nothing_that_the_stream_would_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_than: int | None
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        expire(stage, 14)
        query = Query(stage.view, 2, monkeypatch)
        query.batch()

        assert read_batch(query.checkpoint, later_than=later_than) == [4, 6, 7, 8, 9, 10, 11]
        # Positions alone say that everything later than them is wanted.
        with pytest.raises(DataLoss):
            read_batch(json.dumps(json.loads(query.checkpoint)["shards"]), later_than=later_than)


@pytest.mark.parametrize("rows_max", [None, 100])
def test_records_lost_between_the_beginning_and_the_first_batch_are_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int | None
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        query = Query(stage.view, rows_max, monkeypatch)
        expire(stage, 14)

        with pytest.raises(DataLoss) as caught:
            query.batch()

        assert caught.value.gaps == {0: ShardGap(1, stage.known[5].position + 1)}


def test_a_filter_that_the_shorter_class_cannot_match_is_not_told_of_its_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 6)
        query = Query(stage.view, 1, monkeypatch, "a")
        expire(stage, 30)

        assert query.drain() == [[0], [2], [4]]


def test_records_written_and_deleted_while_the_reader_was_down_are_reported_though_their_shard_was_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        stage.publish_all((1, "a"))
        query = Query(stage.view, None, monkeypatch)
        assert query.drain() == [[0]]
        publish_each_second(stage, 1)
        expire(stage, 200)

        with pytest.raises(DataLoss) as caught:
            query.batch()

        assert caught.value.gaps == {0: ShardGap(1, stage.known[1].position + 1)}


def test_an_old_checkpoint_at_the_beginning_of_an_empty_shard_goes_to_a_position_that_retention_can_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        stage.publish_all((1, "a"))
        query = Query(stage.view, None, monkeypatch)
        log = stage.log.log_id.hex()
        query.checkpoint = json.dumps({"version": 1, "log": log, "shards": {"0": 0, "1": stage.known[0].position}})

        assert query.drain() == [[]]
        publish_each_second(stage, 1)
        expire(stage, 200)

        with pytest.raises(DataLoss, match="shard 0: wanted everything after 1 "):
            query.batch()


def test_an_old_checkpoint_at_the_beginning_of_a_shard_has_no_false_loss_in_later_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage:
        publish_each_second(stage, 12)
        expire(stage, 14)
        query = Query(stage.view, 1, monkeypatch)
        query.checkpoint = json.dumps({"version": 1, "log": stage.log.log_id.hex(), "shards": {"0": 0, "1": 0}})

        assert [*chain(*query.drain())] == [0, 2, 4, 6, 7, 8, 9, 10, 11]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("batch"), st.just(1)),
        st.tuples(st.just("expire"), st.integers(1, 25)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(before=st.integers(0, 14), waited=st.integers(0, 30), rows_max=st.sampled_from([None, 1, 3]), steps=STEPS)
def test_a_loss_is_reported_if_and_only_if_a_record_was_deleted_that_the_reader_could_have_read(
    before: int, waited: int, rows_max: int | None, steps: list[tuple[str, int]]
) -> None:
    with folder() as path, staged(path) as stage, pytest.MonkeyPatch.context() as patch:
        publish_each_second(stage, before)
        expire(stage, waited)
        stage.hear()
        readable = kept(stage)
        query = Query(stage.view, rows_max, patch)
        read: list[int] = []
        for kind, amount in [*steps, *[("batch", 1)] * 60]:
            if kind == "publish":
                publish_each_second(stage, amount)
                readable |= set(stage.known[-amount:])
            elif kind == "expire":
                expire(stage, amount)
            else:
                lost = {each for each in readable - kept(stage) if each.number not in read}
                try:
                    read += query.batch() or []
                except DataLoss as loss:
                    gap = loss.gaps[0]
                    inside = {each for each in lost if gap.wanted < each.position < gap.kept}
                    assert inside, "nothing of this gap was ever there for the reader"
                    assert max(each.position for each in inside) == gap.kept - 1
                    return

        assert sorted(read) == sorted(each.number for each in readable)
