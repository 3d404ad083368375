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
from braidmq.cluster.remote.retained import ASKED_MAX, CoreRetained, CoreSearch
from braidmq.lane.path.message import Message
from braidmq.net.proto_v1 import RetainedPage, RetainedRead

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
    return CoreSearch(b"t/#", 1, ask)


def test_only_a_filter_without_messages_is_answered_at_once() -> None:
    pages = pages_of(store_of(b"a"))

    assert pages.read_at_once(RetainedRead(1, b"other", 0)) == RetainedPage([], True)
    assert pages.read_at_once(RetainedRead(2, b"t/#", 0)) is None
    assert pages_of(store_of()).read_at_once(RetainedRead(3, b"t/#", 0)) == RetainedPage([], True)


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
    served = pages_of(store_of(b"a"))
    asked = most = 0

    async def ask(request: RetainedRead) -> RetainedPage:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        asked -= 1
        return await served.read(request)

    async def run() -> list[list[bytes]]:
        node = CoreRetained(RetainedStore(0), [ask])
        found = [node.match(b"t/#") for _ in range(ASKED_MAX * 3)]
        return await asyncio.gather(*(read_all(cast(CoreSearch, each)) for each in found))

    assert asyncio.run(run()) == [[b"a"]] * (ASKED_MAX * 3)
    assert most == ASKED_MAX


def test_a_closed_search_is_not_asked_for() -> None:
    asked: list[int] = []

    async def ask(request: RetainedRead) -> RetainedPage:
        asked.append(request.number)
        await asyncio.sleep(0)
        return RetainedPage([], True)

    async def run() -> None:
        node = CoreRetained(RetainedStore(0), [ask])
        searches = [cast(CoreSearch, node.match(b"t/#")) for _ in range(ASKED_MAX + 2)]
        for each in searches:
            next(each)
        searches[-2].close()
        await read_all(searches[-1])

    asyncio.run(run())
    assert asked == [*range(1, ASKED_MAX + 1), ASKED_MAX + 2]
