"""Batches have the schema that both sides agree on, and say of each record what the record says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from braidmq.flight.columns import SCHEMA, choose
from braidmq.history.scanning.batches import Batches, cut
from braidmq.lane.records.records import TopicFilters, encode_record, record_key

NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)
START = int(NOON.timestamp()) * 1_000_000
ALL = b"\x01\x01\x03\0\x04json\x08\0\x03r/t\x09\0\x02\xff\0\x26\0\x01k\0\x01v\x26\0\x01k\0\x02\xc3\xa4"


def collected(schema: pa.Schema, *values: bytes) -> Batches:
    batches = Batches(schema, 3)
    pairs = [(record_key(START.to_bytes(8, "big"), b"idx0", offset), value) for offset, value in enumerate(values)]
    batches.columns.collect(iter(pairs), None, TopicFilters([b"#"], False), None, 0, 1 << 60, 1000, 1 << 40, 1000)
    return batches


def test_every_column_has_the_value_of_the_record() -> None:
    plain = encode_record(b"a/b", b"\0\1", 1, False, "me")
    rich = encode_record("t/ä".encode(), b"", 2, True, "", ALL, expires_at=START + 5, published_at=START - 7)

    batch = collected(SCHEMA, plain, rich, plain).take()

    batch.validate(full=True)
    assert batch.schema == SCHEMA
    first, second, third = batch.to_pylist()
    assert first == {
        "topic": "a/b",
        "payload": b"\0\1",
        "qos": 1,
        "retain": False,
        "client_id": "me",
        "publish_timestamp": NOON,
        "store_timestamp": NOON,
        "payload_format": None,
        "content_type": None,
        "response_topic": None,
        "correlation_data": None,
        "user_properties": None,
        "expires_at": None,
        "shard": 3,
        "position": START,
    }
    assert second == {
        "topic": "t/ä",
        "payload": b"",
        "qos": 2,
        "retain": True,
        "client_id": "",
        "publish_timestamp": NOON - timedelta(microseconds=7),
        "store_timestamp": NOON + timedelta(microseconds=1),
        "payload_format": 1,
        "content_type": "json",
        "response_topic": "r/t",
        "correlation_data": b"\xff\0",
        "user_properties": [{"name": "k", "value": "v"}, {"name": "k", "value": "ä"}],
        "expires_at": NOON + timedelta(microseconds=5),
        "shard": 3,
        "position": START + 1,
    }
    later = NOON + timedelta(microseconds=2)
    assert third == first | {"position": START + 2, "store_timestamp": later, "publish_timestamp": later}


@pytest.mark.parametrize("columns", [["shard"], ["store_timestamp"], ["user_properties", "topic"], SCHEMA.names[::-1]])
def test_only_the_chosen_columns_are_made(columns: list[str]) -> None:
    batches = collected(choose(columns), encode_record(b"t", b"", 0, False, "", ALL))

    batch = batches.take()

    batch.validate(full=True)
    assert batch.schema == choose(columns)
    assert batch.num_rows == 1


def test_a_batch_without_rows_is_valid() -> None:
    batch = collected(SCHEMA).take()

    batch.validate(full=True)
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)


def test_a_batch_does_not_change_when_the_next_one_is_collected() -> None:
    batches = collected(SCHEMA, *[encode_record(b"t", b"%d" % number, 0, False, "", ALL) for number in range(100)])
    first = batches.take()
    before = first.to_pylist()

    pairs = [(record_key(bytes(8), b"idx0", offset), encode_record(b"u", b"x", 1, True, "c")) for offset in range(1, 900)]
    batches.columns.collect(iter(pairs), None, TopicFilters([b"#"], False), None, 0, 1 << 60, 1000, 1 << 40, 1000)
    second = batches.take()

    assert first.to_pylist() == before
    assert second.num_rows == 899


def test_batches_survive_being_sent() -> None:
    batch = collected(SCHEMA, encode_record(b"t", b"p", 1, False, "c", ALL), encode_record(b"t", b"p", 1, False, "c")).take()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)

    (received,) = pa.ipc.open_stream(sink.getvalue())

    assert received.equals(batch)


def test_a_batch_is_cut_into_pieces_of_a_size_with_every_row_once() -> None:
    values = [encode_record(b"a/b", bytes([number]) * 100, 1, False, "me", ALL) for number in range(100)]
    batch = collected(SCHEMA, *values).take()

    pieces = list(cut(batch, batch.nbytes // 10))

    assert 10 <= len(pieces) <= 12
    assert pa.Table.from_batches(pieces).to_pylist() == batch.to_pylist()
    assert len(list(cut(batch, 1))) == 100
    assert list(cut(batch.slice(0, 0), 1000)) == []
