"""The options of the source, parsed. docs/spark.md describes each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from braidmq.base.errors import ConfigError, ProtocolViolation, UsageError
from braidmq.base.starts import parse_start
from braidmq.flight import columns as history_columns
from braidmq.flight.access import PORT, Access, parse_servers
from braidmq.mqtt.topics import check_filter, parse_subscription
from braidmq.spark.offsets import Offset, parse_offset
from braidmq.spark.option_table import OptionTable

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
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "readerName",
    "pushdown",
    "user",
    "password",
    "token",
    "tls",
    "tls.caFile",
    "tls.certFile",
    "tls.keyFile",
    "tls.serverName",
    "timeout",
    "retryTimeout",
)

_TABLE_HINT: Final = (
    'write .option("topicFilter", "plant/#") or .load("plant/#"); options of CREATE TABLE do not reach a Python source: '
    "give them with the read, or in SELECT ... FROM t WITH (...)"
)


class Bound(msgspec.Struct, frozen=True):
    """Where a read begins or ends: a word, a time as it was written, or an offset."""

    at: Literal["earliest", "latest"] | None = None
    moment: str | None = None
    offset: Offset | None = None


EARLIEST: Final = Bound(at="earliest")
LATEST: Final = Bound(at="latest")


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, from where, how fast and as whom. Its repr has no secret."""

    servers: list[str]
    access: Access
    filters: list[str]
    start: Bound | None  # None: what is usual for a batch or for a stream
    end: Bound | None
    rows_max: int | None
    bytes_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    columns: list[str] | None
    reader_name: str
    pushdown: bool
    call_s: float
    retry_s: float

    @property
    def on_loss(self) -> Literal["fail", "skip"]:
        """What the service does if retention was faster."""
        return "fail" if self.fail_on_data_loss else "skip"


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Read what `spark.read` or `spark.readStream` was given; raises ConfigError that names the option and the remedy."""
    table = OptionTable(options, READ_OPTIONS)
    access = parse_access(table)
    return ReadOptions(
        servers=_checked("servers", lambda: parse_servers(table.text("servers", f"localhost:{PORT}"), tls=access.wants_tls)),
        access=access,
        filters=_filters(table),
        start=_bound(table, "starting"),
        end=_bound(table, "ending"),
        rows_max=table.count("maxRowsPerTrigger"),
        bytes_max=table.size("maxBytesPerTrigger"),
        partitions_min=table.count("minPartitions") or 0,
        fail_on_data_loss=table.flag("failOnDataLoss", True),
        columns=_columns(table),
        reader_name=table.text("readerName"),
        pushdown=table.flag("pushdown", False),
        call_s=table.seconds("timeout", 30.0),
        retry_s=table.seconds("retryTimeout", 60.0),
    )


def parse_access(table: OptionTable) -> Access:
    """Credentials and TLS."""
    access = Access(
        user=table.text("user"),
        password=table.secret("password"),
        token=table.secret("token").strip(),
        reader=table.text("readerName"),
        tls=table.flag("tls", False),
        ca_file=table.text("tls.caFile"),
        cert_file=table.text("tls.certFile"),
        key_file=table.text("tls.keyFile"),
        server_name=table.text("tls.serverName"),
    )
    _checked("tls.certFile" if bool(access.cert_file) != bool(access.key_file) else "user", access.check)
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
            raise ConfigError("topicFilter", f"{each!r} is for MQTT clients", "give the filter inside it")
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
        raise ConfigError(offsets, f"is given, and so is {timestamp}", "give one of the two")
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
        hint = 'write earliest, latest, or JSON such as {"0": 1700000000000000}, or an offset as progress reports show it'
        raise ConfigError(offsets, detail, hint) from None


def _checked(name: str, parse: Callable[[], T]) -> T:
    """What `parse` gives; what it has against it is said about the option `name`."""
    try:
        return parse()
    except UsageError as problem:
        raise ConfigError(name, problem.detail, problem.hint) from None
