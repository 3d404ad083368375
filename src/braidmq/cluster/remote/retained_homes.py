"""Retained messages of all cores, as a node finds them.

Each message is at the home of its topic. Messages that are on their way there, because that home was away, are at the homes of
their publishers, and these are asked first: what is not there any more then is found at the home of the topic (C26). A core that
is away holds up nothing but its own messages, and is asked again until it is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from braidmq.base.errors import Unavailable
from braidmq.broker.messages.retained import Retained
from braidmq.broker.session.ports import RetainedReads, RetainedSearch
from braidmq.cluster.remote.live_topics import LiveTopics
from braidmq.cluster.remote.retained import CoreSearch, PageAsker
from braidmq.cluster.remote.retained_filters import AskRetained, FilterQuestions

NUMBERS_MAX: Final = 10_000  # topics of one search whose messages are remembered; others may be delivered twice
_RETRY_S: Final = 1.0


class CoreRetained:
    """Retained messages as a node finds them: those of its own ``$`` topics here, all others at the cores."""

    def __init__(
        self,
        local: RetainedReads,
        asks: Sequence[AskRetained],
        live: LiveTopics,
        home_of: Callable[[bytes], int],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``asks``: for each core, what asks it. ``home_of``: which of them is the home of a topic."""
        self._local = local
        self._cores = [_AskedCore(ask, loop) for ask in asks]
        self._live = live
        self._home_of = home_of
        self._loop = loop
        self._numbers = 0

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no message for this filter."""
        return not topic_filter.startswith(b"$") or self._local.may_match(topic_filter)

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match; those of the cores arrive page by page."""
        if topic_filter.startswith(b"$"):
            return self._local.match(topic_filter)
        if len(self._cores) == 1:
            return self._search(topic_filter, self._cores[0])
        return HomesSearch(lambda: self._intents(topic_filter), lambda: self._values(topic_filter))

    def _intents(self, topic_filter: bytes) -> MergedSearch:
        return MergedSearch([self._search(topic_filter, core, is_for_intents=True) for core in self._cores])

    def _values(self, topic_filter: bytes) -> MergedSearch:
        is_topic = b"+" not in topic_filter and b"#" not in topic_filter
        cores = [self._cores[self._home_of(topic_filter)]] if is_topic else self._cores
        return MergedSearch([self._search(topic_filter, core) for core in cores])

    def _search(self, topic_filter: bytes, core: _AskedCore, *, is_for_intents: bool = False) -> CoreSearch:
        self._numbers += 1
        filters = core.intents if is_for_intents else core.values
        return CoreSearch(topic_filter, self._numbers, core.pages, self._live, self._loop, filters, is_for_intents=is_for_intents)


class _AskedCore:
    """What asks one core: for pages, and whether there is anything at all."""

    def __init__(self, ask: AskRetained, loop: asyncio.AbstractEventLoop | None) -> None:
        self.pages = PageAsker(ask)
        self.values = FilterQuestions(ask, loop)
        self.intents = FilterQuestions(ask, loop, is_for_intents=True)


class HomesSearch(RetainedSearch):
    """First what is on its way, then what the homes of the topics have.

    Of the messages that are found for a topic one after the other, only newer ones count. If a core did not say what it has on
    its way, the homes of the topics are asked again when it has: they may have got it meanwhile.
    """

    def __init__(self, intents: Callable[[], MergedSearch], values: Callable[[], MergedSearch]) -> None:
        self._make_values = values
        self._intents = intents()
        self._values = values()
        self._is_among_intents = True
        self._has_intents = False  # of all cores
        self._is_early = False  # what the homes have is read although some intents are missing
        self._numbers: dict[bytes, int] = {}  # those of the messages that were found last

    def __next__(self) -> Retained | None:
        """The next message; None while pages are on their way. Raises Unavailable if only cores that do not answer are left."""
        return self._next_intent() if self._is_among_intents else self._next_value()

    def _next_intent(self) -> Retained | None:
        try:
            found = next(self._intents)
        except StopIteration:
            self._has_intents, self._is_among_intents = True, False
            if self._is_early:
                self._values.close()
                self._values = self._make_values()
            return None
        except Unavailable:
            self._is_early, self._is_among_intents = True, False
            return None
        if found is None or not self._is_newer(found):
            return None
        self._numbers[found.message.topic] = found.number
        return found if found.message.payload else None  # it was removed

    def _next_value(self) -> Retained | None:
        try:
            found = next(self._values)
        except StopIteration:
            if self._has_intents:
                raise
            self._is_among_intents = True
            raise Unavailable("a core has not said which retained messages it has on their way", _RETRY_S) from None
        except Unavailable:
            self._is_among_intents = not self._has_intents
            raise
        if found is None or not self._is_newer(found):
            return None
        if not self._has_intents and len(self._numbers) < NUMBERS_MAX:
            self._numbers[found.message.topic] = found.number
        return found

    def _is_newer(self, found: Retained) -> bool:
        return found.number > self._numbers.get(found.message.topic, 0)

    @property
    def _current(self) -> MergedSearch:
        return self._intents if self._is_among_intents else self._values

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has arrived."""
        return self._current.is_waiting

    @property
    def is_over(self) -> bool:
        return self._has_intents and not self._is_among_intents and self._values.is_over

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when a page of any core has arrived."""
        self._current.when_ready(callback)

    def close(self) -> None:
        """End the search early."""
        self._intents.close()
        self._values.close()


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
