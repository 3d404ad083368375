"""A plant in two minutes: machines publish, `archive` and `rollup` run on the broker's history, and a plot shows the result.

    make demo

Half an hour of a plant's life is published at once, with the time at which each thing happened in its payload: 24 machines on
three lines tell their temperature, vibration and power every few seconds. Machine 2/5 runs hot towards the end, and machine 3/2
falls silent for six minutes. Everything but the plot is in a temporary directory, and gone afterwards.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from matplotlib.figure import Figure
from paho.mqtt.enums import CallbackAPIVersion

from braidmq.spark.jobs import archive, rollup
from braidmq.spark.jobs.parquet_table import ParquetTable
from braidmq.spark.jobs.session import SparkOptions, open_session
from braidmq.testing import Broker

LINES: Final = 3
MACHINES: Final = 8
MINUTES: Final = 30
EVERY_S: Final = 5
START_MS: Final = 1_709_294_400_000  # 2024-03-01T12:00:00Z
HOT: Final = (2, 5)
SILENT: Final = (3, 2)
SILENT_MINUTES: Final = range(12, 18)
COLOURS: Final = {1: "tab:blue", 2: "tab:orange", 3: "tab:green"}


def messages(seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Topics and payloads of half an hour, in the order in which things happened."""
    chance = random.Random(seed)
    for second in range(0, MINUTES * 60, EVERY_S):
        minute = second / 60
        for line in range(1, LINES + 1):
            for machine in range(1, MACHINES + 1):
                if (line, machine) == SILENT and int(minute) in SILENT_MINUTES:
                    continue
                heat = max(0.0, minute - 18) * 2.2 if (line, machine) == HOT else 0.0
                temperature = 55 + 4 * line + 3 * math.sin(minute / 5 + machine) + heat + chance.gauss(0, 0.6)
                yield (
                    f"plant/line{line}/machine{machine}/telemetry",
                    {
                        "ts": START_MS + second * 1000 + chance.randrange(900),
                        "temperature": round(temperature, 2),
                        "vibration": round(abs(chance.gauss(1.2, 0.2)), 3),
                        "power": round(12 + 2 * math.cos(minute / 3 + line) + chance.gauss(0, 0.2), 2),
                    },
                )


def publish(broker: Broker) -> int:
    """Publish everything with QoS 1; returns how many messages are on disk."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "plant", protocol=paho.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.connect(broker.host, broker.port)
    client.loop_start()
    sent = [client.publish(topic, json.dumps(payload), qos=1) for topic, payload in messages()]
    for each in sent:
        each.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()
    return len(sent)


def line_of(pattern: str) -> int:
    """The number of a line, of a pattern such as `plant/line2/+/telemetry`."""
    return int(pattern.split("/")[1].removeprefix("line"))


def plot(rows: list[dict[str, Any]], image: Path) -> None:
    """Draw the temperatures of all machines, and where a machine was silent."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    temperature_rows = [row for row in rows if row["field"] == "temperature"]
    # Three lines are few enough to be told apart: each has a pattern of its own, and its machines vary.
    for pattern, device in sorted({(row["pattern"], row["device"]) for row in rows}):
        temperatures = [row for row in temperature_rows if (row["pattern"], row["device"]) == (pattern, device)]
        line = line_of(pattern)
        times = [row["window_start"] for row in temperatures]
        above.plot(times, [row["avg"] for row in temperatures], color=COLOURS[line], linewidth=1, alpha=0.8)
        above.fill_between(times, [row["min"] for row in temperatures], [row["max"] for row in temperatures],
                           color=COLOURS[line], alpha=0.08, linewidth=0)  # fmt: skip
    hot = max(temperature_rows, key=lambda row: row["max"])
    name = f"line {line_of(hot['pattern'])}, {hot['device']}"
    above.annotate(name, (hot["window_start"], hot["avg"]), textcoords="offset points", xytext=(-110, -4))
    for line, colour in COLOURS.items():
        above.plot([], [], color=colour, label=f"line {line}")
    above.set(ylabel="temperature, average of a minute (range shaded)", title="One minute windows of a plant, rolled up by Spark")
    above.legend(loc="upper left")
    per_minute: dict[Any, int] = {}
    for row in rows:
        if row["field"] == "":
            per_minute[row["window_start"]] = per_minute.get(row["window_start"], 0) + row["count"]
    below.bar(list(per_minute), list(per_minute.values()), width=0.8 / 1440, color="tab:gray")
    below.set(ylabel="messages a minute", xlabel="event time (UTC)")
    figure.savefig(image, dpi=120)


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, default=Path("build/demo/rollup.png"), help="where the plot goes")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    given = parser.parse_args()
    began = time.monotonic()

    def tell(sentence: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {sentence}", flush=True)

    with tempfile.TemporaryDirectory(prefix="braidmq-demo-") as folder, Broker(history={"bind": "127.0.0.1:0"}) as broker:
        tell(f"a broker listens at {broker.host}:{broker.port}, its history service at port {broker.history_port}")
        tell(f"{publish(broker):,} messages of {LINES * MACHINES} machines are recorded, {MINUTES} minutes of a plant")
        spark = open_session("demo", SparkOptions(given.master))
        try:
            tell("Spark has started; `braidmq pipeline archive` and `rollup` run")
            shared = ["--servers", f"{broker.host}:{broker.history_port}", "-t", "plant/#", "--master", given.master]
            archive.command.main([f"{folder}/lake", *shared], standalone_mode=False)
            tell("the lake is written")
            minutes = f"{folder}/minutes"
            windows = ["--event-time", "$.ts:ms", "--window", "1m", "--watermark", "5s"]
            rollup.command.main([minutes, *windows, *shared], standalone_mode=False)
            table = ParquetTable(minutes).read(spark).orderBy("window_start", "device", "field")
            rows = [row.asDict() for row in table.collect()]
        finally:
            spark.stop()
    tell(f"{len(rows):,} rows of windows are rolled up")
    given.image.parent.mkdir(parents=True, exist_ok=True)
    plot(rows, given.image)
    tell(f"the plot is {given.image.resolve()}")


if __name__ == "__main__":
    main()
