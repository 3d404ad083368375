"""Under any change of the log, the parts of a plan have the rows of a naive list, each once, and a loss is always reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.wire import EARLIEST, LATEST, Plan, RangeBound, from_wire, to_wire
from braidmq.history.planning import searches
from braidmq.history.scanning import streams
from braidmq.history.service.errors import HistoryError
from braidmq.history.view import log_view
from tests.history.staged import SECOND, SHARDS, Known, Viewed, folder, is_ordered_by_topic, knowns

TOPICS = ["a", "a/b", "a/c", "b/b", "b/c/d", "x/b", "x/1/y", "x/2/y", "x/3/y", "$SYS/a", "$SYS/b"]
FILTERS = ["#", "a", "a/#", "a/b", "+/b", "x/+/y", "x/#", "+", "+/+", "b/c/d", "$SYS/#", "nowhere", "x/2/y", "+/c/#"]
RETENTION_S = 50.0
CLASSES = {"short": HistoryClassSettings(topics=("x/#",), retention=Seconds(20.0), retention_bytes="")}

records = st.lists(st.tuples(st.integers(0, SHARDS - 1), st.sampled_from(TOPICS)), min_size=6, max_size=30)
filters = st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4, unique=True)
changes = st.one_of(
    st.tuples(st.just("write"), records),
    st.tuples(st.just("hide"), records),
    st.tuples(st.just("hear"), st.none()),
    st.tuples(st.just("generation"), st.sampled_from(["learned", "hashed"])),
    st.tuples(st.just("wait"), st.sampled_from([5, 25, 60])),
    st.tuples(st.just("retain"), st.none()),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("look"), st.none()),
)
# Retention takes something that a reader is about to read, and the reader's side hears of it.
losses = st.tuples(st.sampled_from(["lose", "lose unnoticed"]), st.sampled_from([25, 60]))
# Of all records that are known; beyond them are the ends.
places = st.sampled_from([-1, -1, *range(0, 90, 3)])
reads = st.tuples(filters, places, places, st.sampled_from(["position", "time"]), st.sampled_from([0, 0, 1, 3, 9]))
histories = st.lists(changes, min_size=1, max_size=12)


@contextmanager
def small_scale() -> Iterator[None]:
    # Nothing here has to wait for long; a test that fails should fail soon.
    with (
        patch.object(streams, "_ROWS", (1, 2)),
        patch.object(streams, "_ROWS_MAX", 3),
        patch.object(searches, "SEEK_STEPS", 0),  # else epochs of four records would never be searched
        patch.object(log_view, "_WAIT_S", 0.5),
    ):
        yield


@contextmanager
def viewed(layout: str, classes: bool) -> Iterator[Viewed]:
    with (
        folder() as path,
        small_scale(),
        Viewed(path, layout=layout, retention_s=RETENTION_S, classes=CLASSES if classes else None) as stage,
    ):
        yield stage


def change(stage: Viewed, what: str, how: object) -> None:
    match what, how:
        case "write", list(entries):
            stage.write(*entries)
        case "hide", list(entries):
            stage.write(*entries, session_only=True)
        case "hear", _:
            stage.hear()
        case "generation", str(layout):
            stage.log.add_generation(layout)
        case "wait", int(seconds):
            stage.hands.move(seconds * SECOND)
        case "retain", _:
            stage.log.retain()
        case "compact", _:
            stage.log.reclaim()
        case "look", _:
            stage.catch_up()
        case "lose", int(seconds):
            stage.hands.move(seconds * SECOND)
            stage.log.retain()
            stage.catch_up()
        case "lose unnoticed", int(seconds):
            stage.hands.move(seconds * SECOND)
            stage.log.retain()
            stage.catch_up(counts=False)


def bound_of(stage: Viewed, number: int, kind: str, end: RangeBound) -> RangeBound:
    """The place at a record, or an end of everything."""
    ordered = sorted(each.position for each in stage.known)
    if not 0 <= number < len(ordered):
        return end
    if kind == "time":
        return RangeBound(time=ordered[number])
    return RangeBound(positions=to_wire({shard: min(ordered[number], stage.heard.get(shard, 0)) for shard in range(SHARDS)}))


def within(stage: Viewed, plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """The range of a plan, by the rules of `RangeBound`."""

    def resolve(place: RangeBound, default: dict[int, int]) -> dict[int, int]:
        if place.positions is not None:
            return from_wire(place.positions)
        return dict.fromkeys(range(SHARDS), place.time - 1) if place.time is not None else default

    marks = {shard: stage.heard.get(shard, 0) for shard in range(SHARDS)}
    ends = resolve(plan.end, marks)
    # What the view has not been told of is not there, whatever time the plan ends at.
    return resolve(plan.start, dict.fromkeys(range(SHARDS), 0)), {shard: min(end, marks[shard]) for shard, end in ends.items()}


def lost(stage: Viewed, plan: Plan) -> dict[str, int]:
    """Shards of which retention has taken something that the plan asks for, with their floors."""
    starts, ends = within(stage, plan)
    found: dict[str, int] = {}
    for shard in range(SHARDS):
        families = stage.log._shards[shard].families
        wanted = [each for number, each in enumerate(families) if stage.log._classes.may_hold(number, plan.filters)]
        floor = max(each.floor for each in wanted)
        if 0 < starts[shard] < min(floor - 1, ends[shard]):
            found[str(shard)] = floor
    return found


@settings(max_examples=150)
@given(
    layout=st.sampled_from(["learned", "hashed"]), classes=st.booleans(), history=histories, wanted=st.lists(reads, max_size=4)
)
def test_the_parts_of_a_plan_have_the_rows_of_a_naive_list(
    layout: str, classes: bool, history: list[tuple[str, object]], wanted: list[tuple[list[str], int, int, str, int]]
) -> None:
    with viewed(layout, classes) as stage:
        for step in history:
            change(stage, *step)
        # Whatever the view has been told of is what there is, and it looks at the log as it is now.
        stage.catch_up()
        for topic_filters, first, last, kind, partitions in wanted:
            plan = Plan(
                topic_filters,
                bound_of(stage, first, kind, EARLIEST),
                bound_of(stage, last, kind, LATEST),
                partitions=partitions,
            )
            gaps = lost(stage, plan)
            try:
                rows = stage.rows(plan)
            except HistoryError as error:
                assert error.problem.code == "data-loss"
                assert {shard: gap.kept for shard, gap in error.problem.gaps.items()} == gaps
                continue

            assert gaps == {}
            assert sorted(rows) == stage.expected(topic_filters, *within(stage, plan))
            assert is_ordered_by_topic(rows)


@settings(max_examples=150)
@given(
    layout=st.sampled_from(["learned", "hashed"]),
    classes=st.booleans(),
    held=records,
    history=histories,
    wanted=reads,
    meanwhile=st.lists(st.lists(changes, max_size=3) | losses.map(lambda each: [each]), min_size=1, max_size=8),
    skips=st.booleans(),
)
def test_changes_during_a_read_do_not_affect_it_except_a_loss_which_is_reported(
    layout: str,
    classes: bool,
    held: list[tuple[int, str]],
    history: list[tuple[str, object]],
    wanted: tuple[list[str], int, int, str, int],
    meanwhile: list[list[tuple[str, object]]],
    skips: bool,
) -> None:
    with viewed(layout, classes) as stage:
        for step in [*history, ("write", held)]:
            change(stage, *step)
        stage.hear()
        topic_filters, first, last, kind, partitions = wanted
        start, end = bound_of(stage, first, kind, EARLIEST), bound_of(stage, last, kind, LATEST)
        plan = Plan(topic_filters, start, end, partitions=partitions, on_loss="skip" if skips else "fail")
        interruptions = iter(meanwhile)
        rows: list[Known] = []
        expected = stage.expected(topic_filters, *within(stage, plan))
        try:
            _, parts = stage.view.plan(plan)
            for ticket, _ in parts:
                for step in next(interruptions, []):
                    change(stage, *step)
                for batch in stage.view.scan(ticket):
                    rows += knowns(batch)
                    for step in next(interruptions, []):
                        change(stage, *step)
        except HistoryError as error:
            assert error.problem.code == "data-loss"
            assert not skips
            assert all(gap.wanted < gap.kept - 1 for gap in error.problem.gaps.values())
            assert set(rows) <= set(expected)
            return

        if skips:
            kept = {each for each in expected if each.position >= stage.floor(each)}
            assert kept <= set(rows) <= set(expected)
            assert len(rows) == len(set(rows))
        else:
            assert sorted(rows) == expected
        assert is_ordered_by_topic(rows)
