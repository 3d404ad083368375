"""What is served is complete: the rules of H2 against a model of a primary that flushes and deletes log files at any moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.history.view.served_positions import ServedPositions


class Primary:
    """Records 1, 2, ... of one shard, in log files until a flush makes a table of a file and deletes it."""

    def __init__(self) -> None:
        self.last = 0
        self.committed = 0
        self.tables: set[int] = set()
        self.logs: dict[int, set[int]] = {1: set()}
        self.flushing: list[int] = []

    def write(self) -> None:
        self.last += 1
        self.logs[max(self.logs)].add(self.last)

    def commit(self) -> None:
        self.committed = self.last

    def begin_flush(self) -> None:
        """New records go to a new file."""
        self.flushing.append(max(self.logs))
        self.logs[max(self.logs) + 1] = set()

    def end_flush(self) -> None:
        """The oldest of the files that are being flushed is a table now, and deleted."""
        if self.flushing:
            self.tables |= self.logs.pop(self.flushing.pop(0))

    @property
    def log_files(self) -> set[str]:
        return {f"{number:06}.log" for number in self.logs}


class Child:
    """Follows the primary: a catch-up has steps, between which the primary does what it likes."""

    def __init__(self, primary: Primary) -> None:
        self.primary = primary
        self.following = ServedPositions()
        self.seen: set[int] = set()
        self.counted = 0
        self._tables: set[int] = set()
        self._steps = [self._begin, self._read_tables, self._read_logs, self._end]
        self._next = 0

    def hear(self) -> None:
        self.following.hear({0: self.primary.committed})

    def step(self) -> None:
        self._steps[self._next]()
        self._next = (self._next + 1) % len(self._steps)

    def _begin(self) -> None:
        self.following.begin(self.primary.log_files)

    def _read_tables(self) -> None:
        self._tables = set(self.primary.tables)

    def _read_logs(self) -> None:
        # What it had read from a file stays until the table of that file is known.
        self.seen |= self._tables.union(*self.primary.logs.values())

    def _end(self) -> None:
        self.counted += self.following.end(self.primary.log_files)


steps = st.lists(
    st.sampled_from(["write", "write", "commit", "begin_flush", "end_flush", "hear", "step", "step", "step"]), max_size=120
)


@given(steps=steps)
def test_everything_up_to_what_is_served_is_there_at_any_time(steps: list[str]) -> None:
    primary = Primary()
    child = Child(primary)

    for step in steps:
        getattr(child if step in ("hear", "step") else primary, step)()

        served = child.following.served.get(0, 0)
        assert served <= primary.committed
        assert child.seen >= set(range(1, served + 1))


@given(steps=steps)
def test_when_the_primary_is_quiet_two_catch_ups_serve_everything_committed(steps: list[str]) -> None:
    primary = Primary()
    child = Child(primary)
    for step in steps:
        getattr(child if step in ("hear", "step") else primary, step)()

    child.hear()
    for _ in range(8):
        child.step()

    assert child.following.served == {0: primary.committed}


def test_a_catch_up_does_not_count_if_a_log_file_went_meanwhile() -> None:
    following = ServedPositions()
    following.hear({0: 5})
    following.begin({"1.log", "2.log"})

    assert not following.end({"2.log", "3.log"})
    assert following.served == {}

    following.begin({"2.log", "3.log"})

    assert following.end({"2.log", "3.log", "4.log"})
    assert following.served == {0: 5}


def test_positions_reported_during_a_catch_up_are_not_served_by_it() -> None:
    following = ServedPositions()
    following.hear({0: 5, 1: 2})
    following.begin({"1.log"})
    following.hear({0: 9})

    assert following.end({"1.log"})
    assert following.served == {0: 5, 1: 2}


def test_a_catch_up_that_was_not_begun_does_not_count() -> None:
    following = ServedPositions()
    following.hear({0: 5})
    following.begin({"1.log"})
    following.end({"1.log"})
    following.hear({0: 7})

    assert not following.end({"1.log"})
    assert following.served == {0: 5}


def test_watermarks_never_go_back() -> None:
    following = ServedPositions()
    following.hear({0: 5})
    following.hear({0: 3, 1: 1})

    assert following.held == {0: 5, 1: 1}
