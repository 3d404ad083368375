"""The takeover table matches docs/sessions.md, and its steps do what it says."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from braidmq.broker.session.takeover import TABLE, Facts, Fate, Old, Row, Step, WillFate, resolve, steps_of

DOCS = Path(__file__).parents[3] / "docs" / "sessions.md"
HEAD = "| old session | new Clean Start |"

CLEAN_START = {"0 or 1": None, "0": True, "1, or another user": False}
PRESENT = {"0": False, "1": True, "rejected": None}


def documented() -> list[Row]:
    """The table of the documentation; what follows a colon in a cell explains it."""
    lines = DOCS.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(HEAD)) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        old, clean_start, connection, fate, present, prompt, delayed = (
            cell.partition(":")[0].strip() for cell in line.strip("|").split("|")
        )
        assert connection in ("closed", "-")
        wills = WillFate(prompt), WillFate(delayed)
        rows.append(Row(Old(old), CLEAN_START[clean_start], connection == "closed", Fate(fate), PRESENT[present], *wills))
    return rows


def test_the_takeover_table_matches_the_documentation() -> None:
    assert documented() == list(TABLE)


def test_every_connect_has_exactly_one_row() -> None:
    for facts in map(Facts._make, product([False, True], [False, True], [0, 1], [False, True], [False, True], [False, True])):
        row, _ = resolve(facts)

        continues = facts.is_open and not facts.clean_start
        fitting = [each for each in TABLE if each.old is row.old and each.continues in (None, continues)]
        assert fitting == [row], facts


@pytest.mark.parametrize(
    ("facts", "old", "present"),
    [
        (Facts(False), Old.NONE, False),
        (Facts(True, True, 0), Old.BRIEF, False),
        (Facts(True, True, 0, clean_start=True), Old.BRIEF, False),
        (Facts(True, True, 60), Old.LASTING, True),
        (Facts(True, True, 60, clean_start=True), Old.LASTING, False),
        (Facts(True, True, 60, is_open=False), Old.LASTING, False),
        (Facts(True, False, 60), Old.AWAY, True),
        (Facts(True, False, 60, clean_start=True), Old.AWAY, False),
        (Facts(True, False, 60, is_open=False), Old.AWAY, False),
        (Facts(True, False, 60, is_protected=True, is_open=False), Old.PROTECTED, None),
        (Facts(True, True, 60, is_protected=True, clean_start=True), Old.PROTECTED, None),
    ],
)
def test_the_found_session_decides_the_case_of_a_connect(facts: Facts, old: Old, present: bool | None) -> None:
    row, _ = resolve(facts)

    assert (row.old, row.session_present) == (old, present)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.old.name}-{row.continues}")
def test_the_steps_of_a_takeover_row_have_the_effects_it_states(row: Row) -> None:
    steps = tuple(steps_of(row))

    if row.session_present is None:
        assert steps == (Step.REFUSE,)
        return
    assert steps[-1] is (Step.RESUME if row.session_present else Step.CREATE)
    assert (Step.CLOSE in steps) == (Step.TELL_CLOSED in steps) == row.closes
    ends = Step.END in steps or Step.DISCARD in steps
    assert ends == (row.fate in (Fate.ENDED, Fate.DISCARDED)) == (row.old is not Old.NONE and not row.session_present)
    # A session that ends publishes the will that it still has; of one that goes on, only that which is due now is published.
    assert (row.delayed_will is WillFate.PUBLISHED) == ends
    assert (row.prompt_will is WillFate.PUBLISHED) == (Step.PUBLISH_PROMPT_WILL in steps or Step.END in steps)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.old.name}-{row.continues}")
def test_a_session_is_released_before_it_is_taken(row: Row) -> None:
    steps = list(steps_of(row))

    order = [Step.CLOSE, Step.RETURN_LEASES, Step.PUBLISH_PROMPT_WILL, Step.END, Step.TELL_CLOSED, Step.DISCARD]
    assert steps[:-1] == [step for step in order if step in steps[:-1]]
    assert len(set(steps)) == len(steps)
