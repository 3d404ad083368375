"""Queries by bit mask against brute force; the hash and the cache against what they promise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records.topic_index import CACHED_TOPIC_BYTES_MAX, EVERY_INDEX, IndexCache, MaskQuery, hash_level, level_key

WIDTHS = st.integers(1, 6)


@st.composite
def queries(draw: st.DrawFn, widths: st.SearchStrategy[int] = WIDTHS) -> MaskQuery:
    width = draw(widths)
    # Whole bytes are what layouts have most of.
    bytes_of_mask = st.sampled_from((0, 0xFF)) | st.integers(0, 0xFF)
    mask = bytes(draw(st.lists(bytes_of_mask, min_size=width, max_size=width)))
    pattern = draw(st.binary(min_size=width, max_size=width))
    return MaskQuery(bytes(a & b for a, b in zip(pattern, mask, strict=True)), mask)


def bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data)


def next_match(query: MaskQuery, start: bytes) -> str | None:
    """The bits of the smallest match of the query's own width from `start` on: as many bits as can be stay as they are."""
    wanted = "".join(bit if is_fixed == "1" else "?" for bit, is_fixed in zip(bits(query.pattern), bits(query.mask), strict=True))
    given_bits = bits(start[: len(query.mask)]).ljust(len(wanted), "0")
    smallest = wanted.replace("?", "0")
    if all(want in ("?", have) for want, have in zip(wanted, given_bits, strict=True)):
        return given_bits
    for kept in reversed(range(len(wanted))):
        same = given_bits[:kept]
        if given_bits[kept] == "0" and wanted[kept] != "0" and all(w in ("?", h) for w, h in zip(wanted, same, strict=False)):
            return same + "1" + smallest[kept + 1 :]
    return None


@given(queries(st.just(1)))
def test_ratchet_of_one_byte_agrees_with_brute_force(query: MaskQuery) -> None:
    for start in range(256):
        matching = [bytes([byte]) for byte in range(start, 256) if query.matches(bytes([byte]))]

        assert query.ratchet(bytes([start])) == (matching[0] if matching else None)


@given(queries(), st.binary(max_size=8))
def test_ratchet_keeps_the_longest_possible_prefix(query: MaskQuery, start: bytes) -> None:
    found = query.ratchet(start)

    expected = next_match(query, start)
    if query.matches(start):
        assert found == start
    elif expected is None:
        assert found is None
    else:
        assert found is not None
        assert bits(found) == expected
        assert found > start


@given(queries(), st.lists(st.binary(max_size=8), max_size=20))
def test_ratchet_never_goes_back(query: MaskQuery, starts: list[bytes]) -> None:
    found = [query.ratchet(start) for start in sorted(starts)]

    reached = [each for each in found if each is not None]
    assert reached == sorted(reached)
    assert None not in found[: len(reached)]


@given(queries())
def test_the_first_match_is_where_a_ratchet_from_nothing_leads(query: MaskQuery) -> None:
    assert query.first() == query.ratchet(b"")
    assert query.matches(query.first())


@given(st.binary(max_size=8))
def test_the_query_without_a_mask_matches_everything(index: bytes) -> None:
    assert EVERY_INDEX.matches(index)
    assert EVERY_INDEX.ratchet(index) == index
    assert EVERY_INDEX.static is None


def test_an_index_shorter_than_the_mask_does_not_match() -> None:
    query = MaskQuery(b"\x01\x00\x02", b"\xff\x00\xff")

    assert not query.matches(b"\x01\x00")
    assert query.matches(b"\x01\x07\x02\x09")
    assert query.ratchet(b"\x01") == b"\x01\x00\x02"


def test_four_fixed_bytes_are_the_static_part_of_a_query() -> None:
    assert MaskQuery(b"\0\0\0\x07\x05", b"\xff\xff\xff\xff\x0f").static == b"\0\0\0\x07"
    assert MaskQuery(b"\0\0\0\x07", b"\xff\xff\xff\x7f").static is None


def test_the_hash_of_a_level_never_changes() -> None:
    # 0xCBF43926 is the check value that defines this CRC.
    expected = 0xCBF43926 * 0x9E3779B1 % 2**32

    assert hash_level(b"123456789") == expected
    assert level_key(b"123456789") == expected.to_bytes(4, "big")


def test_the_cache_resolves_a_cached_topic_once() -> None:
    asked: list[bytes] = []

    def look_up(topic: bytes) -> bytes:
        asked.append(topic)
        return topic[::-1]

    cache = IndexCache(look_up, 4)

    given_back = [cache.index(topic) for topic in (b"ab", b"ab", b"cd", b"ab")]

    assert given_back == [b"ba", b"ba", b"dc", b"ba"]
    assert asked == [b"ab", b"cd"]


@given(st.integers(1, 8), st.lists(st.binary(min_size=1, max_size=1)))
def test_the_cache_never_exceeds_its_bound(topics_max: int, topics: list[bytes]) -> None:
    cache = IndexCache(lambda topic: topic * 2, topics_max)

    for topic in topics:
        assert cache.index(topic) == topic * 2
        assert len(cache) <= max(2, topics_max)


def test_topics_too_long_for_the_cache_are_not_kept() -> None:
    cache = IndexCache(lambda topic: b"i", 4)

    cache.index(b"x" * (CACHED_TOPIC_BYTES_MAX + 1))

    assert len(cache) == 0
