"""Decodes payloads of three formats into JSON text with a schema; payloads that cannot be decoded get a reason."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.framework.expressions import payload_text
from braidmq.spark.jobs.sparkplug import payload as sparkplug

Format = Literal["json", "cbor", "sparkplug"]

# The columns kept besides the payload.
ABOUT: Final = ("topic", "client_id", "publish_timestamp", "store_timestamp", "shard", "position")
_BAD: Final = "_does_not_fit"
_SPARKPLUG_TOPIC: Final = r"^spBv1\.0/[^/]+/(N(BIRTH|DEATH|DATA|CMD)/[^/]+|D(BIRTH|DEATH|DATA|CMD)/[^/]+/[^/]+)$"


def decode(frame: DataFrame, format_: Format, schema: StructType) -> DataFrame:
    """Add `decoded`, a struct of the schema, and `reason`, which is null if decoding worked. Both are computed once per row."""
    texts = _with_text(frame, format_)
    wanted = StructType([*schema.fields]).add(_BAD, StringType())
    parsed = F.from_json(F.col("_text"), wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD})
    found = texts.withColumn("decoded", parsed)
    why = (
        F.when(F.col("_reason").isNotNull(), F.col("_reason"))
        .when(F.col(f"decoded.{_BAD}").isNotNull() & F.try_parse_json(F.col("_text")).isNull(), F.lit("not JSON"))
        .when(F.col("decoded").isNull() | F.col(f"decoded.{_BAD}").isNotNull(), F.lit("a field does not fit the schema"))
    )
    return found.withColumn("reason", why).withColumn("decoded", F.col("decoded").dropFields(_BAD)).drop("_text", "_reason")


def typed(decoded: DataFrame) -> DataFrame:
    """The decoded rows, with a column per field; a name already in use gets the prefix `payload_`. Partitioned by `date`."""
    kind = decoded.schema["decoded"].dataType
    assert isinstance(kind, StructType), "decode makes a struct"
    taken = {*ABOUT, "date"}
    columns = [F.col("decoded").getField(name).alias(f"payload_{name}" if name in taken else name) for name in kind.fieldNames()]
    return with_date(decoded.where("reason IS NULL")).select(*ABOUT, *columns, "date")


def quarantined(decoded: DataFrame) -> DataFrame:
    """The rows that could not be decoded, unchanged, with the reason. Partitioned by `date`."""
    return with_date(decoded.where("reason IS NOT NULL")).select(*ABOUT, "payload", "reason", "date")


def schema_of(frame: DataFrame, format_: Format, rows_max: int = 10_000) -> StructType:
    """Infer a schema from some rows; raises UsageError if none of them can be decoded."""
    some = _with_text(frame, format_).select("_text").where("_text IS NOT NULL").limit(rows_max).rdd.map(lambda row: row[0])
    found = frame.sparkSession.read.json(some, mode="DROPMALFORMED").schema
    if not found.fields:
        raise UsageError(f"no payload decodes as {format_}, so no schema can be inferred", "give --schema, or another --format")
    return found


def parse_schema(text: str) -> StructType:
    """Parse a schema in Spark's notation, such as `ts bigint, temperature double`; raises UsageError."""
    try:
        found = StructType.fromDDL(text)
    except PySparkException:
        raise UsageError(
            f"the schema {text!r} cannot be read", "write it as `ts bigint, temperature double, unit string`"
        ) from None
    assert isinstance(found, StructType), "fromDDL of StructType returns a StructType"
    return found


def with_date(frame: DataFrame) -> DataFrame:
    """Add `date`, the day (UTC) on which a message was stored."""
    return frame.withColumn("date", F.to_date("store_timestamp"))


def _with_text(frame: DataFrame, format_: Format) -> DataFrame:
    """Add `_text`, which is probably JSON, and `_reason` where `_text` is null."""
    return _with_json_text(frame) if format_ == "json" else _with_converted_text(frame, format_)


def _with_json_text(frame: DataFrame) -> DataFrame:
    text = F.trim(payload_text())
    reason = (
        F.when(text.isNull(), F.lit("not UTF-8"))
        .when(text == "", F.lit("empty"))
        .when(~F.startswith(text, F.lit("{")), F.lit("not a JSON object"))
        # Spark would parse the object and ignore anything after it.
        .when(~F.endswith(text, F.lit("}")), F.lit("not JSON"))
    )
    return frame.withColumns({"_text": F.when(reason.isNull(), text), "_reason": reason})


def _with_converted_text(frame: DataFrame, format_: Format) -> DataFrame:
    to_text = cbor_text if format_ == "cbor" else sparkplug_text
    # Without type hints, from which Spark would infer another kind of function.
    convert = F.udf(lambda payload: to_text(bytes(payload)), "text string, reason string")
    rows = frame.withColumn("_json", convert(F.col("payload")))
    reason = F.col("_json.reason")
    if format_ == "sparkplug":
        reason = F.when(~F.rlike("topic", F.lit(_SPARKPLUG_TOPIC)), F.lit("not a topic of Sparkplug B messages")).otherwise(
            reason
        )
    text = F.when(reason.isNull(), F.col("_json.text"))
    return rows.withColumns({"_text": text, "_reason": reason}).drop("_json")


def cbor_text(payload: bytes) -> tuple[str | None, str | None]:
    """The JSON text of a CBOR map, or None and the reason."""
    import cbor2

    stream = BytesIO(payload)
    try:
        value = cbor2.CBORDecoder(stream).decode()
        if stream.tell() != len(payload):
            return None, f"not CBOR: {len(payload) - stream.tell()} bytes are left over"
        if not isinstance(value, dict):
            return None, "not a CBOR map"
        return json.dumps(_plain(value)), None
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        return None, f"not CBOR: {problem}"[:200]


def sparkplug_text(payload: bytes) -> tuple[str | None, str | None]:
    """The JSON text of a Sparkplug B payload, or None and the reason."""
    try:
        return json.dumps(sparkplug.decode_payload(payload)), None
    except ValueError as problem:
        return None, f"not Sparkplug B: {problem}"[:200]


def _plain(value: Any) -> Any:
    """Convert a CBOR value to JSON: bytes as base64, other keys and values that JSON lacks as text."""
    match value:
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)
