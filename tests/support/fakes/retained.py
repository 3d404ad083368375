"""Retained messages of another node: their pages arrive when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from braidmq.base.errors import Unavailable
from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.ports import RetainedReads, RetainedSearch
from braidmq.mqtt.topics import matches


class PagedSearch(RetainedSearch):
    """A search whose messages come in pages."""

    def __init__(self, topic_filter: bytes) -> None:
        self.topic_filter = topic_filter
        self.asked = 0  # calls of ``next``
        self.is_failing = False
        self._page: deque[Retained] = deque()
        self._is_last = False
        self._is_waiting = False
        self._wake: Callable[[], None] | None = None

    def __next__(self) -> Retained | None:
        self.asked += 1
        self._is_waiting = False
        if self.is_failing:
            raise Unavailable("the home is away")
        if self._page:
            return self._page.popleft()
        if self._is_last:
            raise StopIteration
        self._is_waiting = True
        return None

    @property
    def is_waiting(self) -> bool:
        return self._is_waiting

    @property
    def is_over(self) -> bool:
        return self._is_last and not self._page

    def when_ready(self, callback: Callable[[], None]) -> None:
        assert self._is_waiting
        self._wake = callback

    def close(self) -> None:
        self._is_last = True
        self._wake = None

    def arrive(self, page: list[Retained], *, is_last: bool) -> None:
        """The next page is there."""
        assert all(matches(self.topic_filter.decode(), each.message.topic.decode()) for each in page)
        self._page += page
        self._is_last = is_last
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()


class PagedRetained:
    """Local messages for $-filters, pages for all others; implements `broker.session.ports.RetainedReads`."""

    def __init__(self, local: RetainedReads) -> None:
        self._local = local
        self.searches: list[PagedSearch] = []

    def may_match(self, topic_filter: bytes) -> bool:
        return not topic_filter.startswith(b"$") or self._local.may_match(topic_filter)

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        if topic_filter.startswith(b"$"):
            return self._local.match(topic_filter)
        search = PagedSearch(topic_filter)
        self.searches.append(search)
        return search
