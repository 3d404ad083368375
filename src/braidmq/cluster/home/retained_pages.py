"""Serves retained messages to nodes: the search of a new subscription goes on page by page, at the node's pace."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.messages.retained import Retained, RetainedStore
from braidmq.cluster.home.retained.sender import IntentSender
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead
from braidmq.storage.rows.messages import MessageRows

SEARCHES_MAX: Final = 256  # of one node at a time; the oldest ends, and is begun again for its next page
PAGE_BYTES: Final = 128 * 1024
_PAGE_MESSAGES: Final = 256
_PIECE_BYTES: Final = 512 * 1024  # of a message that does not fit into a frame


class _PagedSearch:
    """One search, and the message, or the rest of it, that did not fit into the last page."""

    __slots__ = ("found", "is_cut", "is_over", "left", "load", "pages")

    def __init__(self, found: Iterator[Retained | None], load: Callable[[Retained], Retained | None]) -> None:
        self.found = found
        self.load = load
        self.left: bytes | None = None
        self.pages = 0
        self.is_over = False
        self.is_cut = False  # the last message of the last page, whose rest is ``left``


class RetainedPages:
    """The searches of one node."""

    def __init__(self, retained: RetainedStore, pipeline: MessagePipeline, intents: IntentSender | None = None) -> None:
        """``intents``: what this core has for other homes, if there are several."""
        self._retained = retained
        self._pipeline = pipeline
        self._intents = intents
        self._rows = MessageRows()
        self._searches: OrderedDict[int, _PagedSearch] = OrderedDict()

    def answer(self, request: RetainedRead | RetainedFilters) -> RetainedMatches | Awaitable[RetainedPage]:
        """Answer a node's question; that for a page may raise Unavailable."""
        return self.matches(request) if isinstance(request, RetainedFilters) else self.read(request)

    def matches(self, request: RetainedFilters) -> RetainedMatches:
        """Which of these filters may have messages."""
        source = self._intents if request.is_for_intents else self._retained
        if source is None:
            return RetainedMatches([])
        may_match = source.may_match
        return RetainedMatches([place for place, each in enumerate(request.topic_filters) if may_match(each)])

    async def read(self, request: RetainedRead) -> RetainedPage:
        """The next page of a search. Raises Unavailable if a message cannot be read now; then the page is asked for again."""
        search = self._searches.get(request.number)
        if search is None or search.pages != request.page:
            # It is new, or was ended because there were too many, or its last page was lost: begin again.
            search = await self._begin(request)
            while search.pages < request.page and not search.is_over:
                await self._page(search)
            self._searches[request.number] = search
            if len(self._searches) > SEARCHES_MAX:
                self._searches.popitem(last=False)
        values = await self._page(search)
        if search.is_over:
            self._searches.pop(request.number, None)
        return RetainedPage(values, search.is_over, search.is_cut)

    async def _begin(self, request: RetainedRead) -> _PagedSearch:
        intents = self._intents
        if not request.is_for_intents or intents is None:
            return _PagedSearch(self._retained.match(request.topic_filter), self._pipeline.load_retained)
        # Those that a home is being given for the first time are found there when it has answered, or are late.
        settled = asyncio.Event()
        intents.when_settled(settled.set)
        await settled.wait()
        return _PagedSearch(intents.match(request.topic_filter), intents.load)

    async def _page(self, search: _PagedSearch) -> list[bytes]:
        search.pages += 1
        search.is_cut = False
        values: list[bytes] = []
        size = 0
        if search.left is not None:
            value, search.left = search.left, None
            if len(value) > _PIECE_BYTES:
                search.left, search.is_cut = value[_PIECE_BYTES:], True
                return [value[:_PIECE_BYTES]]
            values.append(value)
            size = len(value)
        for held in search.found:
            if held is None:
                await asyncio.sleep(0)  # others have their turn
                continue
            whole = search.load(held)
            if whole is None:
                continue
            value = self._rows.row_of(whole.message, whole.user_name, whole.stored_at)
            if len(value) > _PIECE_BYTES or (values and (size + len(value) > PAGE_BYTES or len(values) >= _PAGE_MESSAGES)):
                search.left = value
                return values
            values.append(value)
            size += len(value)
        search.is_over = True
        return values

    def close(self) -> None:
        """The node's connection has ended."""
        self._searches.clear()
