"""The source in a real Spark session: what users type, and what they see when it goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tests.spark.driving import at
from tests.support.fakes.history_service import FakeHistoryService

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def plant(history: FakeHistoryService) -> FakeHistoryService:
    for number in range(12):
        history.add(f"plant/{number % 3}/temp", str(number).encode(), user_properties=[{"name": "n", "value": str(number)}])
    history.add("$internal/x")
    return history


@pytest.fixture
def pushdown_is_on(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def read(spark: SparkSession, history: FakeHistoryService, topic_filter: str = "plant/#", **options: str) -> DataFrame:
    # Registered by nobody: Spark finds `pyspark_braidmq` by its name.
    return spark.read.format("braidmq").options(servers=history.address, retryTimeout="5s", **options).load(topic_filter)


def stream(spark: SparkSession, history: FakeHistoryService, **options: str) -> DataStreamReader:
    given = {"servers": history.address, "topicFilter": "plant/#", "retryTimeout": "5s"} | options
    return spark.readStream.format("braidmq").options(**given)


def run(rows: DataFrame, directory: Path, **trigger: bool) -> StreamingQuery:
    """Write what there is as JSON files, which a batch that is repeated does not double, and stop."""
    writer = rows.writeStream.format("json").option("path", str(directory / "out"))
    query = (
        writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(**(trigger or {"availableNow": True})).start()
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return query


def written(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row["position"] for row in spark.read.schema("position long").json(str(directory / "out")).collect())


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_read_gives_every_record_with_all_its_columns(spark: SparkSession, plant: FakeHistoryService) -> None:
    rows = read(spark, plant).orderBy("position").collect()

    assert [row["payload"] for row in rows] == [str(number).encode() for number in range(12)]
    first = rows[0].asDict(recursive=True)
    expected = plant.rows("plant/#")[0]
    # Spark gives times in the zone of the machine, without saying so.
    times = {name for name in expected if name.endswith("timestamp")}
    assert {name: value for name, value in first.items() if name not in times} == {
        name: value for name, value in expected.items() if name not in times
    }
    in_microseconds = read(spark, plant).selectExpr("position - unix_micros(store_timestamp) as apart").distinct().collect()
    assert [row["apart"] for row in in_microseconds] == [0]


def test_columns_are_chosen_by_option_or_by_schema(spark: SparkSession, plant: FakeHistoryService) -> None:
    by_option = read(spark, plant, columns="position,topic")
    by_schema = (
        spark.read.format("braidmq").schema("topic STRING NOT NULL, qos INT").option("servers", plant.address).load("plant/0/#")
    )

    assert by_option.columns == ["position", "topic"]
    assert by_option.count() == 12
    assert [tuple(row) for row in by_schema.distinct().collect()] == [("plant/0/temp", 1)]
    assert plant.plans[-1].columns == ["topic", "qos"]


def test_nothing_to_read_is_an_empty_table(spark: SparkSession, plant: FakeHistoryService) -> None:
    assert read(spark, plant, "nobody/publishes/this").collect() == []


def test_a_server_lost_in_the_middle_of_a_task_costs_no_row(spark: SparkSession, plant: FakeHistoryService) -> None:
    plant.broken_after = [3, 0]

    assert read(spark, plant, columns="position").distinct().count() == 12
    assert plant.broken_after == []


@pytest.mark.row("K6")
def test_wrong_credentials_are_reported_with_a_clear_message_and_stay_secret(
    spark: SparkSession, plant: FakeHistoryService
) -> None:
    plant.users = {"ann": "s3cret-right"}
    good = read(spark, plant, user="ann", password="s3cret-right")
    bad = read(spark, plant, user="ann", password="s3cret-wrong")

    assert good.count() == 12
    with pytest.raises(AnalysisException, match="the history service denied access") as caught:
        bad.count()

    plans = good._jdf.queryExecution().toString() + bad._jdf.queryExecution().toString()
    assert "s3cret" not in plans + str(caught.value)


@pytest.mark.row("K6")
@pytest.mark.parametrize(
    ("topic_filter", "options", "message"),
    [
        ("a/#/b", {}, "topicFilter: 'a/#/b' is not a topic filter"),
        ("a", {"startingOffset": "latest"}, "did you mean startingOffsets"),
        ("a", {"columns": "colour"}, "columns: history has no column colour"),
        (
            "a",
            {"maxOffsetsPerTrigger": "5"},
            "maxoffsetspertrigger: is an option of another data source; .*use maxRowsPerTrigger",
        ),
    ],
)
def test_invalid_options_are_rejected_at_load(
    spark: SparkSession, history: FakeHistoryService, topic_filter: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        read(spark, history, topic_filter, **options)


@pytest.mark.since_spark("4.1")
def test_filters_are_pushed_down_if_both_switches_are_on(
    spark: SparkSession, plant: FakeHistoryService, pushdown_is_on: None
) -> None:
    query = f"topic IN ('plant/1/temp', 'x') AND store_timestamp >= timestamp_micros({at(4)}) AND position < {at(11)} AND qos = 1"

    rows = read(spark, plant, pushdown="true").where(query).collect()

    assert sorted(row["position"] for row in rows) == [at(5), at(8)]
    assert plant.plans[-1].filters == ["plant/1/temp"]
    assert plant.plans[-1].start.positions == {"0": at(4) - 1, "1": at(4) - 1}
    assert read(spark, plant, pushdown="true").where("topic LIKE 'plant/2/%' OR topic = 'plant/0/temp'").count() == 8


@pytest.mark.since_spark("4.1")
def test_without_the_switches_spark_filters_itself(spark: SparkSession, plant: FakeHistoryService) -> None:
    assert read(spark, plant).where("topic = 'plant/1/temp'").count() == 4
    assert plant.plans[-1].filters == ["plant/#"]

    with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        read(spark, plant, pushdown="true").where("topic = 'plant/1/temp'").count()


def test_a_temporary_view_keeps_its_options(spark: SparkSession, plant: FakeHistoryService) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW plant USING braidmq OPTIONS (servers '{plant.address}', topicFilter 'plant/0/#')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM plant").collect()[0]["n"] == 4
    finally:
        spark.catalog.dropTempView("plant")


@pytest.mark.since_spark("4.2")
def test_a_stream_keeps_its_limit_and_resumes_from_its_checkpoint(
    spark: SparkSession, plant: FakeHistoryService, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "maxRowsPerTrigger": "5", "readerName": "archive"}

    first = run(stream(spark, plant, **options).load().select("position"), tmp_path)
    plant.add_many("plant/9/temp", 3)
    # A start counts for a new checkpoint only.
    second = run(stream(spark, plant, **options | {"startingOffsets": "latest"}).load().select("position"), tmp_path)

    assert batch_sizes(first) == [5, 5, 2]
    assert batch_sizes(second) == [3]
    assert written(spark, tmp_path) == [row["position"] for row in plant.rows("plant/#")]
    latest = {str(shard): position for shard, position in plant.latest.items()}
    assert plant.readers == {"archive": latest}
    reported = [json.loads(each["sources"][0]["latestOffset"]) for each in (*first.recentProgress, *second.recentProgress)]
    assert reported[-1]["shards"] == latest
    assert reported[0]["behind"]["rows"] == 7
    assert reported[-1]["behind"] == {"rows": 0, "isEstimate": False}


def test_a_new_stream_starts_with_what_is_recorded_from_then_on(
    spark: SparkSession, plant: FakeHistoryService, tmp_path: Path
) -> None:
    run(stream(spark, plant).load().select("position"), tmp_path)
    row = plant.add("plant/0/temp")
    run(stream(spark, plant).load().select("position"), tmp_path)

    assert written(spark, tmp_path) == [row["position"]]


def test_trigger_once_reads_everything_despite_the_limit(spark: SparkSession, plant: FakeHistoryService, tmp_path: Path) -> None:
    options = {"startingOffsets": "earliest", "maxRowsPerTrigger": "5"}

    query = run(stream(spark, plant, **options).load().select("position"), tmp_path, once=True)

    assert batch_sizes(query) == [12]


@pytest.mark.row("K1")
def test_a_loss_fails_the_stream_with_the_gap_until_it_is_let_pass(
    spark: SparkSession, plant: FakeHistoryService, tmp_path: Path
) -> None:
    start = json.dumps({"0": at(1), "1": at(1)})
    plant.expire(at(6))

    with pytest.raises(StreamingQueryException, match=rf"wanted everything after {at(1)} .*the earliest kept is {at(6) + 1} "):
        run(stream(spark, plant, startingOffsets=start).load().select("position"), tmp_path)
    run(stream(spark, plant, startingOffsets=start, failOnDataLoss="false").load().select("position"), tmp_path)

    assert written(spark, tmp_path) == [at(second) for second in range(7, 13)]


def test_a_checkpoint_of_another_log_is_rejected_with_a_clear_message(
    spark: SparkSession, plant: FakeHistoryService, tmp_path: Path
) -> None:
    run(stream(spark, plant, startingOffsets="earliest").load().select("position"), tmp_path)
    plant.log = "beef"

    with pytest.raises(StreamingQueryException, match="the offset belongs to log 00ff, but the servers have log beef"):
        run(stream(spark, plant).load().select("position"), tmp_path)


@pytest.mark.row("K12")
def test_a_checkpoint_of_other_filters_is_rejected_with_a_clear_message_until_that_is_meant(
    spark: SparkSession, plant: FakeHistoryService, tmp_path: Path
) -> None:
    run(stream(spark, plant, topicFilter="plant/0/#", startingOffsets="earliest").load().select("position"), tmp_path)
    later = plant.add("plant/1/temp")
    other = stream(spark, plant, topicFilter="plant/1/#")

    with pytest.raises(StreamingQueryException, match="to the topic filters plant/0/#, but the query has plant/1/#"):
        run(other.load().select("position"), tmp_path)
    run(other.option("onFilterChange", "continue").load().select("position"), tmp_path)
    run(stream(spark, plant, topicFilter="plant/1/#").load().select("position"), tmp_path)

    assert written(spark, tmp_path) == [row["position"] for row in plant.rows("plant/0/#")] + [later["position"]]
