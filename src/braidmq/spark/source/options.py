"""The options of the source, parsed. docs/spark.md describes each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from braidmq.base.errors import ConfigError, ProtocolViolation, UsageError
from braidmq.base.start_position import parse_start
from braidmq.flight import columns as history_columns
from braidmq.flight.access import PORT, Access, parse_servers
from braidmq.mqtt.topics import check_filter, parse_subscription
from braidmq.spark.option_table import CONNECTION_OPTIONS, OptionTable
from braidmq.spark.source import foreign_options
from braidmq.spark.source.offsets import Offset, parse_offset

T = TypeVar("T")

READ_OPTIONS: Final = (
    "servers",
    "topicFilter",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRowsPerPartition",
    "maxBytesPerPartition",
    "failOnDataLoss",
    "onFilterChange",
    "columns",
    "readerName",
    "pushdown",
    "token",
    *CONNECTION_OPTIONS,
)

# The default of Kafka's source, from which users know the option.
_DELAY_S: Final = 15 * 60.0
_TABLE_HINT: Final = (
    'write .option("topicFilter", "plant/#") or .load("plant/#"); options of CREATE TABLE do not reach a Python source: '
    "give them with the read, or in SELECT ... FROM t WITH (...)"
)


class Bound(msgspec.Struct, frozen=True):
    """The start or end of a read: a keyword, a time as written, or an offset."""

    at: Literal["earliest", "latest"] | None = None
    moment: str | None = None
    offset: Offset | None = None


EARLIEST: Final = Bound(at="earliest")
LATEST: Final = Bound(at="latest")


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, from where, how fast and as which user. Its repr contains no secret."""

    servers: list[str]
    access: Access
    filters: list[str]
    start: Bound | None  # None: the default of a batch or a stream
    end: Bound | None
    rows_max: int | None
    bytes_max: int | None
    rows_min: int | None
    delay_s: float  # how long a batch with fewer than `rows_min` rows waits
    partitions_min: int
    partition_rows_max: int | None
    partition_bytes_max: int | None
    fail_on_data_loss: bool
    continues_with_other_filters: bool
    columns: list[str] | None
    reader_name: str
    pushdown: bool
    call_s: float
    retry_s: float
    unknown: tuple[str, ...]  # names of unknown options

    @property
    def on_loss(self) -> Literal["fail", "skip"]:
        """What the service does if retention has deleted records."""
        return "fail" if self.fail_on_data_loss else "skip"


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read` or `spark.readStream`; raises ConfigError with the option and the remedy."""
    table = OptionTable(options, READ_OPTIONS, foreign_options.READ)
    _check_pace(table)
    access = parse_access(table)
    return ReadOptions(
        servers=_checked("servers", lambda: parse_servers(table.text("servers", f"localhost:{PORT}"), tls=access.wants_tls)),
        access=access,
        filters=_filters(table),
        start=_bound(table, "starting"),
        end=_bound(table, "ending"),
        rows_max=table.count("maxRowsPerTrigger"),
        bytes_max=table.size("maxBytesPerTrigger"),
        rows_min=table.count("minRowsPerTrigger"),
        delay_s=table.seconds("maxTriggerDelay", _DELAY_S),
        partitions_min=table.count("minPartitions") or 0,
        partition_rows_max=table.count("maxRowsPerPartition"),
        partition_bytes_max=table.size("maxBytesPerPartition"),
        fail_on_data_loss=table.flag("failOnDataLoss", True),
        continues_with_other_filters=table.choice("onFilterChange", ("fail", "continue"), "fail") == "continue",
        columns=_columns(table),
        reader_name=table.text("readerName"),
        pushdown=table.flag("pushdown", False),
        call_s=table.call_s,
        retry_s=table.retry_s,
        unknown=table.unknown,
    )


def _check_pace(table: OptionTable) -> None:
    least, most = table.count("minRowsPerTrigger"), table.count("maxRowsPerTrigger")
    if least is None and table.has("maxTriggerDelay"):
        raise ConfigError("maxTriggerDelay", "needs minRowsPerTrigger", "set both; the delay applies when there are too few rows")
    if least is not None and most is not None and least > most:
        raise ConfigError("minRowsPerTrigger", f"is {least}, but maxRowsPerTrigger is {most}", "use a minimum below the maximum")


def parse_access(table: OptionTable) -> Access:
    """Credentials and TLS."""
    access = Access(
        **msgspec.structs.asdict(table.security()), token=table.secret("token").strip(), reader=table.text("readerName")
    )
    _checked("user", access.check)
    return access


def _filters(table: OptionTable) -> list[str]:
    given = [found for name in ("topicFilter", "path", "paths") if (found := table.texts(name)) is not None]
    if not given:
        raise ConfigError("topicFilter", "is not given", _TABLE_HINT)
    if any(set(each) != set(given[0]) for each in given[1:]):
        raise ConfigError("topicFilter", "differs from what load() was given", "give one of the two")
    for each in given[0]:
        try:
            check_filter(each)
        except ProtocolViolation as problem:
            raise ConfigError("topicFilter", f"{each!r} is not a topic filter: {problem.detail}") from None
        if parse_subscription(each).topic_filter != each:
            raise ConfigError("topicFilter", f"{each!r} is for MQTT subscriptions only", "use the filter inside it")
    return list(dict.fromkeys(given[0]))


def _columns(table: OptionTable) -> list[str] | None:
    found = table.texts("columns")
    if found is None:
        return None
    if len(found) == 1:
        found = [each.strip() for each in found[0].split(",")]
    _checked("columns", lambda: history_columns.choose(found))
    return found


def _bound(table: OptionTable, which: str) -> Bound | None:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if table.has(offsets) and table.has(timestamp):
        raise ConfigError(offsets, f"conflicts with {timestamp}", "give one of the two")
    if table.has(timestamp):
        moment = table.text(timestamp)
        _checked(timestamp, lambda: parse_start(moment))
        return Bound(moment=moment)
    text = table.text(offsets)
    if not text:
        return None
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    try:
        return Bound(offset=parse_offset(json.loads(text)))
    except (ValueError, UsageError) as problem:
        detail = problem.detail if isinstance(problem, UsageError) else "is not JSON"
        hint = (
            'write earliest, latest, or JSON such as {"0": 1700000000000000} (a position for each shard, without topics), '
            "or an offset as progress reports show it"
        )
        raise ConfigError(offsets, detail, hint) from None


def _checked(name: str, parse: Callable[[], T]) -> T:
    """The result of `parse`; its errors are raised as ConfigError of the option `name`."""
    try:
        return parse()
    except UsageError as problem:
        raise ConfigError(name, problem.detail, problem.hint) from None
