"""The view of a log: what it shows, when it waits or rejects, and that it costs nothing while there are no readers."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pytest

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.columns import SCHEMA
from braidmq.flight.wire import EARLIEST, LATEST, Advance, Plan, RangeBound, ShardGap, Ticket, from_wire
from braidmq.history.scanning import epoch_reading as scanning
from braidmq.history.service.errors import HistoryError
from braidmq.history.view import follower, log_view
from braidmq.history.view.log_view import LogView
from braidmq.storage.format.rows import EpochLimits
from tests.history.staged import SECOND, Viewed, knowns
from tests.storage.log import NOON

DEADLINE_S = 10.0
SHORT = {"short": HistoryClassSettings(topics=("x/#",), retention=Seconds(20.0), retention_bytes="")}


def code_of(caught: pytest.ExceptionInfo[HistoryError]) -> str:
    return caught.value.problem.code


def only_ticket(stage: Viewed, plan: Plan) -> Ticket:
    ((ticket, _),) = stage.view.plan(plan)[1]
    return ticket


# What there is


def test_shards_report_their_first_and_last_position_and_record_count(tmp_path: Path) -> None:
    with Viewed(tmp_path, retention_s=10) as stage:
        stage.publish_all(*[(0, "a")] * 8)
        assert stage.view.shards().shards["0"].records == 8
        stage.hands.move(60 * SECOND)
        stage.publish_all(*[(0, "a")] * 3, (1, "b"))
        stage.log.retain()
        stage.catch_up()

        shards = stage.view.shards()

        assert shards.log == stage.log.log_id.hex()
        assert {shard: state.records for shard, state in shards.shards.items()} == {"0": 3, "1": 1}
        assert shards.shards["0"].earliest == stage.known[7].position
        assert {int(shard): state.latest for shard, state in shards.shards.items()} == stage.heard
        assert shards.shards["1"].earliest == 0


def test_an_empty_log_has_shards_and_nothing_to_read(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.hear()

        assert [state.records for state in stage.view.shards().shards.values()] == [0, 0]
        assert stage.rows(Plan(["#"])) == []
        assert from_wire(stage.view.advance(Advance(["#"], {}, rows_max=5)).end) == {0: 0, 1: 0}


def test_records_that_the_node_has_not_reported_as_committed_are_not_shown(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"), (1, "a"))
        stage.write((0, "b"), (1, "b"))
        stage.catch_up()

        assert {row.topic for row in stage.rows(Plan(["#"]))} == {"a"}

        stage.hear()
        assert {row.topic for row in stage.rows(Plan(["#"]))} == {"a", "b"}


def test_a_range_by_time_has_what_was_stored_from_its_beginning_to_before_its_end(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 8])
        times = sorted(row.position for row in stage.known)

        rows = stage.rows(Plan(["#"], RangeBound(time=times[3]), RangeBound(time=times[9])))

        assert sorted(row.position for row in rows) == [each for each in times if times[3] <= each < times[9]]
        assert stage.rows(Plan(["#"], RangeBound(time=times[-1] + 1))) == []
        assert stage.rows(Plan(["#"], LATEST)) == []
        assert stage.rows(Plan(["#"], end=EARLIEST)) == []


def test_positions_are_for_the_shards_that_they_name_and_the_others_are_read_whole(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"), (1, "a"), (0, "a"), (1, "a"))
        first = stage.known[0]

        planned, _ = stage.view.plan(Plan(["#"], RangeBound(positions={"0": first.position})))

        rows = stage.rows(Plan(["#"], RangeBound(positions={"0": first.position})))
        assert sorted(row.number for row in rows) == [1, 2, 3]
        assert from_wire(planned.start)[0] == first.position
        assert from_wire(planned.end) == stage.heard


def test_columns_come_as_they_are_chosen_and_with_the_types_of_the_schema(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((1, "a/b"))
        columns = ["position", "shard", "topic", "store_timestamp"]

        (batch,) = stage.view.scan(only_ticket(stage, Plan(["#"], columns=columns)))
        (whole,) = stage.view.scan(only_ticket(stage, Plan(["#"])))

        assert batch.schema == pa.schema([SCHEMA.field(name) for name in columns])
        assert batch.column("store_timestamp").cast(pa.int64()) == batch.column("position")
        assert (batch.column("shard").to_pylist(), batch.column("topic").to_pylist()) == ([1], ["a/b"])
        assert whole.schema == SCHEMA


def test_the_first_batch_is_small_and_later_ones_are_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=EpochLimits(count_max=50_000)) as stage:
        stage.write(*[(0, "a")] * 20_000)
        stage.write(*[(0, "b" * 60_000)] * 100)
        stage.hear()

        batches = [*stage.view.scan(only_ticket(stage, Plan(["#"])))]

        assert batches[0].num_rows == 1024
        assert batches[1].num_rows == 8192
        assert max(batch.num_rows for batch in batches) <= 32_768
        assert max(batch.nbytes for batch in batches) < 5 * 1024 * 1024
        assert sum(batch.num_rows for batch in batches) == 20_100


def test_parts_are_as_many_as_are_asked_for(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=EpochLimits(count_max=10)) as stage:
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 100])

        assert len(stage.view.plan(Plan(["#"], partitions=8))[1]) == 8
        assert len(stage.view.plan(Plan(["#"]))[1]) == 2


def test_parts_have_about_the_size_that_is_asked_for(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=EpochLimits(count_max=10)) as stage:
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 100])

        parts = stage.view.plan(Plan(["#"], part_rows_max=25))[1]

        assert all(part.rows_max <= 30 for _, part in parts), "epochs of ten are put together up to the size"
        assert len(stage.rows_of(parts)) == 200


def test_a_plan_omits_empty_parts_and_knows_the_rows_of_the_others(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(shard, f"t/{number}/x") for number in range(40) for shard in (0, 1)], (1, "t/7/x"))

        _, parts = stage.view.plan(Plan(["t/7/x"], partitions=2))

        assert sorted((part.shard, part.rows_max) for _, part in parts) == [(0, 1), (1, 2)]
        assert stage.view.plan(Plan(["nothing/of/it"]))[1] == []


# Loss


def test_a_start_below_the_floor_is_reported_with_its_gap_or_skipped(tmp_path: Path) -> None:
    with Viewed(tmp_path, retention_s=10) as stage:
        stage.publish_all(*[(0, "a")] * 8)
        stage.hands.move(60 * SECOND)
        stage.publish_all(*[(0, "a")] * 3)
        stage.log.retain()
        stage.catch_up()
        wanted, floor = stage.known[1].position, stage.known[7].position + 1
        start = RangeBound(positions={"0": wanted, "1": 0})

        with pytest.raises(HistoryError, match="retention has removed") as caught:
            stage.view.plan(Plan(["#"], start))
        planned, parts = stage.view.plan(Plan(["#"], start, on_loss="skip"))

        assert code_of(caught) == "data-loss"
        assert caught.value.problem.gaps == planned.gaps == {"0": ShardGap(wanted, floor)}
        assert [row.number for row in stage.rows_of(parts)] == [8, 9, 10]
        assert [row.number for row in stage.rows(Plan(["#"]))] == [8, 9, 10]
        # The last record that was removed: nothing later than it is missing.
        assert len(stage.rows(Plan(["#"], RangeBound(positions={"0": floor - 1, "1": 0})))) == 3


@pytest.mark.parametrize("on_loss", ["fail", "skip"])
def test_records_deleted_between_the_plan_and_the_read_are_reported_or_skipped(tmp_path: Path, on_loss: str) -> None:
    with Viewed(tmp_path, retention_s=10) as stage:
        stage.publish_all(*[(0, "a")] * 8)
        stage.hands.move(60 * SECOND)
        stage.publish_all(*[(0, "a")] * 3)
        ticket = only_ticket(stage, Plan(["#"], on_loss=on_loss))  # type: ignore[arg-type]
        stage.log.retain()
        stage.catch_up()

        if on_loss == "skip":
            assert [row.number for batch in stage.view.scan(ticket) for row in knowns(batch)] == [8, 9, 10]
        else:
            with pytest.raises(HistoryError) as caught:
                [*stage.view.scan(ticket)]
            assert caught.value.problem.gaps == {"0": ShardGap(ticket.start, stage.known[7].position + 1)}


def test_a_class_with_shorter_retention_is_not_a_loss_for_readers_that_start_at_the_beginning(tmp_path: Path) -> None:
    with Viewed(tmp_path, retention_s=100, classes=SHORT) as stage:
        stage.publish_all(*[(0, topic) for topic in ("a", "x/1") * 6])
        stage.hands.move(60 * SECOND)
        stage.publish_all((0, "a"), (0, "x/1"))
        stage.log.retain()
        stage.catch_up()
        plan = Plan(["#"], partitions=4)

        _, parts = stage.view.plan(plan)

        assert len(parts) > 1
        # Of the class the first epoch of four records is gone, the one after it has a new record.
        assert sorted(row.number for row in stage.rows_of(parts)) == [0, 2, 4, 6, 8, 9, 10, 11, 12, 13]

        # But what goes after the plan was made is a loss, in the class and in the log itself.
        stage.hands.move(60 * SECOND)
        stage.publish_all((0, "a"))
        stage.log.retain()
        stage.catch_up()
        with pytest.raises(HistoryError) as caught:
            stage.rows_of(parts)
        assert code_of(caught) == "data-loss"


def test_filters_that_a_class_cannot_match_do_not_miss_what_it_has_lost(tmp_path: Path) -> None:
    with Viewed(tmp_path, retention_s=1000, classes=SHORT) as stage:
        stage.publish_all(*[(0, topic) for topic in ("a", "x/1") * 6])
        start = RangeBound(positions={"0": stage.known[2].position})
        stage.hands.move(60 * SECOND)
        stage.log.retain()
        stage.publish_all((0, "a"))

        assert [row.number for row in stage.rows(Plan(["a"], start))] == [4, 6, 8, 10, 12]
        with pytest.raises(HistoryError, match="retention"):
            stage.view.plan(Plan(["#"], start))


def test_a_slow_reader_gets_new_iterators_misses_nothing_and_learns_of_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_ITERATOR_AGE_MAX_S", -1.0)
    with Viewed(tmp_path, limits=EpochLimits(count_max=5000), retention_s=10) as stage:
        stage.publish_all(*[(0, f"t/{number % 7}") for number in range(4000)])
        ticket = only_ticket(stage, Plan(["#"]))

        rows = [row for batch in stage.view.scan(ticket) for row in knowns(batch)]
        assert sorted(row.number for row in rows) == [*range(4000)]

        batches = stage.view.scan(ticket)
        next(batches)
        stage.hands.move(60 * SECOND)
        stage.log.retain()
        stage.catch_up()
        with pytest.raises(HistoryError) as caught:
            list(batches)
        assert code_of(caught) == "data-loss"


# Refusals


def test_a_ticket_of_another_log_is_refused(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))

        with pytest.raises(HistoryError) as caught:
            [*stage.view.scan(Ticket("00" * 16, ["#"], 0, 0, stage.heard[0]))]

        assert code_of(caught) == "other-log"


@pytest.mark.parametrize(
    "plan",
    [
        Plan(["#"], columns=["colour"]),
        Plan(["#"], columns=[]),
        Plan(["#"], RangeBound(positions={"7": 1})),
        Plan(["#"], end=RangeBound(positions={"7": 1})),
        Plan(["#"], RangeBound(positions={"one": 1})),
        Plan(["#"], RangeBound(positions={"0": -1})),
    ],
    ids=repr,
)
def test_an_invalid_plan_is_a_bad_request(tmp_path: Path, plan: Plan) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))

        with pytest.raises(HistoryError) as caught:
            stage.view.plan(plan)

        assert code_of(caught) == "bad-request"


def test_a_ticket_for_missing_records_is_rejected(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))
        log = stage.log.log_id.hex()

        for ticket in (Ticket(log, ["#"], 9, 0, 0), Ticket(log, ["#"], 0, 0, stage.heard[0], ["colour"])):
            with pytest.raises(HistoryError) as caught:
                [*stage.view.scan(ticket)]
            assert code_of(caught) == "bad-request"


def test_an_end_that_is_not_served_yet_is_waited_for(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))
        stage.write((0, "b"))
        ticket = Ticket(stage.log.log_id.hex(), ["#"], 0, 0, stage.known[-1].position)
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.extend(row.topic for b in stage.view.scan(ticket) for row in knowns(b)))
        reader.start()

        stage.hear()

        reader.join(DEADLINE_S)
        assert found == ["a", "b"]


def test_an_end_that_is_not_committed_in_time_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "_WAIT_S", 0.05)
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))
        beyond = stage.heard[0] + 1

        with pytest.raises(HistoryError) as by_ticket:
            [*stage.view.scan(Ticket(stage.log.log_id.hex(), ["#"], 0, 0, beyond))]
        with pytest.raises(HistoryError) as by_plan:
            stage.view.plan(Plan(["#"], end=RangeBound(positions={"0": beyond})))

        assert code_of(by_ticket) == code_of(by_plan) == "unavailable"


def test_a_log_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    view = LogView.open(tmp_path / "nowhere", tmp_path / "scratch")

    with pytest.raises(HistoryError, match="no log") as caught:
        view.shards()

    assert code_of(caught) == "unavailable"


# Opening and closing


def wait_until(stage: Viewed, is_open: bool) -> None:
    changed = stage.view._follower._changed
    with changed:
        assert changed.wait_for(lambda: stage.view._follower.is_open == is_open, DEADLINE_S)


def test_the_log_is_opened_by_the_first_read_and_closed_after_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_CATCH_UP_EVERY_S", 0.01)
    with Viewed(tmp_path, idle_s=0.2) as stage:
        stage.publish_all((0, "a"))
        was_open = stage.view._follower.is_open

        began = monotonic()
        assert len(stage.rows(Plan(["#"]))) == 1
        assert (was_open, stage.view._follower.is_open) == (False, True)
        wait_until(stage, is_open=False)

        assert monotonic() - began >= 0.2
        stage.publish_all((0, "b"))
        assert len(stage.rows(Plan(["#"]))) == 2


def test_a_read_that_is_under_way_keeps_the_log_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_CATCH_UP_EVERY_S", 0.01)
    with Viewed(tmp_path, idle_s=0.0, limits=EpochLimits(count_max=5000)) as stage:
        stage.publish_all(*[(0, "a")] * 3000)
        batches = stage.view.scan(only_ticket(stage, Plan(["#"])))
        rows = next(batches).num_rows
        caught_up = stage.view._follower._current
        stage.publish_all((1, "b"))
        # Over several rounds of the thread that would close it.
        stage.view.shards()

        assert stage.view._follower._current is caught_up
        assert rows + sum(batch.num_rows for batch in batches) == 3000
        del batches
        wait_until(stage, is_open=False)


def test_an_abandoned_read_releases_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_CATCH_UP_EVERY_S", 0.01)
    with Viewed(tmp_path, idle_s=0.0, limits=EpochLimits(count_max=5000)) as stage:
        stage.publish_all(*[(0, "a")] * 3000)
        batches = stage.view.scan(only_ticket(stage, Plan(["#"])))
        next(batches)

        batches.close()

        wait_until(stage, is_open=False)


def test_an_open_view_catches_up_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_CATCH_UP_EVERY_S", 0.01)
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))
        stage.view.shards()
        stage.publish_all((0, "b"))
        opened = stage.view._follower._current
        assert opened is not None

        deadline = monotonic() + DEADLINE_S
        while opened.served.get(0) != stage.heard[0]:
            assert monotonic() < deadline


def test_a_family_that_is_made_later_is_read_after_the_log_was_opened_again(tmp_path: Path) -> None:
    """H1: a secondary fails for good once the primary makes a family and writes to it."""
    with Viewed(tmp_path) as stage:
        stage.publish_all((0, "a"))
        assert len(stage.rows(Plan(["#"]))) == 1
        view = stage.view
        stage.log.close()

        with Viewed(tmp_path, classes=SHORT) as again:
            again.publish_all((0, "x/1"))
            again.log.checkpoint(tmp_path / "flushed")
            view.on_watermarks(again.heard)
            for _ in range(2):
                try:
                    _, parts = view.plan(Plan(["#"]))
                    break
                except HistoryError as error:
                    assert error.problem.code == "unavailable"
            rows = [row for ticket, _ in parts for batch in view.scan(ticket) for row in knowns(batch)]

            assert {row.topic for row in rows} == {"a", "x/1"}
            view.close()


def test_many_threads_may_read_while_the_log_grows(tmp_path: Path) -> None:
    with Viewed(tmp_path) as stage:
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 20])
        problems: list[object] = []
        over = threading.Event()

        def read() -> None:
            last = 0
            while not over.is_set():
                rows = stage.rows(Plan(["a", "+/b"], partitions=3))
                numbers = sorted(row.number for row in rows)
                if len(set(numbers)) != len(numbers) or len(numbers) < last:
                    problems.append(numbers)
                last = len(numbers)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            stage.publish_all(*[(shard, "a/b") for shard in (0, 1) * 5])
        over.set()
        for thread in threads:
            thread.join()

        assert problems == []
        assert len(stage.rows(Plan(["#"]))) == 240


def test_positions_are_times_so_that_a_message_about_a_loss_says_when(tmp_path: Path) -> None:
    with Viewed(tmp_path, retention_s=10) as stage:
        stage.publish_all(*[(0, "a")] * 4)
        stage.hands.move(60 * SECOND)
        stage.log.retain()
        stage.publish_all((0, "a"))

        with pytest.raises(HistoryError, match=r"shard 0 after \d+ \(2023-11-14 22:13:20\.000 UTC\)"):
            stage.view.plan(Plan(["#"], RangeBound(time=NOON + 1)))
