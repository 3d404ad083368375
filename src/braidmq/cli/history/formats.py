"""Records in the forms that other programs read: JSON lines, CSV, Parquet."""

from __future__ import annotations

import csv
import importlib
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec

from braidmq.api.history import Encoding, Record
from braidmq.cli.ctl.show import moment
from braidmq.cli.errors import CommandFailed

Format = Literal["json", "csv", "parquet"]

_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 32 * 1024 * 1024


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record as it is written; ``time`` is ``timestamp`` for people. ``encoding`` says whether ``payload`` is base64."""

    time: str
    topic: str
    payload: str
    encoding: Encoding
    qos: int
    retain: bool
    client_id: str
    shard: int
    timestamp: int
    published_at: int
    expires_at: int | None = None
    properties: dict[str, Any] | None = None


class RecordWriter(Protocol):
    """Writes records; `record_writer` makes one."""

    def write(self, record: Record) -> None:
        """Take in one record."""
        ...

    def finish(self) -> None:
        """Write what is left: the output is whole."""
        ...

    def abandon(self) -> None:
        """There will be no more, and what is there is of no use."""
        ...


def row_of(record: Record) -> Row:
    """The record with its time in words."""
    return Row(
        time=moment(record.timestamp),
        topic=record.topic,
        payload=record.payload,
        encoding=record.encoding,
        qos=record.qos,
        retain=record.retain,
        client_id=record.client_id,
        shard=record.shard,
        timestamp=record.timestamp,
        published_at=record.published_at,
        expires_at=record.expires_at,
        properties=record.properties,
    )


class JsonWriter:
    """One JSON object a line."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()

    def write(self, record: Record) -> None:
        """Write one line."""
        self._out.write(self._encoder.encode(row_of(record)) + b"\n")

    def finish(self) -> None:
        """Hand over what is buffered."""
        self._out.flush()

    def abandon(self) -> None:
        """Nothing is held back."""


class _Utf8:
    """What the csv module writes its rows to. A text file around the output would close it in the end."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, text: str) -> None:
        self._out.write(text.encode())


class CsvWriter:
    """CSV as RFC 4180 has it, with a header; properties are JSON."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._rows = csv.writer(_Utf8(out))
        self._rows.writerow(Row.__struct_fields__)

    def write(self, record: Record) -> None:
        """Write one row."""
        *fields, properties = msgspec.structs.astuple(row_of(record))
        self._rows.writerow((*fields, msgspec.json.encode(properties).decode() if properties else None))

    def finish(self) -> None:
        """Hand over what is buffered."""
        self._out.flush()

    def abandon(self) -> None:
        """Nothing is held back."""


class ParquetWriter:
    """A Parquet file with payloads as bytes and times as timestamps in UTC; pyarrow writes it."""

    def __init__(self, out: BinaryIO) -> None:
        self._arrow, parquet = load_pyarrow()
        arrow = self._arrow
        when = arrow.timestamp("us", tz="UTC")
        self._schema = arrow.schema(
            [
                arrow.field("timestamp", when, nullable=False),
                arrow.field("topic", arrow.string(), nullable=False),
                arrow.field("payload", arrow.binary(), nullable=False),
                arrow.field("qos", arrow.int8(), nullable=False),
                arrow.field("retain", arrow.bool_(), nullable=False),
                arrow.field("client_id", arrow.string(), nullable=False),
                arrow.field("shard", arrow.int32(), nullable=False),
                arrow.field("published_at", when, nullable=False),
                arrow.field("expires_at", when),
                arrow.field("properties", arrow.string()),
            ]
        )
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._columns: list[list[Any]] = [[] for _ in self._schema]
        self._bytes = 0

    def write(self, record: Record) -> None:
        """Collect one row; a batch of them is written at once."""
        payload = b64decode(record.payload) if record.encoding == "base64" else record.payload.encode()
        properties = msgspec.json.encode(record.properties).decode() if record.properties else None
        row = (record.timestamp, record.topic, payload, record.qos, record.retain, record.client_id, record.shard,
               record.published_at, record.expires_at, properties)  # fmt: skip
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._bytes += len(record.topic) + len(payload)
        if len(self._columns[0]) >= _BATCH_RECORDS or self._bytes >= _BATCH_BYTES:
            self._write_batch()

    def finish(self) -> None:
        """Write the last batch and the end of the file."""
        self._write_batch()
        self._writer.close()

    def abandon(self) -> None:
        """Let pyarrow let go of the output as long as it is open; later it would complain."""
        self._writer.close()

    def _write_batch(self) -> None:
        if self._columns[0]:
            fields = zip(self._columns, self._schema, strict=True)
            arrays = [self._arrow.array(values, type=field.type) for values, field in fields]
            self._writer.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
        self._columns = [[] for _ in self._schema]
        self._bytes = 0


def load_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet module, which are installed only by those who want them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CommandFailed("Parquet files need pyarrow: install braidmq[history]") from None


_WRITERS: Final[dict[Format, type[JsonWriter] | type[CsvWriter] | type[ParquetWriter]]] = {
    "json": JsonWriter,
    "csv": CsvWriter,
    "parquet": ParquetWriter,
}


@contextmanager
def record_writer(format_: Format, out: BinaryIO) -> Iterator[RecordWriter]:
    """A writer that is finished in the end, or abandoned."""
    writer = _WRITERS[format_](out)
    try:
        yield writer
    except BaseException:
        writer.abandon()
        raise
    writer.finish()


def check_output(format_: Format, output: Path | None) -> None:
    """Raise CommandFailed at once, and not after minutes of reading, if the output cannot be."""
    if format_ == "parquet":
        if output is None:
            raise CommandFailed("a Parquet file needs a name: give --output FILE")
        load_pyarrow()
    if output is not None and not output.parent.is_dir():
        raise CommandFailed(f"there is no directory {output.parent}")
