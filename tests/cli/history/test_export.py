"""An export and a read over Arrow Flight of the same records have the same columns, types and values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from braidmq.cli.history.formats import record_writer
from braidmq.control.history import RecordLine as Line
from braidmq.control.history import decode_line, encode_lines
from braidmq.flight.columns import SCHEMA
from braidmq.history.scanning.batches import Batches
from braidmq.lane.records.records import Record, TopicFilters, encode_record, record_key
from braidmq.operations.history_lines import record_line

START = 1_700_000_000_000_000
SHARD = 3
PROPERTIES = b"\x01\x01\x03\0\x04json\x08\0\x03r/t\x09\0\x02\xff\0\x26\0\x01k\0\x01v\x26\0\x01k\0\x02\xc3\xa4"
VALUES = [
    encode_record(b"a/b", b"\0\1\xff", 1, False, "me"),
    encode_record("t/ä".encode(), b"21.5", 2, True, "", PROPERTIES, expires_at=START + 5, published_at=START - 7),
    encode_record(b"a", b"", 0, False, "me", b"\x26\0\0\0\0"),
]


def over_flight() -> pa.Table:
    batches = Batches(SCHEMA, SHARD)
    pairs = [(record_key(START.to_bytes(8, "big"), b"idx0", offset), value) for offset, value in enumerate(VALUES)]
    batches.columns.collect(iter(pairs), None, TopicFilters([b"#"], False), None, 0, 1 << 60, 1000, 1 << 40, 1000)
    return pa.Table.from_batches([batches.take()])


def exported(file: Path) -> pa.Table:
    # A line crosses the wire as JSON before it is written.
    lines = [decode_line(encode_lines([record_line(SHARD, Record(START + at, value))])) for at, value in enumerate(VALUES)]
    with file.open("wb") as out, record_writer("parquet", out) as writer:
        for line in lines:
            assert isinstance(line, Line)
            writer.write(line)
    return pyarrow.parquet.read_table(file)


def test_an_export_has_the_rows_that_flight_has(tmp_path: Path) -> None:
    table = exported(tmp_path / "out.parquet")

    assert table.schema == SCHEMA
    assert table == over_flight()
