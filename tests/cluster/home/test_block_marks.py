"""The rows with which a home remembers a node's blocks: their bytes never change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.cluster.home.blocks.block_marks import BlockMarks, decode_mark, encode_mark, mark_key
from braidmq.cluster.protocol.blocks import FENCED, BlockMark
from braidmq.storage.rows.changes import Delete, check_change

# version, number 41; block 40, entry 2: 0x97; block 40, entry 3: -3 (fenced); block 41, all entries: 0x97
MARK = BlockMark(41, {40: {2: 0x97, 3: FENCED}, 41: {-1: 0x97}})
MARK_BYTES = bytes.fromhex(
    "01 00000000000000290000000000000028 00000002 00970000000000000028 00000003 fffd0000000000000029 ffffffff 0097"
)


def test_a_row_keeps_its_bytes() -> None:
    assert encode_mark(MARK) == MARK_BYTES
    assert decode_mark(MARK_BYTES) == MARK
    assert mark_key(7, 258) == bytes.fromhex("ef01 0000000000000007 0000000000000102")


@given(
    st.integers(0, 2**63),
    st.dictionaries(
        st.integers(1, 2**63),
        st.dictionaries(st.integers(-1, 2**31), st.one_of(st.integers(-3, -2), st.integers(0x80, 0xFF)), min_size=1),
    ),
)
def test_every_mark_is_read_as_it_was_written(number: int, outcomes: dict[int, dict[int, int]]) -> None:
    mark = BlockMark(number, outcomes)

    assert decode_mark(encode_mark(mark)) == mark


@pytest.mark.parametrize("value", [b"", MARK_BYTES[:-1], MARK_BYTES[:5], b"\0" + MARK_BYTES[1:]])
def test_a_damaged_row_is_corruption(value: bytes) -> None:
    with pytest.raises(Corruption):
        decode_mark(value)


def test_a_row_of_a_newer_version_is_left_to_that_version() -> None:
    with pytest.raises(UsageError, match="newer"):
        decode_mark(b"\x02" + MARK_BYTES[1:])


class Rows:
    """The rows of two shards."""

    shards = 2

    def __init__(self) -> None:
        self.found: dict[tuple[int, bytes], bytes] = {}

    def row(self, shard: int, key: bytes) -> bytes | None:
        return self.found.get((shard, key))

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(key, value) for (each, key), value in self.found.items() if each == shard and lower <= key < upper])


def test_only_the_rows_of_dead_incarnations_are_removed() -> None:
    rows = Rows()
    marks = BlockMarks(rows)
    for registration_id, incarnation in ((7, 1), (7, 2), (8, 1)):
        put = marks.put(1, registration_id, incarnation, MARK)
        assert check_change(put, shards=2)
        rows.found[put.shard, put.key] = put.value

    assert marks.load(7, 2) == {1: MARK}
    assert marks.load(7, 3) == {}
    assert marks.remove_dead([(7, 2)]) == [Delete(1, mark_key(7, 1)), Delete(1, mark_key(8, 1))]
