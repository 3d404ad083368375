"""Export formats of records: JSON lines, CSV, Parquet."""

from __future__ import annotations

import csv
import importlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec

from braidmq.base.history_columns import BY_NAME, HistoryColumn, Kind
from braidmq.cli.ctl.show import moment
from braidmq.cli.errors import CommandFailed
from braidmq.control.history import RecordLine

Format = Literal["json", "csv", "parquet"]

# The fields of a record, in the order of JSON and CSV.
_FIELDS: Final = (
    *("topic", "payload", "encoding", "qos", "retain", "client_id"),
    *("shard", "timestamp", "published_at", "expires_at", "properties"),
)
_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 32 * 1024 * 1024


class RecordWriter(Protocol):
    """Writes records; created by `record_writer`."""

    def write(self, record: RecordLine) -> None:
        """Write one record."""
        ...

    def finish(self) -> None:
        """Write the rest and complete the output."""
        ...

    def abandon(self) -> None:
        """Abort: the output is incomplete and will be discarded."""
        ...


def row_of(record: RecordLine) -> dict[str, Any]:
    """The fields of a record as they are written, with a readable time. Fields without a value are left out."""
    fields = ((name, getattr(record, name)) for name in _FIELDS)
    return {"time": moment(record.timestamp), **{name: value for name, value in fields if value is not None}}


class JsonWriter:
    """One JSON object per line."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()

    def write(self, record: RecordLine) -> None:
        """Write one line."""
        self._out.write(self._encoder.encode(row_of(record)) + b"\n")

    def finish(self) -> None:
        """Flush the buffer."""
        self._out.flush()

    def abandon(self) -> None:
        """Nothing is buffered."""


class _Utf8:
    """The file object for the csv module. A text wrapper around the output would close it at the end."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, text: str) -> None:
        self._out.write(text.encode())


class CsvWriter:
    """CSV (RFC 4180) with a header; properties are JSON."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._rows = csv.writer(_Utf8(out))
        self._rows.writerow(("time", *_FIELDS))

    def write(self, record: RecordLine) -> None:
        """Write one row."""
        row = row_of(record)
        if record.properties:
            row["properties"] = msgspec.json.encode(record.properties).decode()
        self._rows.writerow(row.get(name) for name in ("time", *_FIELDS))

    def finish(self) -> None:
        """Flush the buffer."""
        self._out.flush()

    def abandon(self) -> None:
        """Nothing is buffered."""


class ParquetWriter:
    """A Parquet file with the columns of history, the same as those of Arrow Flight; written with pyarrow."""

    def __init__(self, out: BinaryIO) -> None:
        self._arrow, parquet = load_pyarrow()
        from braidmq.flight.columns import SCHEMA

        self._schema = SCHEMA
        self._values_of = [_reader(BY_NAME[name]) for name in SCHEMA.names]
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._columns: list[list[Any]] = [[] for _ in self._schema]
        self._bytes = 0

    def write(self, record: RecordLine) -> None:
        """Add one row; rows are written in batches."""
        for column, value_of in zip(self._columns, self._values_of, strict=True):
            column.append(value_of(record))
        self._bytes += len(record.topic) + len(record.payload)
        if len(self._columns[0]) >= _BATCH_RECORDS or self._bytes >= _BATCH_BYTES:
            self._write_batch()

    def finish(self) -> None:
        """Write the last batch and the end of the file."""
        self._write_batch()
        self._writer.close()

    def abandon(self) -> None:
        """Make pyarrow release the output while it is still open; later it would fail."""
        self._writer.close()

    def _write_batch(self) -> None:
        if self._columns[0]:
            fields = zip(self._columns, self._schema, strict=True)
            arrays = [self._arrow.array(values, type=field.type) for values, field in fields]
            self._writer.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
        self._columns = [[] for _ in self._schema]
        self._bytes = 0


def _reader(column: HistoryColumn) -> Callable[[RecordLine], Any]:
    """A function that extracts the value of a column from a record."""
    if column.name == "payload":
        return _payload
    table, _, name = column.line.rpartition(".")
    if not table:
        return attrgetter(name)
    decode = _DECODERS.get(column.kind, lambda value: value)

    def read(record: RecordLine) -> Any:
        value = (record.properties or {}).get(name)
        return None if value is None else decode(value)

    return read


def _payload(record: RecordLine) -> bytes:
    return b64decode(record.payload) if record.encoding == "base64" else record.payload.encode()


def _pairs(pairs: list[list[str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


# The JSON form of values that are neither strings nor numbers.
_DECODERS: Final[dict[Kind, Callable[[Any], Any]]] = {Kind.BINARY: b64decode, Kind.PAIRS: _pairs}


def load_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet module, which are optional dependencies."""
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
    """A writer that is finished at the end, or abandoned after an error."""
    writer = _WRITERS[format_](out)
    try:
        yield writer
    except BaseException:
        writer.abandon()
        raise
    writer.finish()


def check_output(format_: Format, output: Path | None) -> None:
    """Raise CommandFailed for an invalid output, before minutes of reading."""
    if format_ == "parquet":
        if output is None:
            raise CommandFailed("Parquet output needs --output FILE")
        load_pyarrow()
    if output is not None and not output.parent.is_dir():
        raise CommandFailed(f"there is no directory {output.parent}")
