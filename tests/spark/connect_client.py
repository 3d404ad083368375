"""A client of a Spark Connect server: does one thing, prints what came of it as JSON, and never sees braidmq itself.

python connect_client.py REMOTE read SERVERS FILTER | stream SERVERS FILTER DIRECTORY | write SERVERS ROWS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession


def read(spark: SparkSession, servers: str, topic_filter: str) -> list[list[str]]:
    """Topics and payloads of a history."""
    rows = spark.read.format("braidmq").option("servers", servers).load(topic_filter).collect()
    return [[row["topic"], bytes(row["payload"]).decode()] for row in rows]


def stream(spark: SparkSession, servers: str, topic_filter: str, directory: str) -> None:
    """Append to files what came since the last run with this directory, in batches of two."""
    options = {"servers": servers, "startingOffsets": "earliest", "maxRowsPerTrigger": "2"}
    texts = spark.readStream.format("braidmq").options(**options).load(topic_filter).selectExpr("CAST(payload AS STRING) AS text")
    writer = texts.writeStream.format("json").option("path", str(Path(directory, "out")))
    query = writer.option("checkpointLocation", str(Path(directory, "checkpoint"))).trigger(availableNow=True).start()
    if not query.awaitTermination(120):
        raise TimeoutError("the stream does not end")


def write(spark: SparkSession, servers: str, rows: str) -> None:
    """Publish pairs of topic and payload."""
    frame = spark.createDataFrame(json.loads(rows), "topic string, payload string")
    frame.write.format("braidmq").option("servers", servers).mode("append").save()


def main(remote: str, action: str, *words: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        actions: dict[str, Callable[..., object]] = {"read": read, "stream": stream, "write": write}
        print(json.dumps(actions[action](spark, *words)))
    finally:
        spark.stop()
    if found := [name for name in sys.modules if name.partition(".")[0] == "braidmq"]:
        raise AssertionError(f"only the server needs these: {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
