"""Frames and streams that the sink's tests write, and what the log has of them."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.testing import Broker


def recorded(broker: Broker) -> list[tuple[str, bytes, str]]:
    """Topic, payload and publisher of everything in the log, in order of time."""

    async def read() -> list[tuple[str, bytes, str]]:
        assert broker.node is not None
        replay = broker.node.log.replay(["#"], 0)
        found: list[tuple[str, bytes, str]] = []
        while not replay.is_caught_up:
            found += [(record.topic.decode(), record.payload, record.publisher) for _, record in replay.next(10_000)]
        return found

    return broker.run(read())


def numbers(found: list[tuple[str, bytes, str]]) -> list[int]:
    return [int(payload) for _, payload, _ in found]


def rows(spark: SparkSession, count: int, partitions: int = 2, *, fails_at: int | None = None) -> DataFrame:
    """Rows with the number as payload, in order by partition; evaluating one of them may fail."""
    frame = spark.range(0, count, 1, partitions)
    payload = F.col("id").cast("string")
    if fails_at is not None:
        payload = F.when(F.col("id") == fails_at, F.raise_error(F.lit("boom"))).otherwise(payload)
    return frame.select(F.concat(F.lit("t/"), (F.col("id") % 7).cast("string")).alias("topic"), payload.alias("payload"))


def write(frame: DataFrame, port: int, **options: str) -> None:
    frame.write.format("braidmq").options(servers=f"mqtt://127.0.0.1:{port}", **options).mode("append").save()


def put_file(folder: Path, first: int, end: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"topic": f"t/{number % 7}", "payload": str(number)}) + "\n" for number in range(first, end))
    (folder / f"part-{first:08d}.json").write_text(lines)


def stream(spark: SparkSession, folder: Path, broker_port: int, *, fails_at: int | None = None, **options: str) -> StreamingQuery:
    frame = spark.readStream.schema("topic string, payload string").option("maxFilesPerTrigger", "2").json(str(folder / "in"))
    if fails_at is not None:
        payload = F.when(F.col("payload") == str(fails_at), F.raise_error(F.lit("boom"))).otherwise(F.col("payload"))
        frame = frame.withColumn("payload", payload)
    writer = frame.writeStream.format("braidmq").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.options(servers=f"mqtt://127.0.0.1:{broker_port}", **options).trigger(availableNow=True).start()
