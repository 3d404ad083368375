"""`decode` of Sparkplug B over several runs: metrics that come as an alias get the name of the birth before them, exactly once.

Payloads are written by hand, field by field, after the protobuf schema of the specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from braidmq.base.errors import UsageError
from braidmq.spark.jobs import decode
from braidmq.spark.jobs.sparkplug.state import KeptBirths
from braidmq.spark.jobs.tables.parquet_table import ParquetTable
from braidmq.spark.jobs.tables.tables import Kind, open_table
from tests.spark.jobs.sparkplug.payloads import data, number
from tests.support.fakes.history_service import FakeHistoryService

pytestmark = pytest.mark.timeout(180)

INT64, UINT64, STRING = 4, 8, 12
# timestamp 1; metric { name "temp", alias 5, timestamp 2, datatype Int32, int_value 21 }; seq 0.
GOLDEN_BIRTH = bytes.fromhex("0801 120e 0a0474656d70 1005 1802 2003 5015 1800")
# timestamp 3; metric { alias 5, timestamp 4, int_value 4294967291 }, which is -5 in 32 bits; seq 1.
GOLDEN_DATA = bytes.fromhex("0803 120a 1005 1804 50fbffffff0f 1801")

Run = Callable[..., str]


def born(*metrics: tuple[str, int | None, int], bd_seq: int | None = None) -> bytes:
    """A birth: names, aliases and datatypes."""
    parts = [
        data(1, name.encode()) + (b"" if alias is None else number(2, alias)) + number(4, kind) for name, alias, kind in metrics
    ]
    return number(1, 1) + counted(bd_seq) + b"".join(data(2, part) for part in parts) + number(3, 0)


def counted(bd_seq: int | None) -> bytes:
    return b"" if bd_seq is None else data(2, data(1, b"bdSeq") + number(4, UINT64) + number(11, bd_seq))


def values(*metrics: tuple[int, int]) -> bytes:
    """Data: aliases and whole numbers, as 64 bits."""
    return number(1, 1) + b"".join(data(2, number(2, alias) + number(11, value)) for alias, value in metrics) + number(3, 1)


@pytest.fixture
def run(spark: SparkSession, history: FakeHistoryService, tmp_path: Path) -> Run:
    """Run the job to the end of history; gives what it printed. It must end well, unless a failure is expected."""

    def run(*arguments: str, fails: bool = False) -> str:
        given = [str(tmp_path / "out"), "--format", "sparkplug", "--servers", history.address, *arguments]
        result = CliRunner().invoke(decode.command, given, catch_exceptions=False)
        assert (result.exit_code != 0) == fails, result.output
        return result.output

    return run


def rows_in(spark: SparkSession, out: Path, kind: Kind = "parquet") -> list[Any]:
    return open_table(kind, str(out), ["date"]).read(spark).orderBy("position", "alias").collect()


def named(spark: SparkSession, out: Path) -> list[tuple[Any, ...]]:
    """Data and commands in the order of positions: device, alias, name, value."""
    rows = [row for row in rows_in(spark, out) if row["message_type"].endswith(("DATA", "CMD"))]
    return [(row["device"], row["alias"], row["metric"], row["long_value"]) for row in rows]


def unnamed_in(told: str) -> int:
    found = re.search(r"without a name +│ (\d+)", told)
    assert found is not None, told
    return int(found[1])


def in_one_line(told: str) -> str:
    """A table without its lines."""
    return re.sub(r"[\s│]+", " ", told)


def test_golden_bytes_of_a_birth_name_the_golden_bytes_of_data_in_a_later_run(
    spark: SparkSession, history: FakeHistoryService, run: Run, tmp_path: Path
) -> None:
    history.add("spBv1.0/plant/NBIRTH/edge", GOLDEN_BIRTH, shard=0)
    first = run()
    history.add("spBv1.0/plant/NDATA/edge", GOLDEN_DATA, shard=0)
    second = run()

    [born_row, row] = rows_in(spark, tmp_path / "out")
    assert (born_row["metric"], born_row["alias"], born_row["datatype"], born_row["long_value"]) == ("temp", 5, "Int32", 21)
    assert (row["metric"], row["alias"], row["datatype"]) == ("temp", 5, "Int32")
    assert (row["long_value"], row["double_value"], row["seq"]) == (-5, -5.0, 1)
    assert "is_unresolved" not in row.asDict()
    assert (unnamed_in(first), unnamed_in(second)) == (0, 0)


def test_each_alias_has_the_name_of_the_birth_before_it_and_none_without_one(
    spark: SparkSession, history: FakeHistoryService, run: Run, tmp_path: Path
) -> None:
    def add(kind: str, payload: bytes, edge: str = "edge", shard: int = 0) -> None:
        history.add(f"spBv1.0/plant/{kind}/{edge}", payload, shard=shard)

    add("NDATA", values((5, 1)))  # nobody was born yet
    add("NBIRTH", born(("a", 5, INT64), ("text", None, STRING), bd_seq=0))
    add("DBIRTH", born(("x", 7, INT64)), "edge/d1")
    add("NBIRTH", born(("other", 5, INT64)), "edge2")
    add("NDATA", values((5, -2)))
    add("DDATA", values((7, 3), (9, 4)), "edge/d1")
    add("DDATA", values((7, 5)), "edge/d2")  # another device, which was not born
    add("NDATA", values((5, 6)), "edge2")
    first = run()
    add("DDATA", values((7, 7)), "edge/d1")
    add("NDEATH", number(1, 1) + counted(200))  # the will of an earlier connection
    add("DCMD", values((7, 8)), "edge/d1", shard=1)
    add("DBIRTH", born(("y", 7, INT64)), "edge/d1")
    add("DDATA", values((7, 9)), "edge/d1")
    add("DDEATH", number(1, 1) + number(3, 9), "edge/d1")
    add("DDATA", values((7, 10)), "edge/d1")
    add("NDATA", values((5, 11)))
    add("NBIRTH", born(("b", 5, INT64), bd_seq=1))
    add("NDATA", values((5, 12)) + data(2, data(1, b"b") + number(11, -13)))
    add("NDEATH", number(1, 1) + counted(1))
    add("NDATA", values((5, 14)))
    add("NDATA", values((5, 15)), "edge/d1")  # no topic of the specification, as little as the next
    history.add("short", values((5, 16)), shard=0)
    second = run("--batch-rows", "5")

    assert named(spark, tmp_path / "out") == [
        (None, 5, None, 1),
        (None, 5, "a", -2),
        ("d1", 7, "x", 3),
        ("d1", 9, None, 4),
        ("d2", 7, None, 5),
        (None, 5, "other", 6),
        ("d1", 7, "x", 7),
        ("d1", 7, "x", 8),
        ("d1", 7, "y", 9),
        ("d1", 7, None, 10),
        (None, 5, "a", 11),
        (None, None, "b", -13),
        (None, 5, "b", 12),
        (None, 5, None, 14),
    ]
    assert (unnamed_in(first), unnamed_in(second)) == (3, 2)
    assert "start earlier (--from), or request a rebirth" in in_one_line(first)
    assert len(ParquetTable(str(tmp_path / "out.quarantine")).read(spark).collect()) == 2
    # What is kept is who is alive, and not all that ever was.
    kept = sorted((tmp_path / "out.checkpoint" / "births").iterdir())
    assert len(kept) <= 2
    [alive] = spark.read.parquet(str(kept[-1])).collect()
    assert (alive["edge_node"], alive["device"], [each["name"] for each in alive["metrics"]]) == ("edge2", None, ["other"])


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, *, done: bool) -> None:
    """Let one call of a method, counted from 1, fail: after it has done its work, or before."""
    real: Callable[..., Any] = getattr(owner, name)
    left = [call]

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return real(*arguments)
        if done:
            real(*arguments)
        raise UsageError("the driver dies here")

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "call", "done"),
    [
        (KeptBirths, "write", 1, False),
        (KeptBirths, "write", 1, True),
        (ParquetTable, "append", 2, True),
    ],
    ids=["births not kept", "births kept, no rows", "all but Spark's own note"],
)
def test_a_batch_that_is_done_again_after_a_crash_begins_with_what_was_known_before_it(
    spark: SparkSession,
    history: FakeHistoryService,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    call: int,
    done: bool,
) -> None:
    history.add("spBv1.0/plant/NBIRTH/edge", born(("before", 5, INT64)), shard=0)
    run()
    history.add("spBv1.0/plant/NDATA/edge", values((5, 1)), shard=0)
    history.add("spBv1.0/plant/NBIRTH/edge", born(("after", 5, INT64)), shard=0)
    history.add("spBv1.0/plant/NDATA/edge", values((5, 2), (6, 3)), shard=0)
    with monkeypatch.context() as patch:
        fail_once(patch, owner, name, call, done=done)
        assert "the driver dies here" in run(fails=True)

    again = run()
    history.add("spBv1.0/plant/NDATA/edge", values((5, 4)), shard=0)
    last = run()

    assert named(spark, tmp_path / "out") == [
        (None, 5, "before", 1),
        (None, 5, "after", 2),
        (None, 6, None, 3),
        (None, 5, "after", 4),
    ]
    # Counted by the run that wrote it.
    assert (unnamed_in(again), unnamed_in(last)) == (0 if owner is ParquetTable else 1, 0)


def test_a_delta_table_has_the_same_names_also_where_births_are_many(
    spark: SparkSession, history: FakeHistoryService, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "_SENT_WHOLE_MAX", 0)
    history.add("spBv1.0/plant/NBIRTH/edge", born(("a", 5, INT64)), shard=0)
    run("--table", "delta")
    history.add("spBv1.0/plant/NDATA/edge", values((5, 1), (6, 2)), shard=0)

    told = run("--table", "delta")

    rows = [row for row in rows_in(spark, tmp_path / "out", "delta") if row["message_type"] == "NDATA"]
    assert [(row["alias"], row["metric"]) for row in rows] == [(5, "a"), (6, None)]
    assert unnamed_in(told) == 1
