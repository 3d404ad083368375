"""A driver of its own, to be killed: streams history into JSON files until it has all there was, and tells how far it is.

python stream_driver.py MASTER SERVERS FILTER DIRECTORY ROWS_PER_TRIGGER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(master: str, servers: str, topic_filter: str, directory: str, rows: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", directory)
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    place = Path(directory)

    def tell(batch: DataFrame, number: int) -> None:
        # Files by the number of the batch, which a batch that is repeated writes again.
        batch.write.mode("overwrite").json(str(place / "out" / f"batch={number}"))
        print(f"batch {number}", flush=True)

    options = {"servers": servers, "topicFilter": topic_filter, "startingOffsets": "earliest", "maxRowsPerTrigger": rows}
    stream = session.readStream.format("braidmq").options(**options, minPartitions="2").load()
    query = (
        stream.select("shard", "position", "topic")
        .writeStream.foreachBatch(tell)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
