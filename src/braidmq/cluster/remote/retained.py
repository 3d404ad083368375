"""Retained messages of other nodes: the cores have them, and send those of a filter in pages.

A message is at the core that leads the shard of its topic, so each search asks all of them. A core that is away holds up nothing
but its own messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from braidmq.base.errors import BraidError, Corruption, Unavailable, UsageError
from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.ports import RetainedReads, RetainedSearch
from braidmq.cluster.remote.retained_filters import AskRetained, FilterQuestions
from braidmq.net.proto_v1_retained import RetainedPage, RetainedRead
from braidmq.storage.rows.messages import MessageRows

AskPage = Callable[[RetainedRead], Awaitable[RetainedPage]]  # raises Unavailable

PAGE_BYTES: Final = 256 * 1024
ASKED_MAX: Final = 50  # pages under way at a time: half of the calls that a core serves
_RETRY_S: Final = 1.0


class CoreRetained:
    """Retained messages as a node finds them: those of its own ``$`` topics here, all others at the cores."""

    def __init__(self, local: RetainedReads, asks: Sequence[AskRetained], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``asks``: for each core, what asks it."""
        self._local = local
        self._cores = [(PageAsker(ask), FilterQuestions(ask, loop)) for ask in asks]
        self._loop = loop
        self._numbers = 0

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no message for this filter."""
        return not topic_filter.startswith(b"$") or self._local.may_match(topic_filter)

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match; those of the cores arrive page by page."""
        if topic_filter.startswith(b"$"):
            return self._local.match(topic_filter)
        self._numbers += 1
        searches = [CoreSearch(topic_filter, self._numbers, ask, self._loop, filters) for ask, filters in self._cores]
        return searches[0] if len(searches) == 1 else MergedSearch(searches)


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
        loop: asyncio.AbstractEventLoop | None = None,
        filters: FilterQuestions | None = None,
    ) -> None:
        """``loop``: on which ``ask`` runs; None: the running one. ``filters``: is asked first whether there is anything."""
        self._loop = loop
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
        if self._page:
            return self._page.popleft()
        if self._asking is not None and self._asking.done():
            self._take_page()
            return self._page.popleft() if self._page else None
        if self._is_last:
            raise StopIteration
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        if self._filters is not None:
            if not self._is_filter_asked:
                self._is_filter_asked = True
                self._filters.add(self._topic_filter, self._on_match)
        elif self._asking is None:
            request = RetainedRead(self._number, self._topic_filter, self._pages)
            self._asking = asyncio.ensure_future(self._ask(request), loop=self._loop)
            self._asking.add_done_callback(self._on_answer)
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is on its way."""
        return self._is_filter_asked or (self._asking is not None and not self._asking.done())

    @property
    def is_over(self) -> bool:
        return self._is_last and not self._page and self._asking is None

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when the answer has arrived."""
        self._callback = callback

    def close(self) -> None:
        """End the search early."""
        self._callback = None
        self._is_last = True
        if self._asking is not None:
            self._asking.cancel()

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
        if not task.cancelled():
            task.exception()  # an exception that is never retrieved would be logged
        self._call_back()

    def _call_back(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def _take_page(self) -> None:
        asking, self._asking = self._asking, None
        assert asking is not None
        if asking.cancelled():
            raise Unavailable("the core was not asked", _RETRY_S)
        problem = asking.exception()
        if isinstance(problem, Unavailable):
            raise problem
        if isinstance(problem, BraidError):
            raise Unavailable(str(problem), _RETRY_S)
        page = asking.result()
        self._pages += 1
        self._is_last = page.is_last
        values = list(page.values)
        if values:
            values[0] = self._part + values[0]
            self._part = values.pop() if page.is_part else b""
        rows = MessageRows()
        found: deque[Retained] = deque()
        for value in values:
            try:
                stored = rows.message_of(value, "a retained message")
            except (Corruption, UsageError) as broken:
                raise Unavailable(str(broken), _RETRY_S) from None
            found.append(Retained(stored.message, stored.user_name, stored.stored_at))
        self._page = found


class MergedSearch(RetainedSearch):
    """The retained messages of one filter at several cores, in no particular order.

    What a core that fails still has comes last: the search raises Unavailable only when nothing else is left.
    """

    def __init__(self, searches: Sequence[CoreSearch]) -> None:
        self._left = deque(searches)
        self._failed: list[CoreSearch] = []  # asked again when the others are through
        self._problem = Unavailable("no core was asked", _RETRY_S)
        self._callback: Callable[[], None] | None = None

    def __next__(self) -> Retained | None:
        """The next message; None while pages are on their way. Raises Unavailable if only cores that do not answer are left."""
        for _ in range(len(self._left)):
            search = self._left[0]
            try:
                found = next(search)
            except StopIteration:
                self._left.popleft()
                continue
            except Unavailable as problem:
                self._problem = problem
                self._failed.append(self._left.popleft())
                continue
            if found is not None:
                return found
            self._left.rotate(-1)
        if self._left:
            return None
        if not self._failed:
            raise StopIteration
        self._left.extend(self._failed)
        self._failed.clear()
        raise self._problem

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has arrived."""
        return bool(self._left) and all(search.is_waiting for search in self._left)

    @property
    def is_over(self) -> bool:
        return not self._failed and all(search.is_over for search in self._left)

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when a page of any core has arrived."""
        self._callback = callback
        for search in self._left:
            search.when_ready(self._on_ready)

    def _on_ready(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def close(self) -> None:
        """End the search early."""
        self._callback = None
        for search in (*self._left, *self._failed):
            search.close()
        self._left.clear()
        self._failed.clear()
