"""Classes that change from one start to the next: rows of a topic that moved stay in order, at no cost where nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.wire import Plan
from braidmq.storage import log as log_module
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.shard.classes import ClassRow, encode_class
from tests.history.staged import Known, Viewed, folder, is_ordered_by_topic

LARGE = EpochLimits(count_max=100)
Classes = dict[str, HistoryClassSettings]


def log_class(*topics: str, retention_s: float = 1e6) -> HistoryClassSettings:
    return HistoryClassSettings(topics=topics, retention=Seconds(retention_s), retention_bytes="")


NARROW = {"one": log_class("x/#")}
WIDE = {"one": log_class("x/#", "a")}


class Restarted:
    """A log that is started again and again, with classes of the moment; time goes on, and records get numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spent = self._written = 0

    def run(self, classes: Classes, *topics: str) -> list[Known]:
        """Start it, append these, and read everything back, in the order of the service."""
        with Viewed(self._path, limits=LARGE, classes=classes) as stage:
            stage.hands.move(self._spent)
            stage._topics = {b"%d" % number: ("", False) for number in range(self._written)}
            stage.write(*[(0, topic) for topic in topics])
            self._spent += 7 * len(topics) + 1
            self._written += len(topics)
            stage.hear()
            return stage.rows(Plan(["#"]))


def open_epochs(stage: Viewed) -> list[list[int | None]]:
    """Where the open epochs began, by shard and class."""
    return [[None if family.epochs.open is None else family.epochs.open.start for family in shard] for shard in stage.log._shards]


def numbers(rows: list[Known], topic: str) -> list[int]:
    return [row.number for row in rows if row.topic == topic]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NARROW, WIDE),
        ({**NARROW, "two": log_class("a")}, WIDE),
        ({"two": log_class("x/#"), "one": log_class("a")}, {"two": log_class("x/#", "a")}),
    ],
    ids=["from the log itself", "from a class that is gone", "from a class that is left"],
)
def test_a_topic_that_moves_to_a_class_with_an_open_epoch_stays_in_order(tmp_path: Path, before: Classes, after: Classes) -> None:
    log = Restarted(tmp_path)
    log.run(before, "x/1", "a", "a")

    rows = log.run(after, "a", "x/1", "a")

    assert numbers(rows, "a") == [1, 2, 3, 5]
    assert numbers(rows, "x/1") == [0, 4]


def test_a_topic_of_a_removed_class_continues_in_order_in_the_log_itself(tmp_path: Path) -> None:
    log = Restarted(tmp_path)
    log.run(NARROW, "b", "x/1", "x/1")

    assert numbers(log.run({}, "x/1"), "x/1") == [1, 2, 3]
    # The row of the class says the same before and after this change, but for the topics that it has.
    assert numbers(log.run(NARROW, "x/1"), "x/1") == [1, 2, 3, 4]
    assert numbers(log.run({}, "x/1"), "x/1") == [1, 2, 3, 4, 5]


def test_a_start_interrupted_after_noting_its_classes_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Restarted(tmp_path)
    log.run(NARROW, "x/1", "a", "a")

    class CutOff(Exception):
        pass

    def cut_off(*_: object) -> None:
        raise CutOff

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "settle_classes", cut_off)
        for _ in range(2):
            with pytest.raises(CutOff):
                log.run(WIDE)

    assert numbers(log.run(WIDE, "a"), "a") == [1, 2, 3]


def test_a_start_with_the_same_classes_writes_nothing_and_continues_the_open_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = {"one": log_class("x/#", "y"), "two": log_class("z")}
    same = {"two": log_class("z"), "one": log_class("y", "x/#", "y")}
    with Viewed(tmp_path, limits=LARGE, classes=classes) as stage:
        stage.write((0, "x/1"), (0, "a"), (1, "z"))
        before = open_epochs(stage)
    writes: list[object] = []
    monkeypatch.setattr(Store, "write", lambda store, batch, **_: writes.append(batch))

    with Viewed(tmp_path, limits=LARGE, classes=same) as stage:
        after = open_epochs(stage)

    assert not writes
    assert after == before
    assert len([start for shard in after for start in shard if start is not None]) == 3


def test_a_class_with_unknown_earlier_filters_counts_as_changed_once(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=LARGE, classes=NARROW) as stage:
        stage.write((0, "x/1"), (1, "a"))
    with Store.open(tmp_path / "data" / "log", ()) as store:
        batch = store.batch()
        batch.put("default", b"class:one", encode_class(ClassRow(("x/#",), 10**12, None)))
        store.write(batch)

    with Viewed(tmp_path, limits=LARGE, classes=NARROW) as stage:
        assert open_epochs(stage) == [[None, None], [None, None]]
        stage.write((0, "x/1"))
        begun = open_epochs(stage)
    with Viewed(tmp_path, limits=LARGE, classes=NARROW) as stage:
        assert begun[0][1] is not None
        assert open_epochs(stage) == begun


def test_another_retention_moves_no_topic_and_closes_no_epoch(tmp_path: Path) -> None:
    with Viewed(tmp_path, limits=LARGE, classes=NARROW) as stage:
        stage.write((0, "x/1"))
    with Viewed(tmp_path, limits=LARGE, classes={"one": log_class("x/#", retention_s=5e5)}) as stage:
        family = stage.log._shards[0].families[1]

        assert family.epochs.open is not None
        assert len(family.epochs) == 1


CLASSES = st.sampled_from([{}, NARROW, WIDE, {"two": log_class("a", "x/1")}, {"one": log_class("b"), "two": log_class("a")}])
RUNS = st.lists(st.tuples(CLASSES, st.lists(st.sampled_from(["a", "b", "x/1", "x/2"]), max_size=6)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(RUNS)
def test_rows_of_a_topic_are_in_order_under_any_change_of_classes(runs: list[tuple[Classes, list[str]]]) -> None:
    with folder() as path:
        log = Restarted(path)
        topics: list[str] = []
        for classes, more in runs:
            rows = log.run(classes, *more)
            topics += more
            assert sorted((row.number, row.topic) for row in rows) == [*enumerate(topics)]
            assert is_ordered_by_topic(rows)
