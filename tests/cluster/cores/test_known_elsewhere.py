"""For how long a SUBACK waits for other cores."""

from __future__ import annotations

from braidmq.cluster.cores.knowledge import KnownElsewhere
from braidmq.cluster.home.confidence import SILENT_S
from braidmq.net.proto_v1 import Position

NEEDS = {"durable/0": Position(3, 7)}


class Said(list[str]):
    def note(self) -> None:
        self.append("done")


def test_a_wait_ends_when_all_cores_have_it() -> None:
    known, said = KnownElsewhere(["b", "c"], now=0.0), Said()
    known.wait(NEEDS, 0.1, said.note)
    known.note_applied("b", "durable/0", Position(3, 7))
    known.run(0.2)
    assert not said

    known.note_applied("c", "durable/0", Position(3, 9))
    known.run(0.2)

    assert said == ["done"]
    assert known.next_due is None


def test_what_the_others_have_already_is_not_waited_for() -> None:
    known, said = KnownElsewhere(["b"], now=0.0), Said()
    known.note_applied("b", "durable/0", Position(3, 7))

    known.wait(NEEDS, 0.1, said.note)

    assert said == ["done"]


def test_a_copy_of_an_earlier_term_does_not_count() -> None:
    known, said = KnownElsewhere(["b"], now=0.0), Said()
    known.note_applied("b", "durable/0", Position(2, 900))

    known.wait(NEEDS, 0.1, said.note)

    assert not said


def test_a_wait_ends_a_second_after_the_last_answer_before_it() -> None:
    known, said = KnownElsewhere(["b"], now=0.0), Said()
    known.note_answer("b", 10.0)
    known.wait(NEEDS, 10.3, said.note)
    known.note_answer("b", 10.5)  # it names the route
    assert known.next_due == 10.0 + SILENT_S

    known.run(10.0 + SILENT_S - 0.01)
    assert not said
    known.run(10.0 + SILENT_S)

    assert said == ["done"]


def test_a_core_without_an_answer_for_long_is_not_waited_for() -> None:
    known, said = KnownElsewhere(["b"], now=0.0), Said()

    known.wait(NEEDS, SILENT_S, said.note)

    assert said == ["done"]


def test_a_process_that_has_just_started_waits_although_it_has_answered_nobody() -> None:
    known, said = KnownElsewhere(["b"], now=100.0), Said()

    known.wait(NEEDS, 100.1, said.note)

    assert not said, "the process before it may have answered"
