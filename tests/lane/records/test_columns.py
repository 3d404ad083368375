"""Columns hold exactly the records that are wanted, field by field, and the same in both forms of the lane."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records import columns
from braidmq.lane.records.records import TopicFilters, encode_record, record_key
from braidmq.lane.records.seek import ENDED, FAR, PAUSED
from braidmq.lane.records.topic_index import MaskQuery
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.properties import Properties, write_properties
from tests.mqtt.strategies import properties_of
from tests.support.plain_form import plain_form

EPOCH = (1_700_000_000_000_000).to_bytes(8, "big")
START = int.from_bytes(EPOCH, "big")
NO_LIMIT = 1 << 40


# Where nothing was compiled both are the plain one, and agree for that reason.
FORMS = [columns, plain_form("records.columns")]


class Message(NamedTuple):
    """A record as a reader thinks of it."""

    place: int
    offset: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: str
    properties: Properties
    expires_at: int
    published_at: int
    session_only: bool

    @property
    def pair(self) -> tuple[bytes, bytes]:
        written = write_properties(self.properties, PacketType.PUBLISH)
        size = 1
        while written[size - 1] & 0x80:
            size += 1
        value = encode_record(
            self.topic.encode(),
            self.payload,
            self.qos,
            self.retain,
            self.client,
            written[size:],
            expires_at=self.expires_at,
            published_at=self.published_at,
            session_only=self.session_only,
        )
        return record_key(EPOCH, self.place.to_bytes(4, "big"), self.offset), value

    @property
    def row(self) -> dict[str, object]:
        """What each column says of it."""
        key, value = self.pair
        properties = self.properties
        return {
            "topic": self.topic,
            "payload": self.payload,
            "qos": self.qos,
            "retain": self.retain,
            "client_id": self.client,
            "publish_timestamp": self.published_at or START + self.offset,
            "payload_format": properties.payload_format_indicator,
            "content_type": properties.content_type,
            "response_topic": properties.response_topic,
            "correlation_data": properties.correlation_data,
            "user_properties": [*properties.user_properties] or None,
            "expires_at": self.expires_at or None,
            "position": START + self.offset,
            "size": len(key) + len(value),
        }


def decoded(name: str, rows: int, column: tuple[int, list[Any]]) -> list[object]:
    """The values of a column by Arrow's specification."""
    nulls, (validity, *buffers) = column
    is_there = [True] * rows if validity is None else [bool(bytes(validity)[row >> 3] >> (row & 7) & 1) for row in range(rows)]
    assert is_there.count(False) == nulls
    assert validity is not None or nulls == 0
    values: Sequence[object]
    if name in columns.FLAGS:
        values = [bool(bytes(buffers[0])[row >> 3] >> (row & 7) & 1) for row in range(rows)]
    elif name in columns.NUMBERS:
        values = memoryview(bytes(buffers[0])).cast("i" if name in columns.NARROW else "q").tolist()
    elif name == "user_properties":
        ends = memoryview(bytes(buffers[0])).cast("i").tolist()
        names, texts = variable(buffers[1:3], is_text=True), variable(buffers[3:5], is_text=True)
        pairs = [*zip(names, texts, strict=True)]
        values = [pairs[ends[row] : ends[row + 1]] for row in range(rows)]
        assert (ends[0], ends[-1]) == (0, len(pairs))
    else:
        values = variable(buffers, is_text=name in columns.TEXTS)
    assert len(values) == rows
    return [value if there else None for value, there in zip(values, is_there, strict=True)]


def variable(buffers: list[Any], *, is_text: bool) -> list[bytes | str]:
    ends = memoryview(bytes(buffers[0])).cast("i").tolist()
    data = bytes(buffers[1])
    assert (ends[0], ends[-1]) == (0, len(data))
    values = [data[begin:end] for begin, end in pairwise(ends)]
    return [value.decode() for value in values] if is_text else [*values]


def rows_of(found: Any) -> list[dict[str, object]]:
    rows = len(found)
    taken = {name: decoded(name, rows, column) for name, column in found.take().items()}
    assert len(found) == found.size_bytes == 0
    return [{name: values[row] for name, values in taken.items()} for row in range(rows)]


topics = st.sampled_from(["a", "a/b", "a/ä", "b/b", "$SYS/x", "温度/1"])
messages = st.builds(
    Message,
    place=st.integers(0, 6),
    offset=st.integers(0, 200),
    topic=topics,
    payload=st.binary(max_size=40),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    client=st.text(max_size=5).filter(lambda text: "\0" not in text),
    properties=st.just(Properties()) | properties_of(PacketType.PUBLISH),
    expires_at=st.just(0) | st.integers(1, 2**55),
    published_at=st.just(0) | st.integers(1, 2**55),
    session_only=st.sampled_from([False] * 5 + [True]),
)
held = st.lists(messages, max_size=40, unique_by=lambda each: each.offset)
filters = st.sampled_from([["#"], ["a/#"], ["a", "b/b"], ["+/b"], ["$SYS/#"], ["#", "$SYS/x"]])
queries = st.sampled_from(
    [None, MaskQuery(b"\0\0\0\2", b"\xff\xff\xff\xff"), MaskQuery(b"\0\0\0\1", b"\0\0\0\1"), MaskQuery(b"", b"")]
)


def matcher(topic_filters: Sequence[str]) -> TopicFilters:
    return TopicFilters([each.encode() for each in topic_filters], False)


@given(
    kept=held,
    query=queries,
    wanted=filters,
    excluded=st.none() | filters,
    bounds=st.tuples(st.integers(-1, 210), st.integers(-1, 210)),
    names=st.lists(st.sampled_from(columns.NAMES), unique=True),
    limits=st.tuples(st.integers(1, 9), st.integers(1, 400), st.integers(1, 9)),
)
def test_both_forms_give_the_wanted_rows_in_order_under_any_limits(
    kept: list[Message],
    query: MaskQuery | None,
    wanted: list[str],
    excluded: list[str] | None,
    bounds: tuple[int, int],
    names: list[str],
    limits: tuple[int, int, int],
) -> None:
    stored = sorted(each.pair for each in kept)
    after, upto = START + bounds[0], START + bounds[1]
    rows_max, bytes_max, steps_max = limits
    barred = matcher(excluded) if excluded is not None else None
    expected = [
        {name: each.row[name] for name in names}
        for each in sorted(kept, key=lambda each: (each.place, each.offset))
        if not each.session_only
        and bounds[0] < each.offset <= bounds[1]
        and (query is None or query.matches(each.place.to_bytes(4, "big")))
        and matcher(wanted).matches_topic(each.topic.encode())
        and not (barred is not None and barred.matches_topic(each.topic.encode()))
    ]

    for form in FORMS:
        found = form.Columns(names)
        rows: list[dict[str, object]] = []
        lower = b""
        pairs = iter(stored)
        for _ in range(500):
            state, place = found.collect(pairs, query, matcher(wanted), barred, after, upto, rows_max, bytes_max, steps_max)
            if len(found) >= rows_max or found.size_bytes >= bytes_max:
                assert len(found) <= rows_max
                rows += rows_of(found)
            if state in (ENDED, form.RAN_OUT):
                break
            if state == FAR:
                lower = EPOCH + place
                pairs = iter([pair for pair in stored if pair[0] >= lower])
        else:
            raise AssertionError("it does not come to an end")
        rows += rows_of(found)

        assert rows == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_pause_returns_the_last_key_read(form: Any) -> None:
    stored = [record_key(EPOCH, b"idx0", offset) for offset in range(5)]
    value = encode_record(b"t", b"", 0, False, "")
    pairs = iter([(key, value) for key in stored])
    found = form.Columns(["position"])

    assert found.collect(pairs, None, matcher(["#"]), None, 0, NO_LIMIT << 20, 2, NO_LIMIT, 100) == (PAUSED, stored[1])
    assert rows_of(found) == [{"position": START}, {"position": START + 1}]
    assert found.collect(pairs, None, matcher(["#"]), None, 0, NO_LIMIT << 20, 9, NO_LIMIT, 1) == (PAUSED, stored[2])
    assert found.collect(pairs, None, matcher(["#"]), None, 0, NO_LIMIT << 20, 9, NO_LIMIT, 9) == (form.RAN_OUT, stored[4])
    assert found.collect(pairs, None, matcher(["#"]), None, 0, NO_LIMIT << 20, 9, NO_LIMIT, 9) == (form.RAN_OUT, b"")
    assert len(found) == 3


@pytest.mark.parametrize("form", FORMS)
def test_a_query_whose_next_match_is_far_away_asks_for_a_seek_and_one_without_a_next_match_ends(form: Any) -> None:
    value = encode_record(b"t", b"", 0, False, "")
    pairs = [(record_key(EPOCH, number.to_bytes(4, "big"), 0), value) for number in range(100)]
    query = MaskQuery(b"\0\0\0\x60", b"\xff\xff\xff\xff")
    found = form.Columns([])

    assert found.collect(iter(pairs), query, matcher(["#"]), None, 0, NO_LIMIT << 20, 9, NO_LIMIT, 1000) == (FAR, b"\0\0\0\x60")
    assert found.collect(iter(pairs[0x60:]), query, matcher(["#"]), None, 0, NO_LIMIT << 20, 9, NO_LIMIT, 1000)[0] == ENDED
    assert len(found) == 1


def collect_one(form: Any, value: bytes) -> list[dict[str, object]] | type[Exception]:
    found = form.Columns(columns.NAMES)
    try:
        found.collect(iter([(record_key(EPOCH, b"idx0", 7), value)]), None, matcher(["#"]), None, 0, 1 << 60, 9, NO_LIMIT, 9)
        return rows_of(found)
    except (Corruption, UsageError) as problem:
        return type(problem)


@given(
    properties=st.binary(max_size=30)
    | st.lists(
        st.sampled_from([b"\x01\x01", b"\x02\0\0\0\1", b"\x03\0\1x", b"\x08\0\1y", b"\x09\0\1z", b"\x0b\x81\x01", b"\x23\0\1"])
        | st.just(b"\x26\0\1k\0\1v"),
        max_size=6,
    ).map(b"".join),
    cut=st.integers(0, 12),
)
def test_damaged_properties_are_reported_or_read_the_same_in_both_forms(properties: bytes, cut: int) -> None:
    value = encode_record(b"t", b"", 1, False, "c", properties[: max(len(properties) - cut, 0)])

    compiled, plain = (collect_one(form, value) for form in FORMS)

    assert compiled == plain


@given(value=st.binary(max_size=60), head=st.booleans())
def test_damaged_values_are_reported_or_read_the_same_in_both_forms(value: bytes, head: bool) -> None:
    whole = b"\x01\x40\0\1\0\1tc\0\0\0\2" + value if head else value

    compiled, plain = (collect_one(form, whole) for form in FORMS)

    assert compiled == plain


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(encode_record(b"a\xff", b"", 0, False, "c"), id="topic"),
        pytest.param(encode_record(b"t", b"", 0, False, "c", b"\x03\0\1\xff"), id="content type"),
        pytest.param(encode_record(b"t", b"", 0, False, "c", b"\x26\0\1\xc3\0\1\xa4"), id="half a character in each of a pair"),
    ],
)
def test_a_text_that_is_not_utf8_is_corruption(form: Any, value: bytes) -> None:
    assert collect_one(form, value) is Corruption


@pytest.mark.parametrize("form", FORMS)
def test_a_character_split_between_two_rows_is_corruption(form: Any) -> None:
    values = [encode_record(topic, b"", 0, False, "c") for topic in (b"t\xc3", b"\xa4t")]
    pairs = [(record_key(EPOCH, b"idx0", offset), value) for offset, value in enumerate(values)]
    found = form.Columns(["topic"])
    found.collect(iter(pairs), None, matcher(["#"]), None, 0, 1 << 60, 9, NO_LIMIT, 9)

    with pytest.raises(Corruption, match="UTF-8"):
        found.take()


@pytest.mark.parametrize("form", FORMS)
def test_a_key_that_is_cut_short_is_corruption(form: Any) -> None:
    pairs = iter([(EPOCH, encode_record(b"t", b"", 0, False, "c"))])

    with pytest.raises(Corruption, match="key"):
        form.Columns([]).collect(pairs, None, matcher(["#"]), None, 0, 1 << 60, 9, NO_LIMIT, 9)


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_column_cannot_be_requested(form: Any) -> None:
    with pytest.raises(ValueError, match="colour"):
        form.Columns(["topic", "colour"])


@pytest.mark.parametrize("form", FORMS)
def test_columns_taken_earlier_do_not_change_while_others_are_collected(form: Any) -> None:
    found = form.Columns(["payload"])
    pairs = iter([(record_key(EPOCH, b"idx0", n), encode_record(b"t", b"%04d" % n, 0, False, "c")) for n in range(2000)])

    def take() -> Any:
        found.collect(pairs, None, matcher(["#"]), None, 0, 1 << 60, 500, NO_LIMIT, 10_000)
        return found.take()["payload"]

    taken = [take() for _ in range(4)]

    values = [value for column in taken for value in decoded("payload", 500, column)]
    assert values == [b"%04d" % n for n in range(2000)]
