"""The publisher fence: writes of an older connection of a client id are refused, and say why."""

from __future__ import annotations

from pathlib import Path

from braidmq.storage.fences import FenceTable, Guard
from braidmq.storage.rows.changes import Put, WriteRefusal
from tests.storage.message_log import Stage, unexpected


def test_a_lower_version_is_not_admitted_and_an_equal_one_is() -> None:
    fences = FenceTable()

    assert fences.fence("a", 7)
    assert not fences.fence("a", 6)
    assert fences.fence("a", 7)

    assert [fences.admits(Guard("a", version)) for version in (6, 7, 8)] == [False, True, True]
    assert fences.admits(Guard("b", 0))
    assert fences.version("a") == 7


def test_who_is_forgotten_takes_no_room_and_begins_anew() -> None:
    fences = FenceTable()
    fences.fence("a", 7)

    fences.forget("a")
    fences.forget("b")

    assert len(fences) == 0
    assert fences.admits(Guard("a", 1))


def test_rows_of_an_older_connection_are_not_written(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        refusals: list[WriteRefusal] = []
        stage.log.fences.fence("s", 2)
        for version, value in ((2, b"new"), (1, b"old")):
            stage.log.change(
                [Put(0, b"\xe9s", value)],
                on_commit=lambda: None,
                on_refused=refusals.append if version == 1 else unexpected,
                guard=Guard("s", version),
            )
        stage.settle()

        assert stage.log.row(0, b"\xe9s") == b"new"
        assert [each.is_fenced for each in refusals] == [True]
