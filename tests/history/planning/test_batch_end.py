"""Admission control: batches of limited size go through everything once, in any shard, and the same way each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.wire import Advance, Plan, RangeBound, from_wire, to_wire
from braidmq.history.planning import batch_end
from braidmq.history.planning.batch_end import shares_of
from braidmq.history.service.errors import HistoryError
from tests.history.clustered import viewed_by_two_cores
from tests.history.staged import SECOND, SHARDS, Known, Viewed, folder
from tests.storage.log import NOON

TOPICS = ["a", "a/b", "x/1", "x/2", "x/3", "$SYS/a"]
CLASSES = {"short": HistoryClassSettings(topics=("x/#",), retention=Seconds(20.0), retention_bytes="")}
NOWHERE = dict.fromkeys(range(SHARDS), 0)

records = st.lists(st.tuples(st.integers(0, SHARDS - 1), st.sampled_from(TOPICS)), min_size=1, max_size=15)


@contextmanager
def viewed(classes: bool = False, cores: int = 1) -> Iterator[Viewed]:
    known = CLASSES if classes else None
    with folder() as path:
        if cores == 1:
            with Viewed(path, classes=known) as stage:
                yield stage
        else:
            with viewed_by_two_cores(path, classes=known) as (stage, _):
                yield stage


def walk(stage: Viewed, filters: list[str], rows_max: int | None, bytes_max: int | None) -> list[list[Known]]:
    """The batches from the beginning to the end, and what is in each by the naive rule."""
    batches: list[list[Known]] = []
    start = dict(NOWHERE)
    for _ in range(500):
        asked = Advance(filters, to_wire(start), rows_max=rows_max, bytes_max=bytes_max)
        advanced = stage.view.advance(asked)
        assert stage.view.advance(asked) == advanced
        end = from_wire(advanced.end)
        assert from_wire(advanced.latest) == stage.heard
        assert all(start[shard] <= end[shard] <= stage.heard[shard] for shard in NOWHERE)
        batch = stage.expected(filters, start, end)
        assert len(batch) <= advanced.rows_max
        assert rows_max is None or advanced.rows_max <= rows_max
        if end == start:
            assert stage.expected(filters, start, stage.heard) == []
            return batches
        # It goes on by a record if there is one.
        assert batch or not stage.expected(filters, start, stage.heard)
        batches.append(batch)
        start = end
    raise AssertionError("it does not come to an end")


@settings(max_examples=50)
@given(
    classes=st.booleans(),
    cores=st.sampled_from([1, 2]),
    history=st.lists(records, max_size=5),
    hidden=records,
    filters=st.lists(st.sampled_from(["#", "a", "a/#", "x/+", "+/b", "x/2", "$SYS/#"]), min_size=1, max_size=2, unique=True),
    rows_max=st.none() | st.integers(1, 12),
    bytes_max=st.none() | st.integers(1, 400),
)
# The core that is asked first has nothing to give, and the limit left no share for the other one.
@example(classes=False, cores=2, history=[[(1, "a")]], hidden=[(0, "a")], filters=["#"], rows_max=None, bytes_max=1)
def test_batches_go_through_everything_once_and_keep_to_their_limits(
    classes: bool,
    cores: int,
    history: list[list[tuple[int, str]]],
    hidden: list[tuple[int, str]],
    filters: list[str],
    rows_max: int | None,
    bytes_max: int | None,
) -> None:
    with viewed(classes, cores) as stage:
        for entries in history:
            stage.write(*entries)
        stage.write(*hidden, session_only=True)
        stage.hear()

        batches = walk(stage, filters, rows_max, bytes_max)

        assert [row for batch in batches for row in batch if row.shard == 0] == [
            row for row in stage.expected(filters, NOWHERE, stage.heard) if row.shard == 0
        ]
        assert sorted(row for batch in batches for row in batch) == stage.expected(filters, NOWHERE, stage.heard)
        if bytes_max is not None:
            sizes = {row: size_of(stage, row) for batch in batches for row in batch}
            assert all(len(batch) <= 1 or sum(sizes[row] for row in batch) <= bytes_max for batch in batches)


def size_of(stage: Viewed, row: Known) -> int:
    """Bytes of the key and value of a record."""
    index = stage.family(row).generations.current.layout.index(row.topic.encode())
    return 12 + len(index) + 6 + len(row.topic) + len(stage.clients[row.shard]) + len(b"%d" % row.number)


def test_without_limits_a_batch_ends_at_the_last_record_or_the_given_bound(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 10])
        middle = {0: stage.known[6].position, 1: stage.known[7].position}

        assert from_wire(stage.view.advance(Advance(["#"], {})).end) == stage.heard
        bounded = stage.view.advance(Advance(["#"], {}, to_wire(middle)))
        assert from_wire(bounded.end) == middle
        assert bounded.rows_max >= len(stage.expected(["#"], NOWHERE, middle)) == 8


@pytest.mark.parametrize("cores", [1, 2])
def test_limits_are_shared_by_backlog(cores: int) -> None:
    with viewed(cores=cores) as stage:
        stage.publish_all(*[(0, "a")] * 30, *[(1, "a")] * 10)

        advanced = stage.view.advance(Advance(["#"], {}, rows_max=12))

        batch = stage.expected(["#"], NOWHERE, from_wire(advanced.end))
        assert sum(row.shard == 0 for row in batch) == 9
        assert sum(row.shard == 1 for row in batch) == 3


def test_the_unused_share_of_a_shard_goes_to_the_others(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(0, "a")] * 20, *[(1, "b")] * 20)

        advanced = stage.view.advance(Advance(["a"], {}, rows_max=16))

        assert from_wire(advanced.end)[1] == stage.heard[1]
        assert len(stage.expected(["a"], NOWHERE, from_wire(advanced.end))) == advanced.rows_max == 16


def test_with_fewer_rows_than_shards_the_shard_furthest_behind_comes_first(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((1, "a"), *[(0, "a")] * 30)
        behind = {0: stage.known[5].position, 1: 0}

        advanced = stage.view.advance(Advance(["#"], to_wire(behind), rows_max=1))

        assert from_wire(advanced.end) == {0: behind[0], 1: stage.heard[1]}


def test_a_record_larger_than_the_limit_is_a_batch_by_itself(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a" * 3000), (0, "b"), (0, "c" * 3000))

        assert [len(batch) for batch in walk(stage, ["#"], None, 1000)] == [1, 1, 1]


def test_a_search_without_matches_ends_after_a_bounded_amount_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_end, "_STEPS_MAX", 100)
    with Viewed(tmp_path, layout="hashed") as stage:
        # Two of these may well have the index of the topic that is looked for: all are to be looked at.
        stage.publish_all(*[(0, f"t/{number}/x") for number in range(400)])
        asked = Advance(["t/+/y"], {}, rows_max=1)

        advanced = stage.view.advance(asked)

        assert 0 < from_wire(advanced.end)[0] < stage.heard[0]
        assert advanced.rows_max == 0


@pytest.mark.parametrize("on_loss", ["fail", "skip"])
def test_a_start_below_the_floor_is_reported_or_skipped(tmp_path: Path, on_loss: str) -> None:
    with Viewed(tmp_path, retention_s=10) as stage:
        stage.publish_all(*[(0, "a")] * 8)
        stage.hands.move(60 * SECOND)
        stage.publish_all(*[(0, "a")] * 3)
        stage.log.retain()
        start = {0: stage.known[1].position, 1: 0}
        floor = stage.floor(stage.known[0])
        asked = Advance(["#"], to_wire(start), rows_max=2, on_loss=on_loss)  # type: ignore[arg-type]

        if on_loss == "skip":
            assert from_wire(stage.view.advance(asked).end)[0] == stage.known[9].position
        else:
            with pytest.raises(HistoryError) as caught:
                stage.view.advance(asked)
            assert caught.value.problem.code == "data-loss"
            assert caught.value.problem.gaps["0"].wanted == start[0]
            assert caught.value.problem.gaps["0"].kept == floor > NOON
        # The beginning is where it begins, and nothing is missing there.
        assert stage.view.advance(Advance(["#"], {"0": 0})).rows_max >= 3
        assert len(stage.rows(Plan(["#"], RangeBound(positions={"0": 0})))) == 3


@given(total=st.integers(0, 1000), backlogs=st.dictionaries(st.integers(0, 9), st.integers(0, 10**6), min_size=1))
def test_shares_add_up_and_no_shard_is_left_out_if_there_is_enough(total: int, backlogs: dict[int, int]) -> None:
    shares = shares_of(total, backlogs)

    assert sum(shares.values()) == total
    assert shares.keys() == backlogs.keys()
    assert total < len(backlogs) or min(shares.values()) >= 1
