"""Retained messages on their way from a core to a node, in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from braidmq.base.errors import Unavailable
from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.messages.retained import Retained, RetainedStore
from braidmq.cluster.home import retained_pages
from braidmq.cluster.home.retained_pages import RetainedPages
from braidmq.cluster.remote import retained_filters
from braidmq.cluster.remote.live_topics import LiveTopics
from braidmq.cluster.remote.retained import ASKED_MAX, CoreSearch, PageAsker
from braidmq.cluster.remote.retained_filters import AskRetained
from braidmq.cluster.remote.retained_homes import CoreRetained
from braidmq.lane.path.message import Message
from braidmq.net.calls import CallError
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead

MIB = 1024 * 1024


class InMemory:
    """A pipeline whose retained messages are all in memory."""

    def load_retained(self, held: Retained) -> Retained:
        """The message itself."""
        return held


def pages_of(store: RetainedStore) -> RetainedPages:
    return RetainedPages(store, cast(MessagePipeline, InMemory()))


def store_of(*payloads: bytes) -> RetainedStore:
    store = RetainedStore(0)
    for number, payload in enumerate(payloads):
        store.put(Message(b"t/%d" % number, payload, 1, True, "c"), None)
    return store


async def read_all(search: CoreSearch) -> list[bytes]:
    """The payloads that a subscriber gets; it waits when the search does, and tries again what was unavailable."""
    found: list[bytes] = []
    while True:
        try:
            held = next(search)
        except StopIteration:
            return found
        except Unavailable:
            continue
        if held is not None:
            found.append(held.message.payload)
        elif search.is_waiting:
            ready = asyncio.Event()
            search.when_ready(ready.set)
            await ready.wait()


def search(ask: Callable[[RetainedRead], Awaitable[RetainedPage]]) -> CoreSearch:
    return CoreSearch(b"t/#", 1, ask, LiveTopics(lambda note: None))


def node_of(ask: AskRetained) -> CoreRetained:
    """A node with one core."""
    return CoreRetained(RetainedStore(0), [ask], LiveTopics(lambda note: None), lambda topic: 0)


def asking(served: RetainedPages, asked: list[object] | None = None) -> AskRetained:
    """Asks a core that answers in a later turn; ``asked`` gets the questions."""

    async def ask(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        if asked is not None:
            asked.append(request)
        await asyncio.sleep(0)
        answer = served.answer(request)
        return answer if isinstance(answer, RetainedMatches) else await answer

    return ask


def test_filters_of_one_turn_share_a_question_and_only_those_with_messages_are_searched_for() -> None:
    asked: list[object] = []

    async def run() -> list[list[bytes]]:
        node = node_of(asking(pages_of(store_of(b"a")), asked))
        found = [node.match(each) for each in (b"other", b"t/#", b"another", b"t/0")]
        return await asyncio.gather(*(read_all(cast(CoreSearch, each)) for each in found))

    assert asyncio.run(run()) == [[], [b"a"], [], [b"a"]]
    assert asked == [
        RetainedFilters([b"other", b"t/#", b"another", b"t/0"]),
        RetainedRead(2, b"t/#", 0),
        RetainedRead(4, b"t/0", 0),
    ]


def test_filters_that_come_while_a_question_is_under_way_share_the_next_one() -> None:
    asked: list[object] = []
    ask = asking(pages_of(store_of()), asked)
    searches: list[CoreSearch] = []

    async def busy(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        if not asked:
            for each in searches[1:]:
                next(each)
        return await ask(request)

    async def run() -> None:
        node = node_of(busy)
        searches.extend(cast(CoreSearch, node.match(b"%d" % number)) for number in range(4))
        next(searches[0])
        await asyncio.gather(*map(read_all, searches))

    asyncio.run(run())
    assert asked == [RetainedFilters([b"0"]), RetainedFilters([b"1", b"2", b"3"])]


def test_a_question_has_a_bounded_number_and_size_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_filters, "FILTERS_MAX", 3)
    monkeypatch.setattr(retained_filters, "BYTES_MAX", 10)
    asked: list[object] = []
    filters = [b"1", b"2", b"3", b"4", b"123456", b"123456", b"123456789012", b"5"]

    async def run() -> None:
        node = node_of(asking(pages_of(store_of()), asked))
        await asyncio.gather(*(read_all(cast(CoreSearch, node.match(each))) for each in filters))

    asyncio.run(run())
    assert asked == [RetainedFilters(filters[start:end]) for start, end in ((0, 3), (3, 5), (5, 6), (6, 7), (7, 8))]


def test_a_search_that_is_known_to_find_nothing_says_so_before_it_is_asked() -> None:
    async def run() -> tuple[bool, bool, bool]:
        node = node_of(asking(pages_of(store_of(b"a"))))
        empty, full = (cast(CoreSearch, node.match(each)) for each in (b"other", b"t/0"))
        before = empty.is_over
        for each in (empty, full):
            next(each)
            ready = asyncio.Event()
            each.when_ready(ready.set)
            await ready.wait()
        return before, empty.is_over, full.is_over

    assert asyncio.run(run()) == (False, True, False)


def test_a_filter_about_which_the_core_could_not_be_asked_is_asked_about_again() -> None:
    asked: list[object] = []
    ask = asking(pages_of(store_of(b"a")), asked)
    failures: list[Exception] = [Unavailable("the core is away", 0.0), CallError("too many calls", 1.0)]

    async def failing(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        if failures:
            raise failures.pop()
        return await ask(request)

    async def run() -> list[list[bytes]]:
        node = node_of(failing)
        return await asyncio.gather(*(read_all(cast(CoreSearch, node.match(each))) for each in (b"t/#", b"other")))

    assert asyncio.run(run()) == [[b"a"], []]
    assert asked == [RetainedFilters([b"t/#", b"other"]), RetainedRead(1, b"t/#", 0)]


def test_a_message_larger_than_a_frame_arrives_whole() -> None:
    payloads = [b"first", b"x" * (3 * MIB + 17), b"y" * MIB, b"last"]

    assert asyncio.run(read_all(search(pages_of(store_of(*payloads)).read))) == payloads


def test_a_search_goes_on_after_the_core_has_forgotten_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_pages, "_PAGE_MESSAGES", 10)
    payloads = [b"%d" % number for number in range(35)]
    store = store_of(*payloads)
    pages = [pages_of(store) for _ in range(4)]  # another one for each page: the connection was lost each time

    async def ask(request: RetainedRead) -> RetainedPage:
        return await pages[request.page].read(request)

    assert asyncio.run(read_all(search(ask))) == payloads


def test_a_page_that_the_core_could_not_read_is_asked_for_again() -> None:
    served = pages_of(store_of(b"a", b"b"))
    failures = [Unavailable("no file descriptor", 0.0)]

    async def ask(request: RetainedRead) -> RetainedPage:
        if failures:
            raise failures.pop()
        return await served.read(request)

    assert asyncio.run(read_all(search(ask))) == [b"a", b"b"]


def test_searches_beyond_what_the_core_serves_at_a_time_wait_for_their_turn() -> None:
    ask = asking(pages_of(store_of(b"a")))
    asked = most = 0

    async def counting(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        answer = await ask(request)
        asked -= 1
        return answer

    async def run() -> list[list[bytes]]:
        node = node_of(counting)
        found = [node.match(b"t/#") for _ in range(ASKED_MAX * 3)]
        return await asyncio.gather(*(read_all(cast(CoreSearch, each)) for each in found))

    assert asyncio.run(run()) == [[b"a"]] * (ASKED_MAX * 3)
    assert most == ASKED_MAX


def test_a_closed_search_is_not_asked_for() -> None:
    asked: list[object] = []
    served = asking(pages_of(store_of(b"a")), asked)

    async def run() -> None:
        asker = PageAsker(served)
        live = LiveTopics(lambda note: None)
        searches = [CoreSearch(b"t/#", number, asker, live) for number in range(ASKED_MAX + 2)]
        for each in searches:
            next(each)
        searches[-2].close()
        await read_all(searches[-1])

    asyncio.run(run())
    assert asked == [RetainedRead(number, b"t/#", 0) for number in (*range(ASKED_MAX), ASKED_MAX + 1)]
