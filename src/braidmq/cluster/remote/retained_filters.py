"""Finds out for which filters a core has retained messages: most have none, and only the others are worth a search.

In a storm of clients each of them subscribes. So the filters that are waiting share a question, one question at a time: the more
there are, the more of them share one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.base.errors import BraidError, Unavailable
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead

AskRetained = Callable[[RetainedRead | RetainedFilters], Awaitable[RetainedPage | RetainedMatches]]  # raises Unavailable
OnMatch = Callable[[bool | Unavailable], None]

FILTERS_MAX: Final = 500  # in a question
BYTES_MAX: Final = 256 * 1024  # of filters in a question, unless a single one is longer
_RETRY_S: Final = 1.0


class FilterQuestions:
    """The filters that wait for one core's answer."""

    def __init__(self, ask: AskRetained, loop: asyncio.AbstractEventLoop | None = None, *, is_for_intents: bool = False) -> None:
        """``loop``: on which ``ask`` runs; None: the running one. ``is_for_intents``: see `RetainedRead`."""
        self._ask = ask
        self._is_for_intents = is_for_intents
        self._loop = loop
        self._waiting: deque[tuple[bytes, OnMatch]] = deque()
        self._asked: list[OnMatch] = []
        self._is_busy = False

    def add(self, topic_filter: bytes, on_answer: OnMatch) -> None:
        """Find out whether there may be messages for this filter; Unavailable if the core cannot say so."""
        self._waiting.append((topic_filter, on_answer))
        if not self._is_busy:
            self._is_busy = True
            loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self._ask_next)  # with the other filters of this turn

    def _ask_next(self) -> None:
        waiting = self._waiting
        filters: list[bytes] = []
        size = 0
        while waiting and len(filters) < FILTERS_MAX and (not filters or size + len(waiting[0][0]) <= BYTES_MAX):
            topic_filter, on_answer = waiting.popleft()
            filters.append(topic_filter)
            self._asked.append(on_answer)
            size += len(topic_filter)
        asking = asyncio.ensure_future(self._ask(RetainedFilters(filters, self._is_for_intents)), loop=self._loop)
        asking.add_done_callback(self._on_answer)

    def _on_answer(self, asking: asyncio.Future[RetainedPage | RetainedMatches]) -> None:
        asked, self._asked = self._asked, []
        if self._waiting and not asking.cancelled():
            self._ask_next()
        else:
            self._is_busy = False
        problem = _problem_of(asking)
        if problem is not None:
            for on_answer in asked:
                on_answer(problem)
            return
        answer = asking.result()
        assert isinstance(answer, RetainedMatches)  # what is answered to this question
        matching = set(answer.places)
        for place, on_answer in enumerate(asked):
            on_answer(place in matching)


def _problem_of(asking: asyncio.Future[RetainedPage | RetainedMatches]) -> Unavailable | None:
    if asking.cancelled():
        return Unavailable("the core was not asked", _RETRY_S)
    problem = asking.exception()
    if problem is None or isinstance(problem, Unavailable):
        return problem
    if isinstance(problem, BraidError):
        return Unavailable(str(problem), _RETRY_S)
    raise problem
