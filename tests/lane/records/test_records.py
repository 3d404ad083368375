"""Records as bytes: they round-trip, both forms of the lane agree, and broken values are recognised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records import records
from braidmq.mqtt.topics import matches
from tests.support.plain_form import plain_form

pytestmark = pytest.mark.smoke

SMALL = st.binary(max_size=20)


PLAIN = plain_form("records.records")
# Where nothing was compiled both are the plain one, and agree for that reason.
FORMS = [records, PLAIN]

fields = st.fixed_dictionaries(
    {
        "topic": st.binary(min_size=1, max_size=40),
        "payload": st.binary(max_size=200),
        "qos": st.integers(0, 2),
        "retain": st.booleans(),
        "publisher": st.text(max_size=20).filter(lambda text: text.isprintable()),
        "properties": SMALL,
        "expires_at": st.one_of(st.just(0), st.integers(1, 2**62)),
        "expiry_offset": st.integers(-1, 2**31 - 1),
        "published_at": st.one_of(st.just(0), st.integers(1, 2**62)),
        "session_only": st.booleans(),
    }
)


def seen(record: Any) -> dict[str, object]:
    names = ("topic", "payload", "qos", "retain", "publisher", "properties", "expires_at", "expiry_offset")
    return {name: getattr(record, name) for name in (*names, "published_at", "session_only")}


@pytest.mark.parametrize("form", FORMS)
@given(fields=fields, timestamp=st.integers(1, 2**56 - 1))
def test_a_record_reads_back_as_it_was_written(form: Any, fields: dict[str, Any], timestamp: int) -> None:
    record = form.Record(timestamp, form.encode_record(**fields))

    expected = dict(fields)
    expected["published_at"] = fields["published_at"] or timestamp
    if not fields["expires_at"]:
        expected["expiry_offset"] = -1
    assert seen(record) == expected
    assert record.timestamp == timestamp


@given(fields=fields)
def test_both_forms_write_the_same_bytes(fields: dict[str, Any]) -> None:
    assert records.encode_record(**fields) == PLAIN.encode_record(**fields)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "change", [{"topic": bytes(65_536)}, {"publisher": "x" * 65_536}, {"qos": 3}, {"qos": -1}, {"expires_at": -1}]
)
def test_a_field_that_does_not_fit_is_refused(form: Any, change: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"topic": b"t", "payload": b"", "qos": 0, "retain": False, "publisher": ""}

    with pytest.raises(ValueError, match="out of range"):
        form.encode_record(**{**whole, **change})


@given(fields=fields, data=st.data())
def test_both_forms_agree_on_broken_values(fields: dict[str, Any], data: st.DataObject) -> None:
    value = bytearray(records.encode_record(**fields))
    for place in data.draw(st.lists(st.integers(0, min(len(value) - 1, 9)), max_size=3)):
        value[place] = data.draw(st.integers(0, 255))
    broken = bytes(value[: data.draw(st.integers(0, len(value)))])

    answers = [outcome(form, broken) for form in FORMS]

    assert answers[0] == answers[1]


def outcome(form: Any, value: bytes) -> object:
    try:
        return seen(form.Record(1, value))
    except (Corruption, UsageError) as problem:
        return str(problem)
    except UnicodeDecodeError:
        return "not UTF-8"


@pytest.mark.parametrize("form", FORMS)
def test_a_record_without_its_end_is_corruption(form: Any) -> None:
    whole = form.encode_record(b"topic", b"", 1, False, "publisher", b"props", 5, 1, 7)

    for end in range(len(whole)):
        with pytest.raises(Corruption):
            form.Record(1, whole[:end])


# Filters

levels = st.lists(st.sampled_from(("a", "b", "", "$x", "é")), min_size=1, max_size=4)
topics = levels.map("/".join).filter(bool)
wild_filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from(("a", "b", "", "+", "$x")), max_size=4),
    st.sampled_from(([], ["#"])),
).filter(bool)


@pytest.mark.parametrize("form", FORMS)
@given(filters=st.lists(wild_filters, min_size=1, max_size=3), topic=topics)
@example(filters=["a/#"], topic="a")
@example(filters=["#"], topic="$x")
@example(filters=["+/#"], topic="$x/a")
@example(filters=["/#"], topic="/")
def test_filters_match_records_as_mqtt_does(form: Any, filters: list[str], topic: str) -> None:
    value = form.encode_record(topic.encode(), b"a/b", 1, False, "a")
    matcher = form.TopicFilters([each.encode() for each in filters], False)

    expected = any(matches(each, topic) for each in filters)

    assert matcher.matches(value) == expected
    assert matcher.matches_topic(topic.encode()) == expected


@pytest.mark.parametrize("form", FORMS)
def test_records_for_sessions_alone_are_hidden_from_others(form: Any) -> None:
    value = form.encode_record(b"t", b"", 1, False, "p", session_only=True)

    assert not form.TopicFilters([b"#"], False).matches(value)
    assert form.TopicFilters([b"#"], True).matches(value)


# Stamps and places


@given(
    indexes=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=20),
    last=st.integers(90, 130),
    now=st.integers(90, 130),
    epoch_end=st.integers(100, 140),
    count_left=st.integers(0, 25),
    bytes_left=st.integers(0, 600),
    done=st.integers(0, 3),
)
def test_both_forms_find_the_same_records(
    indexes: list[bytes], last: int, now: int, epoch_end: int, count_left: int, bytes_left: int, done: int
) -> None:
    start = 95
    last = max(last, start - 1)
    entries = [(b"t", records.encode_record(b"t", bytes(len(index)), 1, False, "")) for index in indexes]
    results = []
    for form in FORMS:
        rows: list[tuple[bytes, bytes]] = [(b"", b"")] * min(done, len(entries))
        made: list[Any] = []
        given: list[int] = []
        ids: set[bytes] = set()
        used = form.place(entries, indexes, last, now, start, epoch_end, count_left, bytes_left, ids, rows, made, given)
        results.append((used, rows, [(each.timestamp, each.value) for each in made], given, ids))

    assert results[0] == results[1]
    used, rows, made, stamps, ids = results[0]
    placed = range(min(done, len(entries)), len(rows))
    assert [stamp for stamp, _ in made] == stamps
    assert len(placed) == len(stamps) <= count_left
    assert stamps == [max(now, last + 1) + number for number in range(len(stamps))]
    assert all(stamp < epoch_end for stamp in stamps)
    assert used == sum(len(key) + len(value) for key, value in rows[placed.start :]) <= bytes_left
    assert ids == {indexes[number][:4] for number in placed}
