"""Retained messages of several cores as a node finds them, page by page: what is stale or known is left out (S9, C26)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from braidmq.base.errors import Unavailable
from braidmq.broker.messages.retained import RetainedStore
from braidmq.cluster.remote import live_topics, retained_homes
from braidmq.cluster.remote.live_topics import LiveTopics
from braidmq.cluster.remote.retained import CoreSearch
from braidmq.cluster.remote.retained_filters import AskRetained
from braidmq.cluster.remote.retained_homes import CoreRetained, HomesSearch
from braidmq.lane.path.message import Message
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead
from braidmq.storage.rows.messages import MessageRows


def row(topic: bytes, payload: bytes, number: int) -> bytes:
    return MessageRows().row_of(Message(topic, payload, 1, True, "p"), None, number / 1e6)


class PagingCore:
    """What one core has, in pages; each answer waits for ``go`` if the test holds it."""

    def __init__(self) -> None:
        self.values: list[list[bytes]] = [[]]
        self.intents: list[bytes] = []
        self.is_away = self.is_silent = False  # silent: it does not say what it has on its way
        self.asked: list[RetainedRead] = []
        self.go = asyncio.Event()
        self.go.set()

    async def ask(self, request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        answer: RetainedPage | RetainedMatches
        if isinstance(request, RetainedFilters):
            answer = RetainedMatches(list(range(len(request.topic_filters))))
        else:
            self.asked.append(request)
            answer = RetainedPage(self.values[request.page], request.page == len(self.values) - 1)
            if request.is_for_intents:
                answer = RetainedPage(self.intents, True)
        is_missing = self.is_away or (self.is_silent and request.is_for_intents)
        if not isinstance(request, RetainedFilters):
            await self.go.wait()
        if is_missing:
            raise Unavailable("it is away", 1.0)
        return answer

    @property
    def reads(self) -> int:
        """How often it was asked for what it keeps."""
        return sum(not each.is_for_intents for each in self.asked)


class ReadingNode:
    """A node with some cores, and its live messages."""

    def __init__(self, count: int) -> None:
        self.note: Callable[[bytes], None] | None = None
        self.live = LiveTopics(self._listen)
        self.cores = [PagingCore() for _ in range(count)]
        self.retained = CoreRetained(
            RetainedStore(0), [core.ask for core in self.cores], self.live, lambda topic: topic[0] % count
        )

    def _listen(self, note: Callable[[bytes], None] | None) -> None:
        self.note = note

    def publish(self, topic: bytes) -> None:
        """A live retained message is delivered here."""
        if self.note is not None:
            self.note(topic)

    def search(self, topic_filter: bytes = b"#") -> CoreSearch | HomesSearch:
        found = self.retained.match(topic_filter)
        assert isinstance(found, CoreSearch | HomesSearch)
        return found


async def read(search: CoreSearch | HomesSearch, count: int = 1000) -> list[bytes]:
    """So many messages, or all up to the end or to the point where a core does not answer."""
    found: list[bytes] = []
    while len(found) < count:
        try:
            held = next(search)
        except (StopIteration, Unavailable):
            break
        if held is not None:
            found.append(held.message.payload)
        elif search.is_waiting:
            ready = asyncio.Event()
            search.when_ready(ready.set)
            await ready.wait()
    return found


async def until_asked(search: CoreSearch | HomesSearch, core: PagingCore) -> None:
    """Until a page is on its way."""
    while not core.asked:
        assert next(search) is None
        await asyncio.sleep(0)


def test_s9_a_topic_with_a_live_message_while_its_page_is_on_its_way_is_skipped() -> None:
    async def work() -> None:
        node = ReadingNode(1)
        core = node.cores[0]
        core.values = [[row(b"a", b"a", 1), row(b"b", b"old", 2), row(b"c", b"c", 3)]]
        core.go.clear()
        search = node.search()
        await until_asked(search, core)
        node.publish(b"b")
        core.go.set()

        assert await read(search) == [b"a", b"c"]
        assert node.note is None, "nothing listens any more"
        assert len(node.live) == 0

    asyncio.run(work())


def test_s9_a_topic_with_a_live_message_while_its_page_waits_for_the_client_is_skipped() -> None:
    async def work() -> None:
        node = ReadingNode(1)
        node.cores[0].values = [[row(b"a", b"a", 1), row(b"b", b"old", 2)], [row(b"c", b"c", 3), row(b"b", b"later", 9)]]
        search = node.search()
        assert await read(search, 1) == [b"a"]

        node.publish(b"b")

        assert await read(search) == [b"c", b"later"], "what was asked for afterwards is not older"
        assert len(node.live) == 0

    asyncio.run(work())


def test_s9_a_live_message_for_one_search_does_not_concern_a_later_one() -> None:
    async def work() -> None:
        node = ReadingNode(1)
        node.cores[0].values = [[row(b"a", b"a", 1), row(b"b", b"b", 2)]]
        early = node.search()
        assert await read(early, 1) == [b"a"]
        node.publish(b"b")
        assert await read(node.search()) == [b"a", b"b"]
        assert await read(early) == []

    asyncio.run(work())


def test_a_page_is_asked_for_again_if_too_many_topics_had_live_messages_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_topics, "SEEN_MAX", 3)

    async def work() -> None:
        node = ReadingNode(1)
        core = node.cores[0]
        core.values = [[row(b"t1", b"old", 1)]]
        core.go.clear()
        search = node.search()
        await until_asked(search, core)
        for number in range(10):
            node.publish(b"t%d" % number)
        assert len(node.live) <= 3
        core.values = [[row(b"t1", b"new", 2)]]
        core.go.set()

        assert await read(search) == [b"new"]
        assert len(core.asked) == 2

    asyncio.run(work())


def test_a_large_message_is_as_old_as_its_first_part() -> None:
    async def work() -> None:
        node = ReadingNode(1)
        whole = row(b"b", b"old", 2)
        pages = [RetainedPage([whole[:10]], False, True), RetainedPage([whole[10:]], True)]
        node.retained = CoreRetained(RetainedStore(0), [_pager(lambda request: pages[request.page])], node.live, lambda topic: 0)
        search = node.search()
        await until_ready(search)
        node.publish(b"b")

        assert await read(search) == []
        assert len(node.live) == 0
        assert node.note is None

    asyncio.run(work())


def _pager(page_of: Callable[[RetainedRead], RetainedPage]) -> AskRetained:
    async def ask(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        await asyncio.sleep(0)
        return RetainedMatches([0]) if isinstance(request, RetainedFilters) else page_of(request)

    return ask


async def until_ready(search: CoreSearch | HomesSearch) -> None:
    """Ask, and wait for the answer, so often as it takes to ask for a page."""
    for _ in range(2):
        assert next(search) is None
        ready = asyncio.Event()
        search.when_ready(ready.set)
        await ready.wait()


@pytest.mark.parametrize("when", ["on its way", "waiting", "in parts"])
def test_a_search_that_ends_early_leaves_nothing_behind(when: str) -> None:
    async def work() -> None:
        node = ReadingNode(1)
        core = node.cores[0]
        core.values = [[row(b"a", b"a", 1), row(b"b", b"b", 2)]]
        if when == "in parts":
            part = RetainedPage([row(b"b", b"old", 2)[:10]], False, True)
            node.retained = CoreRetained(RetainedStore(0), [_pager(lambda request: part)], node.live, lambda topic: 0)
        search = node.search()
        if when == "waiting":
            assert await read(search, 1) == [b"a"]
        elif when == "in parts":
            await until_ready(search)
        else:
            await until_asked(search, core)
        search.close()
        await asyncio.sleep(0)

        assert len(node.live) == 0
        assert node.note is None

    asyncio.run(work())


def test_c26_what_is_on_its_way_comes_first_and_replaces_what_is_older() -> None:
    async def work() -> None:
        node = ReadingNode(3)
        one, two, three = node.cores
        one.intents = [row(b"a", b"late", 5), row(b"b", b"", 6), row(b"c", b"older", 7)]
        two.values = [[row(b"a", b"old", 4), row(b"b", b"removed", 5), row(b"c", b"newer", 8), row(b"d", b"d", 1)]]
        three.intents = [row(b"a", b"later", 9)]

        found = await read(node.search())

        assert found[-2:] == [b"newer", b"d"]
        assert set(found[:-2]) <= {b"late", b"later", b"older"}
        assert [each for each in found if each in (b"late", b"later")][-1] == b"later"

    asyncio.run(work())


def test_c26_all_cores_have_said_what_is_on_its_way_before_any_home_is_asked() -> None:
    async def work() -> None:
        node = ReadingNode(2)
        one, two = node.cores
        two.go.clear()
        search = node.search()
        for _ in range(20):
            next(search)
            await asyncio.sleep(0)
        assert [one.reads, two.reads] == [0, 0]
        two.go.set()
        await read(search)
        assert [one.reads, two.reads] == [1, 1]

    asyncio.run(work())


def test_a_topic_is_asked_for_at_its_home_only() -> None:
    async def work() -> None:
        node = ReadingNode(2)
        node.cores[1].values = [[row(b"a", b"1", 1)]]

        assert await read(node.search(b"a")) == [b"1"]
        assert [core.reads for core in node.cores] == [0, 1]

    asyncio.run(work())


def test_c26_homes_are_read_again_when_a_core_that_was_away_has_said_what_is_on_its_way() -> None:
    async def work() -> None:
        node = ReadingNode(2)
        one, two = node.cores
        one.is_silent = True
        one.values, two.values = [[row(b"a", b"a", 1)]], [[row(b"b", b"old", 2), row(b"c", b"c", 3)]]
        search = node.search()
        assert sorted(await read(search)) == [b"a", b"c", b"old"]
        for _ in range(3):
            assert await read(search) == []
        assert two.reads == 1, "only what is missing is asked for again"

        one.is_silent = False
        two.values = [[row(b"b", b"new", 4), row(b"c", b"c", 3)]]

        assert await read(search) == [b"new"]
        with pytest.raises(StopIteration):
            next(search)

    asyncio.run(work())


def test_what_is_remembered_of_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_homes, "NUMBERS_MAX", 1)

    async def work() -> None:
        node = ReadingNode(2)
        one, two = node.cores
        one.is_away = True
        two.values = [[row(b"b", b"b", 2), row(b"c", b"c", 3)]]
        search = node.search()
        assert await read(search) == [b"b", b"c"]
        one.is_away = False
        assert await read(search) == [b"c"], "it comes twice"

    asyncio.run(work())


def test_a_home_that_was_away_is_read_while_another_one_still_is() -> None:
    async def work() -> None:
        node = ReadingNode(3)
        one, two, three = node.cores
        one.is_away = two.is_away = True
        one.values, two.values, three.values = [[row(b"a", b"a", 1)]], [[row(b"b", b"b", 2)]], [[row(b"c", b"c", 3)]]
        search = node.search()
        assert await read(search) == [b"c"]
        two.is_away = False
        found = await read(search) + await read(search)
        assert found == [b"b"]

    asyncio.run(work())
