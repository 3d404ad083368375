"""The options of the sink, parsed. docs/spark.md describes each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.mqtt.packet_types import PACKET_ID_MAX
from braidmq.spark.option_table import CONNECTION_OPTIONS, OptionTable
from braidmq.spark.source import foreign_options

WRITE_OPTIONS: Final = (
    "servers",
    "qos",
    "keyColumn",
    "producerName",
    "onRefused",
    "deadLetterPath",
    "onPartitionChange",
    "onEarlierBatch",
    "maxInFlight",
    *CONNECTION_OPTIONS,
)

_PORT: Final = 1883
_TLS_PORT: Final = 8883
_PRODUCER_NAME_MAX: Final = 200


class Server(msgspec.Struct, frozen=True):
    """Where a broker listens."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where to publish, how, and as which user. Its repr contains no secret."""

    servers: list[Server]
    user: str
    password: str
    ca_file: str
    cert_file: str
    key_file: str
    server_name: str
    qos: int
    key_column: str
    producer_name: str
    dead_letter_path: str  # empty: a rejected row fails the task
    fails_on_partition_change: bool
    skips_earlier_batches: bool
    in_flight_max: int
    call_s: float
    retry_s: float
    unknown: tuple[str, ...]  # names of unknown options

    def __repr__(self) -> str:
        return f"WriteOptions({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        given = msgspec.structs.asdict(self).items()
        return [(name, "***" if name == "password" and value else value) for name, value in given]


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write` or `df.writeStream`; raises ConfigError with the option and the remedy."""
    table = OptionTable(options, WRITE_OPTIONS, foreign_options.WRITE)
    security = table.security()
    if security.password and not security.user:
        raise ConfigError("password", "needs the option user", "give both")
    return WriteOptions(
        servers=_servers(table, security.wants_tls),
        user=security.user,
        password=security.password,
        ca_file=security.ca_file,
        cert_file=security.cert_file,
        key_file=security.key_file,
        server_name=security.server_name,
        qos=int(table.choice("qos", ("0", "1", "2"), "1")),
        key_column=table.text("keyColumn"),
        producer_name=_producer_name(table),
        dead_letter_path=_dead_letter_path(table),
        fails_on_partition_change=table.choice("onPartitionChange", ("fail", "warn"), "fail") == "fail",
        skips_earlier_batches=table.choice("onEarlierBatch", ("fail", "skip"), "fail") == "skip",
        in_flight_max=min(table.count("maxInFlight") or PACKET_ID_MAX, PACKET_ID_MAX),
        call_s=table.call_s,
        retry_s=table.retry_s,
        unknown=table.unknown,
    )


def _producer_name(table: OptionTable) -> str:
    name = table.text("producerName")
    if len(name.encode()) > _PRODUCER_NAME_MAX or "\0" in name:
        raise ConfigError("producerName", f"is longer than {_PRODUCER_NAME_MAX} bytes", "choose a shorter name")
    return name


def _dead_letter_path(table: OptionTable) -> str:
    path = table.text("deadLetterPath")
    policy = table.choice("onRefused", ("fail", "deadLetter"), "deadLetter" if path else "fail")
    if policy == "deadLetter" and not path:
        raise ConfigError("deadLetterPath", "is not given", "set the path for rejected rows")
    return path if policy == "deadLetter" else ""


def _servers(table: OptionTable, wants_tls: bool) -> list[Server]:
    given = [each.strip() for each in table.text("servers", f"localhost:{_PORT}").split(",")]
    found = [_server(each, wants_tls) for each in given if each]
    if not found:
        raise ConfigError("servers", "contains no server", "write mqtt://host:1883, or several separated by commas")
    return list(dict.fromkeys(found))


def _server(text: str, wants_tls: bool) -> Server:
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme not in ("mqtt", "mqtts"):
        hint = "write mqtt://host:1883 or mqtts://host:8883"
        if scheme.startswith("grpc"):
            hint = f"that is an address to read from; {hint}"
        raise ConfigError("servers", f"{scheme}:// is not a scheme of an MQTT server", hint)
    if "@" in rest:
        # Not quoted: the part before the @ may contain a password.
        raise ConfigError("servers", "contains credentials", "use the options user and password")
    is_tls = scheme == "mqtts" if separator else wants_tls
    host, colon, port = rest.rstrip("/").rpartition(":")
    if not colon or rest.endswith("]"):
        host, port = rest.rstrip("/"), str(_TLS_PORT if is_tls else _PORT)
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_whole = bool(host) and "/" not in host and (":" not in host or is_bracketed)
    if not is_whole or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError("servers", f"{text!r} is not the address of a server", "write host:port, or [address]:port for IPv6")
    return Server(host.strip("[]"), int(port), is_tls)
