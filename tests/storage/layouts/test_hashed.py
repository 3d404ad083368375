"""The hashed layout: where the bits of a level are, and what a filter's mask leaves out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.topic_index import MaskQuery
from braidmq.storage.layouts import HashedLayout


def query_of(layout: HashedLayout, topic_filter: str) -> MaskQuery:
    (query,) = layout.plan(topic_filter)
    assert isinstance(query, MaskQuery)
    return query


def test_an_index_has_the_documented_bytes() -> None:
    # 0xCBF43926 is the check value of the CRC; a field of 16 bits takes 1 to 65535, and 0 is a level that is not there.
    field = 1 + (0xCBF43926 * 0x9E3779B1 % 2**32 * 65_535 >> 32)

    assert HashedLayout((16, 16)).index(b"123456789") == field.to_bytes(2, "big") + b"\0\0"


def test_parameters_have_the_documented_bytes() -> None:
    # version, interleaved, number of levels, bits of each
    assert HashedLayout((16, 4, 4), is_interleaved=True).parameters() == bytes.fromhex("01 01 03 10 04 04")
    assert HashedLayout().parameters() == bytes.fromhex("01 00 04 10 10 10 10")


def test_the_mask_excludes_the_bits_of_a_wildcard_level() -> None:
    layout = HashedLayout((8, 8, 8))

    query = query_of(layout, "foo/+/bar")

    index = layout.index(b"foo/any/bar")
    assert query.mask == b"\xff\x00\xff"
    assert query.pattern == index[:1] + b"\0" + index[2:]


def test_the_mask_of_a_filter_with_a_hash_ends_at_the_hash() -> None:
    layout = HashedLayout((8, 8, 8))

    assert query_of(layout, "foo/#").mask == b"\xff"
    assert query_of(layout, "+/#").mask == b""
    assert query_of(layout, "#").mask == b""


def test_the_mask_requires_that_further_levels_are_absent() -> None:
    layout = HashedLayout((8, 8, 8))

    assert query_of(layout, "+").mask == b"\x00\xff\xff"
    assert query_of(layout, "+").pattern == b"\0\0\0"


@pytest.mark.parametrize("topic_filter", ["+", "a", "+/b", "a/b/c", "+/+/c", "a/", "/", "+/"])
def test_topics_with_another_number_of_levels_are_never_found(topic_filter: str) -> None:
    layout = HashedLayout((2, 2, 2, 2))
    query = query_of(layout, topic_filter)
    topics = ["/".join(levels) for depth in (1, 2, 3) for levels in product(("a", "b", "c", "", "x"), repeat=depth)]

    found = {topic.count("/") for topic in topics if query.matches(layout.index(topic.encode()))}

    assert found == {topic_filter.count("/")}


def test_the_index_query_of_a_final_plus_also_matches_the_parent_topic() -> None:
    # A mask cannot say "not 0"; the reader sorts these out.
    layout = HashedLayout((8, 8, 8))

    assert query_of(layout, "a/+").matches(layout.index(b"a"))
    assert not query_of(layout, "a/+").matches(layout.index(b"a/b/c"))


def test_levels_beyond_the_last_field_are_joined() -> None:
    layout = HashedLayout((16, 16, 32))
    topics = ["a/b/c", "a/b/c/d", "a/b/c/e", "a/b/c/d/e"]
    indexes = {topic: layout.index(topic.encode()) for topic in topics}

    assert len(set(indexes.values())) == 4
    for topic in topics:
        assert {each for each in topics if query_of(layout, topic).matches(indexes[each])} == {topic}
    # A wildcard among the joined levels leaves nothing to hold on to there.
    assert query_of(layout, "a/b/c/+").mask == b"\xff\xff\xff\xff"
    assert query_of(layout, "a/b/+").mask == b"\xff\xff\xff\xff"
    assert query_of(layout, "a/b/c/#").mask == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("bits", [(4, 4), (1, 2, 5), (3, 9, 1, 3), (16, 16, 16, 16), (32, 8)])
@given(st.sampled_from(["a", "a/b", "a/b/c/d/e", "/", "dev/17"]))
def test_interleaving_takes_a_bit_of_each_level_in_turn(bits: tuple[int, ...], topic: str) -> None:
    total = sum(bits)
    plain = f"{int.from_bytes(HashedLayout(bits).index(topic.encode()), 'big'):0{total}b}"
    fields = [plain[sum(bits[:number]) : sum(bits[: number + 1])] for number in range(len(bits))]

    index = HashedLayout(bits, is_interleaved=True).index(topic.encode())

    woven = "".join(field[turn] for turn in range(max(bits)) for field in fields if turn < len(field))
    assert f"{int.from_bytes(index, 'big'):0{total}b}" == woven


def test_similar_names_rarely_share_a_hash() -> None:
    layout = HashedLayout((16,), cached_topics_max=2)

    values = {layout.index(b"device-%06d" % number) for number in range(10_000)}

    # 10 000 balls thrown into 65 535 urns hit 9 274 of them on average.
    assert len(values) > 9_100


@pytest.mark.parametrize("bits", [(), (7,), (0, 8), (33, 7), (16,) * 9, (8, -8, 8)])
def test_invalid_numbers_of_bits_are_rejected(bits: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="a whole number of bytes and at most 128 bits"):
        HashedLayout(bits)


def test_this_layout_stores_no_rows() -> None:
    with pytest.raises(Corruption):
        HashedLayout.from_parameters(b"", rows=[(b"\0\0\0\2", b"row")])


def test_a_layout_and_its_heir_keep_the_counter_of_the_shard() -> None:
    layout = HashedLayout.from_parameters(b"", next_id=77)

    assert layout.next_id == 77
    assert layout.inherit(HashedLayout((8,)).parameters()).next_id == 77
