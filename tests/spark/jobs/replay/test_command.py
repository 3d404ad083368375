"""Replays that go on: the range is the same for every run of a name, and what was published before is not waited for."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import Row

from braidmq.base.errors import UsageError
from braidmq.flight import connect
from braidmq.flight.errors import DataLoss
from braidmq.spark.jobs.framework.job import HistoryOptions
from braidmq.spark.jobs.replay import command as replay
from braidmq.spark.jobs.replay.command import SENT, OtherRows, Replayer
from braidmq.spark.jobs.replay.pacing import Pacer, TopicMap
from braidmq.spark.jobs.replay.range import ReplayRange, settle
from braidmq.spark.sink.options import parse_write_options
from tests.spark.driving import at, batch_reader, read_positions
from tests.spark.jobs.replay.fake_time import FakeTime
from tests.support.fakes.history_service import BEGINNING, FakeHistoryService


class FakePublisher:
    """Takes rows; an earlier attempt had published some of them."""

    resumed_at = 0
    is_done = False
    fails: UsageError | None = None

    def __init__(self, *_: Any) -> None:
        self.rows = 0

    def open(self) -> None:
        pass

    def add(self, batch: Any) -> None:
        self.rows += len(batch)

    def finish(self) -> None:
        if self.fails:
            raise self.fails

    def close(self) -> None:
        pass


def a_row(seconds: int) -> Row:
    stored = datetime(2024, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    values = dict.fromkeys(SENT) | {"topic": "a", "payload": b"x", "qos": 1, "retain": False, "store_timestamp": stored}
    return Row(**values)


def replayed(monkeypatch: pytest.MonkeyPatch, resumed_at: int, **pace: float) -> tuple[Replayer, float]:
    """Replay a row for each of ten times ten seconds; gives how long that took."""
    monkeypatch.setattr(FakePublisher, "resumed_at", resumed_at)
    monkeypatch.setattr(replay, "RowPublisher", FakePublisher)
    fake = FakeTime()
    pacer: Pacer[Row] = Pacer(lambda row: row["store_timestamp"].timestamp(), clock=fake.clock, sleep=fake.sleep, **pace)
    options = parse_write_options({"servers": "h:1"})
    replayer = Replayer(options, TopicMap(), pacer, name="again", skips_refused=False)
    for _ in replayer.run(a_row(10 * number) for number in range(10)):
        pass
    return replayer, fake.now - 100.0


@pytest.mark.parametrize(("resumed_at", "speed_s", "rate_s"), [(0, 90, 18), (7, 20, 4), (10, 0, 0)])
def test_rows_that_an_earlier_run_has_published_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, resumed_at: int, speed_s: float, rate_s: float
) -> None:
    replayer, took_s = replayed(monkeypatch, resumed_at, speed=1.0)

    assert took_s == pytest.approx(speed_s)
    assert (replayer.published, replayer.resumed) == (10 - resumed_at, resumed_at)
    assert replayed(monkeypatch, resumed_at, rate=0.5)[1] == pytest.approx(rate_s)


def test_a_run_of_the_same_name_with_other_rows_names_the_option_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = UsageError("row 3 is not the one that an earlier attempt published as its last", "give keyColumn, if ...")
    monkeypatch.setattr(FakePublisher, "fails", problem)

    with pytest.raises(OtherRows, match=r"row 3 is not the one .*: use the --from and --to .*, or another --name") as told:
        replayed(monkeypatch, 0)

    assert "keyColumn" not in str(told.value)


def test_relative_times_become_those_of_the_clock_of_the_service(history: FakeHistoryService) -> None:
    history.add("a", at=at(7200))

    with connect(history.address) as client:
        settled = settle("-1h", "-30m", client)

    assert settled == ReplayRange("2023-11-14T23:13:20.000000Z", "2023-11-14T23:43:20.000000Z")
    assert settle("-1h", "latest", None).end == "latest"
    assert settle("2024-03-01T12:00:00Z", "1700000000123", None) == ReplayRange(
        "2024-03-01T12:00:00.000000Z", "2023-11-14T22:13:20.123000Z"
    )


def rows_of(history: FakeHistoryService, settled: ReplayRange) -> list[int]:
    options = HistoryOptions(servers=history.address, filters=("#",)).reader_options(settled.options())
    reader = batch_reader(history, **options)
    return read_positions(reader, reader.partitions())


@pytest.mark.parametrize("floor", [0, BEGINNING + 2_500_000], ids=["all kept", "some gone"])
def test_the_next_run_reports_what_retention_deleted_from_the_start_of_a_replay(history: FakeHistoryService, floor: int) -> None:
    history.add_many("a", 5, shard=0)
    history.add_many("b", 5, shard=1)
    history.expire(floor)
    history.floors[1] = 0
    with connect(history.address) as client:
        settled = settle("earliest", "latest", client).until(at(8))
    words = shlex.split(settled.words())
    expected = [row["position"] for row in history.rows() if row["position"] <= at(8)]

    history.add_many("a", 3, shard=0)

    assert words[::2] == ["--from", "--to"]
    assert ReplayRange(words[1], words[3]) == settled
    assert rows_of(history, settled) == expected

    history.expire(at(4))

    with pytest.raises(DataLoss):
        rows_of(history, settled)


@pytest.mark.parametrize("option", ["startingTimestamp=-1h", "ENDINGOFFSETS=latest"])
def test_an_option_for_the_range_is_refused_for_the_flags(option: str) -> None:
    told = CliRunner().invoke(replay.command, ["h:1", "-o", option], catch_exceptions=False)

    assert told.exit_code == 1
    assert "give --from and --to" in told.output
