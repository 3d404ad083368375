"""A home's confidence: from the sending of a probe, and once the home has what the answer names."""

from __future__ import annotations

from braidmq.cluster.home.confidence import SURE_S, Confidence
from braidmq.net.proto_v1 import Position


class Copies(dict[str, Position]):
    """How far the home has each origin."""


def answered(confidence: Confidence[str], subject: str, at: float, **positions: int) -> None:
    number = confidence.probe(subject, at)
    assert number is not None
    confidence.answered(subject, number, {origin: Position(1, sequence) for origin, sequence in positions.items()})


def test_without_subjects_a_home_is_sure() -> None:
    assert Confidence[str](Copies().get).is_sure(0.0)


def test_a_subject_is_in_doubt_until_it_has_answered_a_probe() -> None:
    confidence = Confidence[str](Copies(r=Position(1, 5)).get)
    confidence.expect("n")
    assert not confidence.is_sure(10.0)
    assert confidence.doubted == "n"

    answered(confidence, "n", 10.0, r=5)

    assert confidence.is_sure(10.0)
    assert confidence.doubted is None


def test_confidence_lasts_from_the_sending_of_the_probe_whenever_the_answer_comes() -> None:
    confidence = Confidence[str](Copies(r=Position(1, 5)).get)
    confidence.expect("n")
    number = confidence.probe("n", 10.0)
    assert number is not None

    confidence.answered("n", number, {"r": Position(1, 5)})

    assert confidence.is_sure(10.0 + SURE_S - 0.01)
    assert not confidence.is_sure(10.0 + SURE_S)


def test_an_answer_counts_once_the_home_has_what_it_names() -> None:
    copies = Copies(r=Position(1, 4))
    confidence = Confidence[str](copies.get)
    confidence.expect("n")
    answered(confidence, "n", 10.0, r=5)
    assert not confidence.is_sure(10.1)

    copies["r"] = Position(1, 5)

    assert confidence.is_sure(10.2)
    assert not confidence.is_sure(10.0 + SURE_S), "it was sent then"


def test_rows_of_an_earlier_term_are_not_those_of_the_next_one() -> None:
    copies = Copies(r=Position(1, 50))
    confidence = Confidence[str](copies.get)
    confidence.expect("c")
    number = confidence.probe("c", 1.0)
    assert number is not None
    confidence.answered("c", number, {"r": Position(2, 0)})
    assert not confidence.is_sure(1.0)

    copies["r"] = Position(2, 0)

    assert confidence.is_sure(1.0)


def test_an_origin_that_was_never_written_is_known() -> None:
    confidence = Confidence[str](Copies().get)
    confidence.expect("n")

    answered(confidence, "n", 1.0, r=0)

    assert confidence.is_sure(1.0)


def test_one_subject_of_many_is_enough_for_doubt_and_it_ends_with_its_death() -> None:
    confidence = Confidence[str](Copies().get)
    for name in "abc":
        confidence.expect(name)
    for name in "ac":
        answered(confidence, name, 1.0)
    assert not confidence.is_sure(1.0)
    assert confidence.doubted == "b"

    confidence.forget("b")

    assert confidence.is_sure(1.0)


def test_a_newcomer_ends_the_confidence_of_all() -> None:
    confidence = Confidence[str](Copies().get)
    confidence.expect("a")
    answered(confidence, "a", 1.0)
    assert confidence.is_sure(1.1)

    confidence.expect("b")

    assert not confidence.is_sure(1.1)


def test_an_answer_to_a_probe_of_a_lost_connection_counts_for_nothing() -> None:
    confidence = Confidence[str](Copies().get)
    confidence.expect("a")
    number = confidence.probe("a", 1.0)
    assert number is not None

    confidence.lost("a")
    confidence.answered("a", number, {})

    assert not confidence.is_sure(1.0)


def test_what_was_confirmed_outlives_the_connection_for_its_time() -> None:
    confidence = Confidence[str](Copies().get)
    confidence.expect("a")
    answered(confidence, "a", 1.0)

    confidence.lost("a")

    assert confidence.is_sure(1.0 + SURE_S - 0.01)
    assert not confidence.is_sure(1.0 + SURE_S)


def test_answers_that_confirm_nothing_do_not_pile_up() -> None:
    copies = Copies(r=Position(1, 0))
    confidence = Confidence[str](copies.get)
    confidence.expect("a")
    for step in range(1, 1000):
        answered(confidence, "a", step * 0.1, r=step)
    copies["r"] = Position(1, 999)

    assert confidence.is_sure(99.9 + SURE_S - 0.01), "by the last of them"
