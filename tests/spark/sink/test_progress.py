"""How far a partition has come: the rules alone, and against a broker of a few lines that does what docs/producers.md says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.spark.sink.progress import SettledRows


def joined(row: int) -> SettledRows:
    progress = SettledRows()
    assert progress.join(row)
    return progress


def test_a_new_attempt_begins_where_the_broker_is_and_gives_nothing_up() -> None:
    progress = SettledRows()

    assert progress.give_up() is None
    assert progress.join(7)
    assert progress.settled == 7
    assert progress.give_up() is None


def test_rows_are_settled_in_order_for_any_order_of_acknowledgements() -> None:
    progress = joined(0)
    progress.acknowledge(2)
    progress.acknowledge(4)
    assert progress.settled == 0
    progress.acknowledge(1)
    assert progress.settled == 2
    progress.acknowledge_next(1)
    assert progress.settled == 4


def test_settled_rows_that_the_broker_does_not_count_are_given_up_on_the_next_connection() -> None:
    progress = joined(3)
    progress.acknowledge_next(2)

    assert progress.give_up() == (4, 5)
    assert not progress.join(4)  # the last one was not recorded, and the connection did not say so
    assert progress.give_up() == (4, 5)
    assert progress.join(5)


def test_a_refused_row_behind_rows_in_doubt_is_given_up_alone() -> None:
    progress = joined(0)
    progress.acknowledge_next(1)
    progress.refuse(4)

    assert progress.give_up() == (4, 4)
    assert progress.join(4)  # rows 2 and 3 were recorded, and 4 follows on them
    assert progress.settled == 4


def test_rows_in_doubt_before_a_refused_one_are_sent_again_if_they_were_not_recorded() -> None:
    progress = joined(0)
    progress.refuse(3)

    assert progress.join(1)
    assert progress.settled == 1


def test_a_broker_with_fewer_records_than_before_counts_as_another_broker() -> None:
    progress = joined(10)

    with pytest.raises(UsageError, match="had 10 messages"):
        progress.join(9)


class MiniBroker:
    """What a broker does for one producer that stops at refusals."""

    def __init__(self, recorded: set[int], bad: set[int]) -> None:
        self.recorded = recorded  # rows that history covers
        self.bad = bad
        self.log: list[int] = []  # what was recorded
        self.taken: list[int] = []  # what was taken and not recorded
        self.on_disk = 0
        self._uncommitted: list[int] = []
        self._count = 0
        self._is_stopped = False

    def connect(self, skip: tuple[int, int] | None, *, loses: bool) -> int:
        if loses:  # it was killed, and what was not committed is gone
            self._uncommitted.clear()
        self.commit()
        self._count = self.on_disk
        if skip is not None and skip[0] - 1 <= self._count < skip[1]:
            self._count = skip[1]
        self._is_stopped = False
        return self._count

    def publish(self, row: int) -> str:
        if self._is_stopped:
            return ""
        self._count += 1
        assert self._count == row, "the broker counts another row than the client sends"
        if row in self.bad:
            self._is_stopped = True
            return "refused"
        if row in self.recorded:
            self._uncommitted.append(row)
            return ""  # acknowledged with the commit
        self.taken.append(row)
        return "acknowledged"

    def commit(self) -> list[int]:
        done, self._uncommitted = self._uncommitted, []
        self.log += done
        if done:
            self.on_disk = done[-1]
        return done


rows = st.integers(1, 12)


@settings(max_examples=400)
@given(
    st.sets(rows),
    st.sets(rows),
    st.lists(st.sampled_from(["send", "send", "send", "commit", "commit unheard", "cut", "kill", "new attempt"]), max_size=60),
)
def test_every_row_is_recorded_exactly_once_under_any_failure(recorded: set[int], bad: set[int], steps: list[str]) -> None:
    total = 12
    broker = MiniBroker(recorded, bad)
    dead: set[int] = set()
    progress = SettledRows()
    next_row = 0

    def connect(*, loses: bool = False) -> None:
        nonlocal next_row
        connects = 0
        while True:
            row = broker.connect(progress.give_up(), loses=loses)
            loses = False
            connects += 1
            assert connects < 4, "the two never agree"
            if progress.join(row):
                next_row = row + 1
                return

    def send() -> None:
        nonlocal next_row
        if next_row > total:
            return
        answer = broker.publish(next_row)
        if answer == "acknowledged":
            progress.acknowledge(next_row)
        elif answer == "refused":
            dead.add(next_row)
            progress.refuse(next_row)
            connect()
            return
        next_row += 1

    def commit() -> None:
        for row in broker.commit():
            progress.acknowledge(row)

    connect()
    for step in steps:
        match step:
            case "send":
                send()
            case "commit":
                commit()
            case "commit unheard":
                broker.commit()
                connect()
            case "cut":
                connect()
            case "kill":
                connect(loses=True)
            case "new attempt":
                progress = SettledRows()
                connect(loses=True)
    for _ in range(200):
        if progress.settled == total:
            break
        send()
        commit()

    assert progress.settled == total
    assert broker.log == sorted(recorded - bad)
    assert dead == bad
    assert set(broker.taken) == set(range(1, total + 1)) - recorded - bad
