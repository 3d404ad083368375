"""Metrics of Sparkplug B messages as rows, with the names and datatypes from births.

Decoded data have one row per message. Births and deaths are a small part of them: only they are processed in Python, one edge
node at a time, and become rows that say from which place to which a birth applies. Spark joins data and commands with these.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braidmq.spark.jobs.framework.payloads import ABOUT, with_date
from braidmq.spark.jobs.sparkplug.births import Birth, Death, Metric, Place, distinct, follow

_PLACE: Final = "struct<position: bigint, shard: int>"
BIRTHS: Final = (
    f"group_id string, edge_node string, device string, since {_PLACE}, until {_PLACE}, bd_seq bigint, "
    "metrics array<struct<name: string, alias: bigint, datatype: string>>"
)
_NODE: Final = ["group_id", "edge_node"]
_ARROW_PLACE: Final = pa.struct([("position", pa.int64()), ("shard", pa.int32())])
_ARROW_METRIC: Final = pa.struct([("name", pa.string()), ("alias", pa.int64()), ("datatype", pa.string())])
_ARROW_BIRTHS: Final = pa.schema(
    [
        ("group_id", pa.string()),
        ("edge_node", pa.string()),
        ("device", pa.string()),
        ("since", _ARROW_PLACE),
        ("until", _ARROW_PLACE),
        ("bd_seq", pa.int64()),
        ("metrics", pa.list_(_ARROW_METRIC)),
    ]
)
# Marks a birth from before the batch among the births and deaths of the batch.
_ALIVE: Final = "alive"
_UNKNOWN: Final = "Unknown"
_SHORT: Final = ("Int8", "Int16", "Int32")  # 32 bits on the wire


def births_and_deaths(decoded: DataFrame) -> DataFrame:
    """The births and deaths among the messages, in the shape of `BIRTHS` with `message_type`; `since` is their place."""
    kind = F.get(F.split("topic", "/"), F.lit(2))
    chosen = decoded.where(F.col("reason").isNull() & kind.isin("NBIRTH", "DBIRTH", "NDEATH", "DDEATH"))
    found = F.col("decoded.metrics")
    counter = F.filter(found, lambda each: each["name"] == F.lit("bdSeq"))
    return chosen.select(
        *_of_topic(),
        F.struct("position", "shard").alias("since"),
        F.lit(None).cast(_PLACE).alias("until"),
        F.get(counter, F.lit(0))["long_value"].alias("bd_seq"),
        F.transform(found, lambda each: F.struct(each["name"], each["alias"], each["datatype"])).alias("metrics"),
    )


def births_after(alive: DataFrame, events: DataFrame) -> DataFrame:
    """All births that apply to messages of a batch, in the shape of `BIRTHS`: those alive before it and its own.

    Births without `until` are alive after the batch.
    """
    # Only nodes with new births or deaths are processed in Python.
    news = events.select(*_NODE).distinct()
    before = alive.withColumn("message_type", F.lit(_ALIVE))
    told = before.join(news, _NODE, "left_semi").unionByName(events)
    changed = told.groupBy(*_NODE).applyInArrow(_follow_node, BIRTHS)
    return alive.join(news, _NODE, "left_anti").unionByName(changed)


def metrics(decoded: DataFrame, births: DataFrame | None = None) -> DataFrame:
    """The metrics of decoded messages, one row each; a message without metrics has one row. Partitioned by `date`.

    Births supply the names and datatypes that messages omit; `is_unresolved` marks an alias without a birth.
    """
    rows = with_date(decoded.where("reason IS NULL")).withColumn("found", F.explode_outer("decoded.metrics"))
    rows = rows.select(
        *ABOUT,
        *_of_topic(),
        F.col("decoded.seq").alias("seq"),
        F.timestamp_millis("decoded.timestamp").alias("payload_timestamp"),
        F.nullif(F.col("found.name"), F.lit("")).alias("metric"),
        F.col("found.alias").alias("alias"),
        F.col("found.datatype").alias("datatype"),
        F.timestamp_millis("found.timestamp").alias("metric_timestamp"),
        *(F.col(f"found.{name}") for name in ("long_value", "double_value", "boolean_value", "string_value")),
        F.unbase64("found.bytes_value").alias("bytes_value"),
        *(F.coalesce(F.col(f"found.{name}"), F.lit(False)).alias(name) for name in ("is_null", "is_historical")),
        "date",
        F.col("found.bits").alias("bits"),
    )
    return rows.drop("bits") if births is None else _resolved(rows, births)


def _of_topic() -> list[Column]:
    levels = F.split("topic", "/")
    names = {"group_id": 1, "message_type": 2, "edge_node": 3, "device": 4}
    return [F.get(levels, F.lit(place)).alias(name) for name, place in names.items()]


def _resolved(rows: DataFrame, births: DataFrame) -> DataFrame:
    by_alias = F.col("metric").isNull() & F.col("alias").isNotNull()
    key = F.when(by_alias, _alias_key(F.col("alias"))).when(F.col("datatype") == _UNKNOWN, _name_key(F.col("metric")))
    is_later = F.col("message_type").isin("NDATA", "DDATA", "NCMD", "DCMD")
    left = rows.withColumns({"key": F.when(is_later, key), "place": F.struct("position", "shard")})
    right = births.select(*_NODE, "device", "since", "until", F.inline("metrics"))
    keys = F.array(_alias_key(F.col("alias")), _name_key(F.col("name")))
    right = right.withColumn("key", F.explode(keys)).where("key IS NOT NULL")
    right = right.select(*(F.col(each).alias(f"birth_{each}") for each in right.columns))
    # The births of a device do not overlap and have unique keys, so the join adds no rows.
    held = left.join(
        right,
        (F.col("key") == F.col("birth_key"))
        & (F.col("group_id") == F.col("birth_group_id"))
        & (F.col("edge_node") == F.col("birth_edge_node"))
        & F.col("device").eqNullSafe(F.col("birth_device"))
        & (F.col("place") > F.col("birth_since"))
        & (F.col("birth_until").isNull() | (F.col("place") <= F.col("birth_until"))),
        "left",
    )
    resolved = {
        "is_unresolved": is_later & by_alias & F.col("birth_key").isNull(),
        "metric": F.coalesce("metric", "birth_name"),
        "datatype": F.when(F.col("datatype") == _UNKNOWN, F.coalesce("birth_datatype", "datatype")).otherwise(F.col("datatype")),
        **_numbers(F.col("birth_datatype"), F.col("bits")),
    }
    return held.withColumns(resolved).select(*(each for each in rows.columns if each != "bits"), "is_unresolved")


def _numbers(datatype: Column, bits: Column) -> dict[str, Column]:
    """Convert integers that came without a datatype, now that it is known: signed ones are in two's complement."""
    short = F.shiftright(F.shiftleft(bits, 32), 32)
    signed = F.when(datatype.isin(*_SHORT), short).when(datatype == "Int64", bits)
    # `bits` is null if the message had a datatype.
    return {
        "long_value": F.coalesce(signed, F.col("long_value")),
        "double_value": F.coalesce(signed.cast("double"), F.col("double_value")),
    }


def _alias_key(alias: Column) -> Column:
    return F.concat(F.lit("#"), alias.cast("string"))


def _name_key(name: Column) -> Column:
    return F.concat(F.lit("/"), name)


def _follow_node(table: pa.Table) -> pa.Table:
    """Runs on executors, for one edge node."""
    alive: list[Birth] = []
    events: list[Birth | Death] = []
    rows = table.to_pylist()
    for row in rows:
        if row["message_type"] == _ALIVE:
            alive.append(_birth_of(row, tuple(Metric(**each) for each in row["metrics"])))
        elif row["message_type"].endswith("BIRTH"):
            named = [Metric(**each) for each in row["metrics"] or () if each["name"]]
            events.append(_birth_of(row, distinct(named)))
        else:
            events.append(Death(device=row["device"], at=_place_of(row), bd_seq=row["bd_seq"]))
    node = {name: rows[0][name] for name in _NODE}
    return pa.Table.from_pylist([node | _row_of(each) for each in follow(alive, events)], _ARROW_BIRTHS)


def _birth_of(row: dict[str, Any], metrics: tuple[Metric, ...]) -> Birth:
    return Birth(device=row["device"], since=_place_of(row), metrics=metrics, bd_seq=row["bd_seq"])


def _place_of(row: dict[str, Any]) -> Place:
    return row["since"]["position"], row["since"]["shard"]


def _row_of(birth: Birth) -> dict[str, Any]:
    return {
        "device": birth.device,
        "since": _place(birth.since),
        "until": None if birth.until is None else _place(birth.until),
        "bd_seq": birth.bd_seq,
        "metrics": [{"name": each.name, "alias": each.alias, "datatype": each.datatype} for each in birth.metrics],
    }


def _place(place: Place) -> dict[str, int]:
    return {"position": place[0], "shard": place[1]}
