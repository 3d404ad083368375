"""Matches of an epoch: exactly what is wanted is collected, in both forms of the lane, and read in order of time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption
from braidmq.lane.records import scan
from braidmq.lane.records.records import TopicFilters, encode_record, record_key
from braidmq.lane.records.topic_index import MaskQuery
from tests.support.plain_form import plain_form

pytestmark = pytest.mark.smoke

EPOCH = bytes(7) + b"\x09"
START = 9


# Where nothing was compiled both are the plain one, and agree for that reason.
FORMS = [scan, plain_form("records.scan")]


class EveryOther:
    """A query for the indexes that are even numbers, up to a last one."""

    def __init__(self, last: int) -> None:
        self.last = last

    def matches(self, index: bytes) -> bool:
        number = int.from_bytes(index, "big")
        return number % 2 == 0 and number <= self.last

    def ratchet(self, index: bytes) -> bytes | None:
        number = int.from_bytes(index, "big")
        number += number % 2
        return number.to_bytes(4, "big") if number <= self.last else None


def key(number: int, offset: int) -> bytes:
    return record_key(EPOCH, number.to_bytes(4, "big"), offset)


def run(
    form: Any,
    found: Any,
    stored: list[tuple[bytes, bytes]],
    query: object,
    offset_max: int,
    steps: int,
    step_bytes: int = 1 << 30,
) -> None:
    lower = EPOCH
    for _ in range(300):
        pairs = iter([pair for pair in stored if pair[0] >= lower])
        state, place = found.collect(pairs, query, TopicFilters([b"t"], False), offset_max, steps, step_bytes)
        if state == form.ENDED:
            return
        lower = EPOCH + place if state == form.FAR else place + b"\0"
    raise AssertionError("the scan does not come to an end")


queries = st.one_of(
    st.none(),
    st.builds(EveryOther, st.integers(0, 14)),
    st.sampled_from((MaskQuery(b"\0\0\0\2", b"\xff\xff\xff\xff"), MaskQuery(b"\0\0\0\1", b"\0\0\0\1"), MaskQuery(b"", b""))),
)


@given(
    held=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 50), st.booleans()), max_size=60, unique_by=lambda each: each[1]),
    query=queries,
    offset_max=st.integers(0, 50),
    steps=st.integers(1, 9),
    step_bytes=st.integers(1, 100),
    has_values=st.booleans(),
    runs=st.integers(1, 2),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 600)),
)
def test_both_forms_find_each_wanted_record_once_in_order(
    held: list[tuple[int, int, bool]],
    query: Any,
    offset_max: int,
    steps: int,
    step_bytes: int,
    has_values: bool,
    runs: int,
    bounds: tuple[int, int, int],
) -> None:
    def value(offset: int, is_wanted: bool) -> bytes:
        return encode_record(b"t" if is_wanted else b"u", b"%d" % offset, 1, False, "p")

    stored = sorted((key(number, offset), value(offset, is_wanted)) for number, offset, is_wanted in held)
    expected = sorted(
        (offset, key(number, offset), value(offset, True))
        for number, offset, is_wanted in held
        if is_wanted and offset <= offset_max and (query is None or query.matches(number.to_bytes(4, "big")))
    )
    after, count_max, bytes_max = bounds

    for form in FORMS:
        found = form.Matches(has_values)
        for _ in range(runs):
            run(form, found, stored, query, offset_max, steps, step_bytes)
        found.order()
        later = [each for each in expected if each[0] > after][:count_max]

        assert len(found) == len(expected)
        if has_values:
            records, size = found.read(START, START + after, count_max, bytes_max)
            assert [(each.timestamp, each.value) for each in records] == [
                (START + each[0], each[2]) for each in later[: len(records)]
            ]
            assert size == sum(len(each.value) for each in records)
            assert len(records) == len(later) or size >= bytes_max
            assert len(records) <= 1 or size - len(records[-1].value) < bytes_max
        else:
            assert found.read_keys(START, START + after, count_max) == [each[1] for each in later]


def test_both_forms_count_the_same_bytes() -> None:
    stored = [(key(1, offset), encode_record(b"t", bytes(offset), 1, False, "p")) for offset in range(5)]
    sizes = set()
    for form in FORMS:
        found = form.Matches(True)
        run(form, found, stored, None, 50, 3)
        sizes.add(found.size_bytes)

    assert len(sizes) == 1
    assert sizes.pop() > sum(len(value) for _, value in stored)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("payload_bytes", [0, 1, 7, 3000, 70_000, 300_000])
def test_values_of_every_size_are_read_as_written(form: Any, payload_bytes: int) -> None:
    # From many to a block of memory up to one that is larger than a block, small ones in between.
    sizes = [payload_bytes, 3] * 40
    values = [encode_record(b"t", bytes([number]) * size, 1, False, "p") for number, size in enumerate(sizes)]
    stored = [(key(number, 1000 - number), value) for number, value in enumerate(values)]
    found = form.Matches(True)

    run(form, found, stored, None, 1000, 7)
    found.order()

    records, size = found.read(START, 0, 1000, 1 << 40)
    assert [record.value for record in records] == values[::-1]
    assert [record.timestamp for record in records] == sorted(START + 1000 - number for number in range(len(values)))
    assert size == sum(map(len, values))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "broken", [(b"short", encode_record(b"t", b"", 1, False, "")), (key(1, 1), b"\x01\x01\x00\x09\x00\x00t")]
)
def test_a_broken_row_is_corruption(form: Any, broken: tuple[bytes, bytes]) -> None:
    with pytest.raises(Corruption):
        form.Matches(True).collect(iter([broken]), None, TopicFilters([b"#"], False), 50, 3, 1000)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("query", [None, EveryOther(100)])
def test_no_record_is_examined_once_the_bytes_are_reached_whether_it_matches_or_not(form: Any, query: object) -> None:
    value = encode_record(b"t", bytes(1000), 1, False, "p")
    stored = [(key(number, number), value) for number in range(20)]
    pairs = iter(stored)

    state, _ = form.Matches(True).collect(pairs, query, TopicFilters([b"t"], False), 100, 256, 3000)

    assert state in (form.PAUSED, form.FAR)
    assert len(list(pairs)) == 20 - 3
