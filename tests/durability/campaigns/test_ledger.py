"""The judge of the campaigns finds a loss, a repeat, a change of order: each planted in a history that is right without it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.durability.campaigns.ledger import Arrival, Ledger, Reader, make_payload

COUNT = 12


def history(publisher_qos: int, subscription_qos: int = 2) -> tuple[Ledger, Reader]:
    """Two publishers, two topics each, everything acknowledged and delivered once, streams mixed."""
    ledger, reader = Ledger(), Reader("reader", subscription_qos)
    for number in range(COUNT):
        for publisher in ("p1", "p2"):
            for topic in range(2):
                payload = make_payload(publisher, topic, number)
                ledger.publish(payload, publisher_qos)
                ledger.acknowledge(payload)
                reader.arrivals.append(Arrival(payload, min(publisher_qos, subscription_qos)))
    return ledger, reader


@pytest.mark.parametrize("qos", [1, 2])
def test_a_correct_history_is_accepted(qos: int) -> None:
    ledger, reader = history(qos)

    assert ledger.judge(reader) == []


@given(st.data(), st.sampled_from([1, 2]))
def test_a_lost_message_is_found_at_any_place(data: st.DataObject, qos: int) -> None:
    ledger, reader = history(qos)
    del reader.arrivals[data.draw(st.integers(0, len(reader.arrivals) - 1))]

    assert [fault.split(":")[0] for fault in ledger.judge(reader)] == ["reader lacks acknowledged messages"]


def test_a_message_that_was_never_acknowledged_may_be_missing() -> None:
    ledger, reader = history(1)
    ledger.publish(make_payload("p1", 0, COUNT), 1)

    assert ledger.judge(reader) == []


@given(st.data())
def test_a_qos_2_message_that_comes_again_is_found(data: st.DataObject) -> None:
    ledger, reader = history(2)
    again = data.draw(st.sampled_from(reader.arrivals))
    reader.arrivals.insert(data.draw(st.integers(0, len(reader.arrivals))), again)

    assert any("twice" in fault for fault in ledger.judge(reader))


@given(st.data(), st.sampled_from([(1, 2), (1, 1), (2, 1)]))
def test_a_qos_1_message_may_come_again_after_its_first_time(data: st.DataObject, levels: tuple[int, int]) -> None:
    ledger, reader = history(*levels)
    place = data.draw(st.integers(0, len(reader.arrivals) - 1))
    reader.arrivals.insert(data.draw(st.integers(place + 1, len(reader.arrivals))), reader.arrivals[place])

    assert ledger.judge(reader) == []


@given(st.integers(0, COUNT - 2), st.sampled_from([1, 2]))
def test_two_messages_of_one_stream_in_the_wrong_order_are_found(place: int, qos: int) -> None:
    ledger, reader = history(qos)
    mine, next_one = make_payload("p2", 1, place), make_payload("p2", 1, place + 1)
    at, next_at = (reader.arrivals.index(Arrival(each, qos)) for each in (mine, next_one))
    reader.arrivals[at], reader.arrivals[next_at] = reader.arrivals[next_at], reader.arrivals[at]

    assert [fault.split(":")[0] for fault in ledger.judge(reader)] == ["reader was given messages out of order"]


def test_messages_of_two_streams_have_no_order_between_them() -> None:
    ledger, reader = history(1)
    reader.arrivals.sort()

    # Numbers of one stream are sorted as text here: 10 and 11 come before 2.
    assert [fault.split(":")[0] for fault in ledger.judge(reader)] == ["reader was given messages out of order"]

    reader.arrivals.sort(key=lambda arrival: (arrival.payload.split()[:2], int(arrival.payload.split()[2])))
    assert ledger.judge(reader) == []


def test_a_payload_with_one_wrong_byte_is_found() -> None:
    ledger, reader = history(1)
    place = next(place for place, each in enumerate(reader.arrivals) if len(each.payload) > 40)
    damaged = reader.arrivals[place].payload[:-1] + b"!"
    reader.arrivals[place] = Arrival(damaged, 1)

    assert [fault.split(":")[0] for fault in ledger.judge(reader)] == [
        "reader was given what nobody published",
        "reader lacks acknowledged messages",
    ]


def test_a_message_that_comes_with_another_qos_is_found() -> None:
    ledger, reader = history(2)
    reader.arrivals[3] = Arrival(reader.arrivals[3].payload, 1)

    assert [fault.split(":")[0] for fault in ledger.judge(reader)] == ["reader was given messages with another QoS than agreed"]


def test_members_of_a_group_are_judged_together() -> None:
    ledger, reader = history(2)
    halves = [Reader("m1", 2, reader.arrivals[::2]), Reader("m2", 2, reader.arrivals[1::2])]
    assert ledger.judge_group("g", halves) == []

    halves[1].arrivals.append(halves[0].arrivals[0])
    assert [fault.split(":")[0] for fault in ledger.judge_group("g", halves)] == ["g was given QoS 2 messages twice"]

    del halves[0].arrivals[:2]
    assert any("lacks" in fault for fault in ledger.judge_group("g", halves))
