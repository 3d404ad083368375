"""Keys and rows of a shard are the bytes that were released, and read back as what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.records import record_key
from braidmq.storage.format import rows
from braidmq.storage.format.record import Record, decode_record, encode_record
from braidmq.storage.format.rows import EpochLimits, EpochRow, GenerationRow, ProducerRow, ShardRow
from tests.storage.golden import golden

EPOCH = 1_700_000_000_000_000
SHARD = ShardRow(EPOCH + 258, EPOCH, 3, 0x123, 0x11, 7, 0x00060A2400000000)
EPOCH_ROW = EpochRow(EPOCH, EPOCH + 258, 3, 0x123, frozenset((b"\0\0\0\x11", b"\0\0\0\x01")))
EPOCH_ANY = EpochRow(EPOCH, EPOCH + 258, 3, 0x123)
GENERATION = GenerationRow(2, EPOCH, "learned", b"\x01\x64\x0a", EpochLimits())
PRODUCER = ProducerRow(42, EPOCH + 258)
CHECKED = ProducerRow(42, EPOCH + 258, 0x48383195)


def test_rows_are_written_with_the_bytes_of_the_released_format() -> None:
    written = {
        "record-plain": encode_record(b"a/b", b"hi", 1, False, "p"),
        "record-full": encode_record(b"t", b"x", 2, True, "é", b"\x02\0\0\0\x01", 2_000_000, 1, 1_000_000, True),
        "record-key": record_key(EPOCH.to_bytes(8, "big"), bytes.fromhex("0000001122334455"), 258),
        "shard-row": rows.encode_shard(SHARD),
        "epoch-key": rows.epoch_key(EPOCH),
        "epoch-row": rows.encode_epoch(EPOCH_ROW),
        "epoch-row-any": rows.encode_epoch(EPOCH_ANY),
        "generation-key": rows.generation_key(2),
        "generation-row": rows.encode_generation(GENERATION),
        "layout-prefix": rows.layout_prefix(2),
        "producer-key": rows.producer_key(b"n1/3"),
        "producer-row": rows.encode_producer(PRODUCER),
        "producer-row-2": rows.encode_producer(CHECKED),
    }

    assert written == golden("log")


def test_rows_of_the_released_format_are_read() -> None:
    stored = golden("log")

    assert rows.decode_shard(stored["shard-row"]) == SHARD
    assert rows.decode_epoch(stored["epoch-key"], stored["epoch-row"]) == EPOCH_ROW
    assert rows.decode_epoch(stored["epoch-key"], stored["epoch-row-any"]) == EPOCH_ANY
    assert rows.decode_generation(stored["generation-key"], stored["generation-row"]) == GENERATION
    assert rows.decode_producer(stored["producer-row"]) == PRODUCER
    assert rows.decode_producer(stored["producer-row-2"]) == CHECKED
    record = decode_record(EPOCH, stored["record-full"])
    assert (record.topic, record.publisher, record.payload) == (b"t", "é", b"x")


@pytest.mark.parametrize("name", ["shard-row", "epoch-row", "generation-row", "producer-row", "record-plain"])
def test_a_newer_format_is_rejected_with_a_clear_message(name: str) -> None:
    newer = b"\x03" + golden("log")[name][1:]

    with pytest.raises(UsageError, match="newer"):
        decode(name, newer)


@given(st.sampled_from(("shard-row", "epoch-row", "generation-row", "producer-row", "producer-row-2")), st.data())
def test_a_row_cut_short_is_corruption(name: str, data: st.DataObject) -> None:
    whole = golden("log")[name]
    # The parameters at the end of a generation's row are the layout's to check.
    end = len(whole) - (4 if name == "generation-row" else 1)
    cut = whole[: data.draw(st.integers(0, end))]

    with pytest.raises(Corruption):
        decode(name, cut)


def decode(name: str, value: bytes) -> object:
    match name:
        case "shard-row":
            return rows.decode_shard(value)
        case "epoch-row":
            return rows.decode_epoch(golden("log")["epoch-key"], value)
        case "generation-row":
            return rows.decode_generation(golden("log")["generation-key"], value)
        case "producer-row" | "producer-row-2":
            return rows.decode_producer(value)
        case _:
            return decode_record(EPOCH, value)


def test_retention_cannot_reach_anything_but_records() -> None:
    other = [
        rows.SHARD_KEY,
        rows.epoch_key(0),
        rows.generation_key(0),
        rows.layout_prefix(0),
        rows.producer_key(b""),
    ]

    assert min(other) > rows.TIMESTAMP_MAX.to_bytes(8, "big")


def test_a_record_is_read_by_the_form_in_use() -> None:
    assert isinstance(decode_record(5, golden("log")["record-plain"]), Record)
