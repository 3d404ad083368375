"""The error of the history service: a problem as sent to the reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from braidmq.base.errors import BraidError
from braidmq.flight.wire import Code, Problem, ShardGap


class HistoryError(BraidError):
    """The problem that the reader receives instead of an answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.detail


def fail(code: Code, detail: str, gaps: Mapping[int, ShardGap] | None = None) -> NoReturn:
    """Raise the error of this code; `gaps` are those of each shard."""
    raise HistoryError(Problem(code, detail, {str(shard): gap for shard, gap in sorted((gaps or {}).items())}))
