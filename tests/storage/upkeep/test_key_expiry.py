"""Rows of producers' keys: the released bytes, what is read back of them, and how they are forgotten."""

from __future__ import annotations

import pytest

from braidmq.base.errors import Corruption, UsageError
from braidmq.storage.format.key_rows import (
    KEY_VALUE,
    KEYS_END,
    KEYS_PREFIX,
    BatchRow,
    batch_key,
    decode_batch,
    encode_batch,
    message_key,
    name_end,
    name_of,
)
from braidmq.storage.upkeep.key_expiry import expire_keys
from tests.storage.golden import golden
from tests.support.fakes.store import FakeStore

EPOCH = 1_700_000_000_000_000
FAMILY = "f"


def test_rows_of_keys_are_the_released_bytes_and_are_read() -> None:
    stored = golden("producer keys")

    assert {
        "batch-key": batch_key(b"q1"),
        "batch-row": encode_batch(BatchRow(7 << 32, EPOCH, 6 << 32)),
        "batch-row-2": encode_batch(BatchRow(7 << 32, EPOCH, 6 << 32, 5)),
        "batch-row-owned": encode_batch(BatchRow(7 << 32, EPOCH, 6 << 32, 0, "bob")),
        "message-key": message_key(b"q1", 7 << 32, b"k"),
        "message-row": KEY_VALUE,
    } == stored
    assert decode_batch(stored["batch-row"]) == BatchRow(7 << 32, EPOCH, 6 << 32)
    assert decode_batch(stored["batch-row-2"]) == BatchRow(7 << 32, EPOCH, 6 << 32, 5)
    assert decode_batch(stored["batch-row-owned"]) == BatchRow(7 << 32, EPOCH, 6 << 32, 0, "bob")
    assert name_of(stored["batch-key"]) == name_of(stored["message-key"]) == b"q1"


def test_an_empty_user_name_differs_from_no_user() -> None:
    row = BatchRow(1, EPOCH, 1, owner="")

    assert decode_batch(encode_batch(row)) == row


@pytest.mark.parametrize(
    ("name", "size", "more"),
    [("batch-row", 25, b"\0"), ("batch-row-2", 30, b"\0"), ("batch-row-owned", 30, b"\xff")],
)
def test_a_newer_row_is_rejected_with_a_clear_message_and_a_broken_one_is_corruption(name: str, size: int, more: bytes) -> None:
    row = golden("producer keys")[name]

    with pytest.raises(UsageError, match="newer"):
        decode_batch(b"\x03" + row[1:])
    for broken in (b"", row[: size - 1], row + more, b"\0" + row[1:]):
        with pytest.raises(Corruption):
            decode_batch(broken)
    with pytest.raises(Corruption):
        name_of(b"\xed\x00\x05abc")


@pytest.mark.parametrize("name", [b"a", b"ab", b"b", b"\xff"])
def test_the_rows_of_a_name_are_between_its_first_and_its_end_and_no_others_are(name: bytes) -> None:
    keys = {
        each: [batch_key(each), message_key(each, 0, b""), message_key(each, 2**63 - 1, b"\xff" * 9)]
        for each in (b"a", b"ab", b"abc", b"b", b"", b"\xff")
    }

    inside = [key for each in keys.values() for key in each if batch_key(name) <= key < name_end(name)]

    assert inside == keys[name]


def test_unused_names_are_forgotten_in_slices() -> None:
    store = FakeStore()
    batch = store.batch()
    for name, used_at in ((b"old", 10), (b"young", 100), (b"ancient", 5)):
        batch.put(FAMILY, batch_key(name), encode_batch(BatchRow(1, used_at, 1)))
        for number in range(7):
            batch.put(FAMILY, message_key(name, 1, b"%d" % number), KEY_VALUE)
    store.write(batch)

    after, removed = b"", []
    for _ in range(8):
        batch = store.batch()
        after = expire_keys(store, FAMILY, batch, 50, after, rows_max=4)
        removed.append(len(batch.changes))
        store.write(batch)

    left = [key for key, _ in store.items(FAMILY, KEYS_PREFIX, KEYS_END)]
    assert {name_of(key) for key in left} == {b"young"}
    assert len(left) == 8
    assert max(removed) <= 5
