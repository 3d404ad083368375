"""Retained messages of one core, as a node finds them: page by page, each at the pace of its client.

While a page is on its way, or waits here, live messages may come that are newer than what it has: their topics are left out (S9).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.base.errors import BraidError, Corruption, Unavailable, UsageError
from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.ports import RetainedSearch
from braidmq.cluster.remote.live_topics import LiveTopics
from braidmq.cluster.remote.retained_filters import AskRetained, FilterQuestions
from braidmq.net.proto_v1_retained import RetainedPage, RetainedRead
from braidmq.storage.rows.messages import MessageRows

AskPage = Callable[[RetainedRead], Awaitable[RetainedPage]]  # raises Unavailable

PAGE_BYTES: Final = 256 * 1024
ASKED_MAX: Final = 50  # pages under way at a time: half of the calls that a core serves
_RETRY_S: Final = 1.0


class PageAsker:
    """Asks for pages, for some searches at a time; the others wait in the order in which they came."""

    def __init__(self, ask: AskRetained, asked_max: int = ASKED_MAX) -> None:
        self._ask = ask
        self._room = asyncio.Semaphore(asked_max)

    async def __call__(self, request: RetainedRead) -> RetainedPage:
        """The page. Raises Unavailable, or CallError if the core cannot answer."""
        async with self._room:
            page = await self._ask(request)
        assert isinstance(page, RetainedPage)  # what is answered to this question
        return page


class CoreSearch(RetainedSearch):
    """The retained messages of one filter at one core."""

    def __init__(
        self,
        topic_filter: bytes,
        number: int,
        ask: AskPage,
        live: LiveTopics,
        loop: asyncio.AbstractEventLoop | None = None,
        filters: FilterQuestions | None = None,
        *,
        is_for_intents: bool = False,
    ) -> None:
        """``loop``: on which ``ask`` runs; None: the running one. ``filters``: is asked first whether there is anything.

        ``is_for_intents``: see `RetainedRead`.
        """
        self._loop = loop
        self._live = live
        self._is_for_intents = is_for_intents
        self._asked = self._held_since = 0  # numbers of ``live``
        self._filters = filters  # None: there may be messages
        self._is_filter_asked = False
        self._problem: Unavailable | None = None
        self._topic_filter = topic_filter
        self._number = number
        self._ask = ask
        self._page: deque[Retained] | None = None
        self._pages = 0
        self._part = b""  # the beginning of a message that goes on in the next page
        self._is_last = False
        self._asking: asyncio.Task[RetainedPage] | None = None
        self._callback: Callable[[], None] | None = None

    def __next__(self) -> Retained | None:
        """The next message; None while a page is on its way. Raises Unavailable if the core does not answer."""
        if self._asking is not None and self._asking.done():
            self._take_page()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        if self._page:
            held = self._page.popleft()
            return held if self._live.release(held.message.topic, self._held_since) else None
        if self._is_last:
            raise StopIteration
        if self._filters is not None:
            if not self._is_filter_asked:
                self._is_filter_asked = True
                self._filters.add(self._topic_filter, self._on_match)
        elif self._asking is None:
            request = RetainedRead(self._number, self._topic_filter, self._pages, self._is_for_intents)
            if not self._part:  # else the message is as old as its first part
                self._asked = self._live.ask()
            self._asking = asyncio.ensure_future(self._ask(request), loop=self._loop)
            self._asking.add_done_callback(self._on_answer)
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is on its way."""
        return self._is_filter_asked or (self._asking is not None and not self._asking.done())

    @property
    def is_over(self) -> bool:
        return self._is_last and not self._page and self._asking is None and self._problem is None

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when the answer has arrived."""
        self._callback = callback

    def close(self) -> None:
        """End the search early."""
        self._callback = None
        self._is_last = True
        asking, self._asking = self._asking, None
        if asking is not None or self._part:
            self._part = b""
            self._live.arrive()
        if asking is not None:
            asking.cancel()
        page, self._page = self._page, None
        for held in page or ():
            self._live.release(held.message.topic, self._held_since)

    def _on_match(self, found: bool | Unavailable) -> None:
        self._is_filter_asked = False
        if isinstance(found, Unavailable):
            self._problem = found
        elif found:
            self._filters = None
        else:
            self._is_last = True
        self._call_back()

    def _on_answer(self, task: asyncio.Task[RetainedPage]) -> None:
        if task is self._asking:
            self._take_page()
        elif not task.cancelled():
            task.exception()  # an exception that is never retrieved would be logged
        self._call_back()

    def _call_back(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def _take_page(self) -> None:
        asking, self._asking = self._asking, None
        assert asking is not None
        had_part = bool(self._part)
        found: list[Retained] = []
        try:
            page = _page_of(asking)
            if had_part or self._live.knows(self._asked):
                found = self._read(page)
        except Unavailable as problem:
            self._problem = problem
        self._page = deque(each for each in found if not self._live.is_newer(each.message.topic, self._asked))
        self._held_since = self._live.hold(each.message.topic for each in self._page)
        if not self._part:
            self._live.arrive()

    def _read(self, page: RetainedPage) -> list[Retained]:
        self._pages += 1
        self._is_last = page.is_last
        values = list(page.values)
        if values:
            values[0] = self._part + values[0]
            self._part = values.pop() if page.is_part else b""
        rows = MessageRows()
        try:
            found = [rows.message_of(value, "a retained message") for value in values]
        except (Corruption, UsageError) as broken:
            raise Unavailable(str(broken), _RETRY_S) from None
        return [Retained(stored.message, stored.user_name, stored.stored_at) for stored in found]


def _page_of(asking: asyncio.Task[RetainedPage]) -> RetainedPage:
    if asking.cancelled():
        raise Unavailable("the core was not asked", _RETRY_S)
    problem = asking.exception()
    if isinstance(problem, Unavailable):
        raise problem
    if isinstance(problem, BraidError):
        raise Unavailable(str(problem), _RETRY_S)
    return asking.result()
