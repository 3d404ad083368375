"""A durable session over lost connections, crashes, lost power, restarts, moves and generations, against what it promises."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulator.session_model import (
    NOTHING,
    SETTLE,
    SYNC,
    TICK,
    TURN,
    Action,
    Answers,
    Connects,
    DurableSession,
    Ends,
    FillsDisk,
    GoesOn,
    Leaves,
    LosesPublisher,
    Publishes,
    Subscribes,
)

EXAMPLES = int(os.environ.get("BRAIDMQ_SESSION_EXAMPLES", "150"))
TOPICS = ("a/x", "a/y", "b/x")
FILTERS = ("a/x", "a/+", "b/#", "#")
HISTORIES: tuple[dict[str, Any], ...] = (
    {},
    {"topics": []},
    {"min_qos": 0},
    {"topics": ["a/#"], "min_qos": 2, "layout": "hashed"},
)

progresses = st.sampled_from((SETTLE, SETTLE, SETTLE, TURN, SYNC, NOTHING, TICK))
last_breaths = st.sampled_from((NOTHING, TURN, SYNC, SETTLE))
windows = st.sampled_from((1, 1, 2, 5))
returns = st.sampled_from((1, 1, 2, 5, 0))  # with this window; 0: not at once

connects = st.builds(Connects, st.sampled_from((False, False, True)), windows)
leaves = st.builds(Leaves, st.sampled_from(("goodbye", "cut", "taken over")), progresses, returns)
subscribes = st.builds(Subscribes, st.sampled_from(FILTERS), st.sampled_from((2, 2, 1, 0, -1)), progresses)
answers = st.builds(Answers, st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), progresses)
publishes = st.builds(
    Publishes,
    which=st.sampled_from((0, 0, 1)),
    topic=st.sampled_from(TOPICS),
    qos=st.sampled_from((2, 2, 1, 1, 0)),
    retain=st.sampled_from((False, False, True)),
    count=st.integers(1, 4),
    progress=progresses,
)
ends = st.builds(
    Ends,
    end=st.sampled_from(("process died", "process died", "lost power", "lost power", "stopped", *3 * ("handed over",))),
    progress=last_breaths,
    arrives=st.booleans(),
    back_with=returns,
)
fills = st.builds(FillsDisk, progresses)
losses = st.builds(LosesPublisher, st.integers(0, 1), last_breaths)
pauses = st.builds(GoesOn, st.sampled_from(("", "learned", "hashed")), progresses)
# Kinds of actions, as often as they are named.
KINDS = (*4 * (publishes,), *2 * (answers, subscribes, ends), leaves, connects, losses, pauses, fills)
actions_of_any_kind = st.integers(0, len(KINDS) - 1).flatmap(KINDS.__getitem__)


@pytest.mark.timeout(300)  # for a failure, which takes a while to be made small
@settings(max_examples=EXAMPLES)
@given(
    history=st.sampled_from(HISTORIES),
    window=windows,
    topic_filter=st.sampled_from(FILTERS),
    actions=st.lists(actions_of_any_kind, min_size=20, max_size=60),
    work_max=st.sampled_from((None, 1)),
)
def test_a_durable_session_keeps_its_guarantees_under_any_schedule(
    history: dict[str, Any], window: int, topic_filter: str, actions: list[Action], work_max: int | None
) -> None:
    session = DurableSession(history, work_max)
    with session.world:
        session.do(Connects(False, window))
        session.do(Subscribes(topic_filter, 2, SETTLE))
        for action in actions:
            session.do(action)

        session.finish()
