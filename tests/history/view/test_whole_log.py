"""The view of a cluster with several cores: any of them answers for all shards, or says which core is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import UsageError
from braidmq.base.units import Seconds
from braidmq.flight.wire import LATEST, Advance, AskBacklog, Plan, RangeBound, ShardGap, from_wire
from braidmq.history.service.errors import HistoryError
from braidmq.history.view import core_requests
from tests.history.clustered import CORES, TwoCores, viewed_by_two_cores
from tests.history.staged import SECOND, Viewed

ENTRIES = [(shard, topic) for topic in ("a", "b/1", "b/2") for shard in (0, 1) * 5]


@pytest.fixture
def viewed(tmp_path: Path) -> Iterator[tuple[Viewed, TwoCores]]:
    with viewed_by_two_cores(tmp_path) as (stage, cores):
        yield stage, cores


def test_any_core_reports_the_shards_of_all(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES, (1, "c"))

    one, two = (view.shards() for view in cores.cores.values())

    assert one.log == two.log == stage.log.log_id.hex()
    assert one.shards == two.shards
    assert {shard: state.records for shard, state in one.shards.items()} == {"0": 15, "1": 16}
    assert {int(shard): state.latest for shard, state in one.shards.items()} == stage.heard


@pytest.mark.parametrize("asked", CORES)
def test_any_core_plans_a_read_of_all_and_says_where_each_part_is(viewed: tuple[Viewed, TwoCores], asked: str) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    cores.asked = cores.cores[asked]

    planned, parts = cores.plan(Plan(["b/#"], columns=["topic", "payload", "shard", "position"]))

    assert sorted(stage.rows_of(parts)) == stage.expected(["b/#"], {0: 0, 1: 0}, stage.heard)
    assert {(ticket.shard, ticket.core, ticket.location) for ticket, _ in parts} == {
        (0, "one", "grpc://one:8815"),
        (1, "two", "grpc://two:8815"),
    }
    assert from_wire(planned.end) == stage.heard


def test_a_plan_that_one_core_has_made_goes_on_at_another(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    before = stage.heard
    end = cores.cores["one"].plan(Plan(["#"]))[0].end
    stage.publish_all((1, "later"), (0, "later"))

    _, parts = cores.cores["two"].plan(Plan(["#"], RangeBound(positions=end)))

    assert sorted(stage.rows_of(parts)) == stage.expected(["#"], before, stage.heard)
    assert [row.topic for row in stage.rows_of(parts)] == ["later", "later"]


def test_a_number_of_parts_is_that_of_all_cores_together(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*[(0, "a")] * 90, *[(1, "a")] * 30)

    parts = cores.plan(Plan(["#"], partitions=8))[1]

    shards = [ticket.shard for ticket, _ in parts]
    assert shards.count(0) == 6
    assert shards.count(1) == 2
    assert len(stage.rows_of(parts)) == 120


def test_records_that_match_are_counted_over_all_cores(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    starts = {"0": stage.known[2].position}  # after the second record of shard 0

    assert cores.backlog(AskBacklog(["a", "b/1"], starts)).rows == 18


@pytest.mark.parametrize("position", ["7", "2"])
def test_positions_in_shards_that_no_core_leads_are_refused(viewed: tuple[Viewed, TwoCores], position: str) -> None:
    _, cores = viewed

    for call in (
        lambda: cores.plan(Plan(["#"], RangeBound(positions={position: 5}))),
        lambda: cores.advance(Advance(["#"], {position: 5})),
        lambda: cores.backlog(AskBacklog(["#"], {}, {position: 5})),
    ):
        with pytest.raises(UsageError, match=rf"2 shards and no shard {position}"):
            call()


def test_nothing_is_answered_for_a_part_of_the_log_and_the_core_that_is_away_is_named(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    tickets = [ticket for ticket, _ in cores.plan(Plan(["#"]))[1]]
    cores.away.add("two")

    for call in (
        cores.shards,
        lambda: cores.plan(Plan(["#"])),
        lambda: cores.plan(Plan(["#"], partitions=4)),
        lambda: cores.advance(Advance(["#"], {}, rows_max=3)),
        lambda: cores.backlog(AskBacklog(["#"], {})),
    ):
        with pytest.raises(HistoryError, match="core two is away") as caught:
            call()
        assert caught.value.problem.code == "unavailable"
    own = [ticket for ticket in tickets if ticket.core == "one"]
    assert sum(batch.num_rows for ticket in own for batch in cores.scan(ticket)) == 15


def test_a_part_is_not_read_at_a_core_that_does_not_lead_its_shard(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    foreign = next(ticket for ticket, _ in cores.plan(Plan(["#"]))[1] if ticket.core == "two")

    with pytest.raises(HistoryError, match=r"shard 1 is led by core two: read this part there at grpc://two:8815"):
        list(cores.cores["one"].scan(foreign))


def test_what_retention_has_deleted_is_told_of_all_cores(tmp_path: Path) -> None:
    with viewed_by_two_cores(tmp_path, retention_s=Seconds(10)) as (stage, cores):
        stage.publish_all(*[(shard, "a") for shard in (0, 1) * 8])
        first = {shard: next(row.position for row in stage.known if row.shard == shard) for shard in (0, 1)}
        stage.hands.move(60 * SECOND)
        stage.publish_all((0, "a"), (1, "a"))
        stage.log.retain()
        start = {str(shard): position for shard, position in first.items()}

        with pytest.raises(HistoryError) as caught:
            cores.plan(Plan(["#"], RangeBound(positions=start)))
        planned, _ = cores.plan(Plan(["#"], RangeBound(positions=start), on_loss="skip"))

        assert caught.value.problem.code == "data-loss"
        assert caught.value.problem.gaps == planned.gaps
        assert {shard: gap.wanted for shard, gap in planned.gaps.items()} == start
        assert all(isinstance(gap, ShardGap) and gap.kept > gap.wanted for gap in planned.gaps.values())


def test_very_many_parts_of_one_core_are_planned_again_with_fewer(
    viewed: tuple[Viewed, TwoCores], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, cores = viewed
    stage.publish_all(*[(0, "a")] * 60)
    monkeypatch.setattr(core_requests, "PARTS_MAX", 10)
    monkeypatch.setattr(core_requests, "_GOOD_PARTS", 5)

    parts = cores.plan(Plan(["#"], part_rows_max=1))[1]

    assert len(parts) == 5
    assert len(stage.rows_of(parts)) == 60


@pytest.mark.parametrize("request_bytes", [b"", b"\xc1", msgspec.msgpack.encode(["AskRows", 1])])
def test_a_request_of_another_version_is_answered_with_a_problem(viewed: tuple[Viewed, TwoCores], request_bytes: bytes) -> None:
    _, cores = viewed
    own = core_requests.OwnShards(cores.views["one"], lambda: "")

    with pytest.raises(HistoryError, match="of another version of braidmq") as caught:
        core_requests.decode_answer("one", own.answer_bytes(request_bytes), core_requests.ToldShards)
    assert caught.value.problem.code == "unavailable"
    with pytest.raises(HistoryError, match="the answer of core two is invalid"):
        core_requests.decode_answer("two", b"\xc1", core_requests.ToldShards)


def test_two_logs_are_never_shown_as_one(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)
    other = msgspec.structs.replace(cores.views["two"].shards(), log="00" * 16)
    told = msgspec.msgpack.encode(core_requests.ToldShards(other))
    view = cores.cores["one"]
    view._ask_core = lambda core, request: told

    with pytest.raises(HistoryError, match="core two has the log 0000"):
        view.shards()


def test_latest_is_the_end_of_all_cores(viewed: tuple[Viewed, TwoCores]) -> None:
    stage, cores = viewed
    stage.publish_all(*ENTRIES)

    assert cores.plan(Plan(["#"], LATEST))[1] == []
