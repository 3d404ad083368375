"""A plant in two minutes: machines publish, `archive` and `rollup` run on the broker's history, and a plot shows the result.

    make demo

The data of half an hour is published at once, with the event time in each payload: 24 machines on three lines report their
temperature, vibration and power every few seconds. Machine 2/5 runs hot towards the end, and machine 3/2 is silent for six
minutes. The data continues for some seconds after that, because a minute is rolled up only when a message later than its end and
the watermark arrives. Everything except the plot is in a temporary directory and is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paho.mqtt.enums import CallbackAPIVersion

from braidmq.spark.jobs import archive, rollup
from braidmq.spark.jobs.framework.session import SparkOptions, open_session
from braidmq.spark.jobs.tables.parquet_table import ParquetTable
from braidmq.testing import Broker

LINES: Final = 3
MACHINES: Final = 8
MINUTES: Final = 30
EVERY_S: Final = 5
WATERMARK_S: Final = 5
# How long the data continues after the last minute: then the watermark has passed its end, whenever each machine reports.
AFTERWARDS_S: Final = WATERMARK_S + 2 * EVERY_S
START_MS: Final = 1_709_294_400_000  # 2024-03-01T12:00:00Z
HOT: Final = (2, 5)
SILENT: Final = (3, 2)
SILENT_MINUTES: Final = range(12, 18)
COLOURS: Final = {1: "tab:blue", 2: "tab:orange", 3: "tab:green"}


def messages(seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Topics and payloads of half an hour and a little more, in order of event time."""
    chance = random.Random(seed)
    for second in range(0, MINUTES * 60 + AFTERWARDS_S, EVERY_S):
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
    """Publish everything with QoS 1; returns the number of messages, which are then on disk."""
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


Row = dict[str, Any]


def name_of(row: Row) -> str:
    """The name of a machine, such as `line 2, machine 5`; a pattern is `plant/line2/+/telemetry`, a device `machine5`."""
    return f"line {line_of(row)}, machine {row['device'].removeprefix('machine')}"


def line_of(row: Row) -> int:
    """The number of a machine's line."""
    return int(row["pattern"].split("/")[1].removeprefix("line"))


def note_on(minutes: int) -> str:
    """A note for the plot about minutes that are missing in it."""
    return (
        "" if minutes >= MINUTES else f"; the last {MINUTES - minutes} of {MINUTES} minutes are missing: their windows are open"
    )


def draw(rows: list[Row]) -> Figure:
    """Draw the temperatures of all machines, and below them the power of each, with holes where it was silent."""
    begin = min(row["window_start"] for row in rows)
    for row in rows:
        row["minute"] = (row["window_start"] - begin).total_seconds() / 60
    minutes = sorted({row["minute"] for row in rows})
    figure = Figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    draw_temperatures(above, [row for row in rows if row["field"] == "temperature"], minutes)
    draw_power(below, [row for row in rows if row["field"] == "power"], minutes)
    # Spark returns times in the time zone of this machine, without a zone.
    below.set_xlabel(f"minutes after {begin.astimezone(UTC):%H:%M UTC on %-d %B %Y}, by event time")
    figure.suptitle(f"A plant, minute by minute: recorded by braidmq, rolled up by Spark{note_on(len(minutes))}")
    return figure


def draw_temperatures(axes: Axes, rows: list[Row], minutes: list[float]) -> None:
    """One curve per machine, broken where it was silent; the hottest is labelled."""
    hottest = max(rows, key=lambda row: row["max"])
    for name in sorted({name_of(row) for row in rows}):
        found = {row["minute"]: row for row in rows if name_of(row) == name}
        is_hottest = name == name_of(hottest)
        colour = COLOURS[line_of(next(iter(found.values())))]
        averages, least, most = (
            [found[minute][figure] if minute in found else math.nan for minute in minutes] for figure in ("avg", "min", "max")
        )
        axes.plot(minutes, averages, color=colour, linewidth=2.5 if is_hottest else 0.9, alpha=1.0 if is_hottest else 0.7)
        axes.fill_between(minutes, least, most, color=colour, alpha=0.25 if is_hottest else 0.06, linewidth=0)
    place = (hottest["minute"], hottest["avg"])
    axes.annotate(
        f"{name_of(hottest)}\nruns hot",
        place,
        textcoords="offset points",
        xytext=(-20, 0),
        ha="right",
        va="center",
        weight="bold",
    )
    for line, colour in COLOURS.items():
        axes.plot([], [], color=colour, label=f"line {line}, {MACHINES} machines")
    axes.set_ylabel("temperature in °C: average,\nand minimum to maximum (shaded)")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.25)


def draw_power(axes: Axes, rows: list[Row], minutes: list[float]) -> None:
    """One row of cells per machine, white where it was silent; the longest silence is labelled."""
    names = sorted({name_of(row) for row in rows})
    power = {(name_of(row), row["minute"]): row["avg"] for row in rows}
    cells = [[power.get((name, minute), math.nan) for minute in minutes] for name in names]
    image = axes.pcolormesh(minutes, range(len(names)), cells, cmap="YlGnBu", shading="nearest")
    axes.figure.colorbar(image, ax=axes, label="power in kW, average of a minute", aspect=12)
    holes = {name: [minute for minute in minutes if (name, minute) not in power] for name in names}
    silent = max(names, key=lambda name: len(holes[name]))
    if silence := holes[silent]:
        middle = (silence[0] + silence[-1]) / 2
        words = f"silent for {len(silence)} minutes"
        axes.text(middle, names.index(silent), words, ha="center", va="center_baseline", size=8, weight="bold")
    axes.set_yticks(range(len(names)), names, size=7)
    axes.invert_yaxis()


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, default=Path("build/demo/rollup.png"), help="file for the plot")
    parser.add_argument("--master", default="local[2]", help="the Spark master")
    given = parser.parse_args()
    began = time.monotonic()

    def tell(sentence: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {sentence}", flush=True)

    with tempfile.TemporaryDirectory(prefix="braidmq-demo-") as folder, Broker(history={"bind": "127.0.0.1:0"}) as broker:
        tell(f"the broker listens on {broker.host}:{broker.port}, its history service on port {broker.history_port}")
        tell(f"recorded {publish(broker):,} messages of {LINES * MACHINES} machines: {MINUTES} minutes of a plant")
        spark = open_session("demo", SparkOptions(given.master))
        try:
            tell("Spark has started; running `braidmq pipeline archive` and `rollup`")
            shared = ["--servers", f"{broker.host}:{broker.history_port}", "-t", "plant/#", "--master", given.master]
            archive.command.main([f"{folder}/lake", *shared], standalone_mode=False)
            tell("the archive is complete")
            minutes = f"{folder}/minutes"
            windows = ["--event-time", "$.ts:ms", "--window", "1m", "--watermark", f"{WATERMARK_S}s"]
            rollup.command.main([minutes, *windows, *shared], standalone_mode=False)
            table = ParquetTable(minutes).read(spark).orderBy("window_start", "device", "field")
            rows = [row.asDict() for row in table.collect()]
        finally:
            spark.stop()
    rolled_up = len({row["window_start"] for row in rows})
    tell(f"rolled up {rolled_up} minutes into {len(rows):,} rows{note_on(rolled_up)}")
    given.image.parent.mkdir(parents=True, exist_ok=True)
    draw(rows).savefig(given.image, dpi=120)
    tell(f"the plot is {given.image.resolve()}")


if __name__ == "__main__":
    main()
