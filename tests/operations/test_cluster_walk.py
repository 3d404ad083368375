"""A walk through the logs of several cores gives what a walk through one log with all their records would give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.base.shards import shard_of
from braidmq.control.history import ReadRequest
from braidmq.operations import log_part
from braidmq.operations.cluster_walk import ClusterWalk
from braidmq.operations.log_part import LedPart, PageOf, PartPage
from tests.storage.log import Hands
from tests.storage.message_log import DEADLINE_S, Stage

SHARDS = 6
CORES = 3
CLIENTS = [f"c{number}" for number in range(12)]


class Cores:
    """Three logs, each of which has the records of its shards; one clock, so that their order is known."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.hands = Hands()
        clocks = [self.hands.clock() for _ in range(CORES)]
        self.stages = [
            stack.enter_context(Stage(folder / str(core), shards=SHARDS, clock=clock)) for core, clock in enumerate(clocks)
        ]
        led = [[shard for shard in range(SHARDS) if shard % CORES == core] for core in range(CORES)]
        self.parts = [LedPart(stage.log, shards) for stage, shards in zip(self.stages, led, strict=True)]
        self.published: list[bytes] = []

    def publish(self, client_id: str, topic: str = "t/a", payload: bytes | None = None) -> int:
        """Record a message a second later than the one before; its timestamp."""
        self.hands.move(1_000_000)
        stage = self.stages[shard_of(client_id, SHARDS) % CORES]
        payload = b"%d" % len(self.published) if payload is None else payload
        stage.append(client_id, topic, payload)
        stage.settle()
        self.published.append(payload)
        return stage.acks[-1][2]

    def fill(self) -> None:
        for number in range(60):
            self.publish(CLIENTS[number * 7 % len(CLIENTS)])

    def walk(self, *filters: str, start: str = "earliest", end: str = "latest", follow: bool = False) -> ClusterWalk:
        return ClusterWalk(self.parts, ReadRequest(filters=filters or ("#",), start=start, end=end, follow=follow))

    def read(self, walk: ClusterWalk) -> list[bytes]:
        async def run() -> list[bytes]:
            await walk.begin()
            return [record.payload async for found in walk.pieces() for _, record in found]

        return asyncio.run(run())


@pytest.fixture
def cores(tmp_path: Path) -> Iterator[Cores]:
    with ExitStack() as stack:
        yield Cores(tmp_path, stack)


@pytest.mark.parametrize(("records", "size"), [(1000, 512 * 1024), (3, 512 * 1024), (1000, 150)])
def test_records_of_all_cores_come_in_the_order_of_time(
    cores: Cores, records: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_part, "PAGE_RECORDS", records)
    monkeypatch.setattr(log_part, "PAGE_BYTES", size)
    cores.fill()

    assert cores.read(cores.walk()) == cores.published


def test_a_walk_has_the_span_and_the_topics_that_were_asked_for(cores: Cores) -> None:
    cores.fill()
    cores.publish(CLIENTS[0], "t/b")
    cores.publish(CLIENTS[1])
    cores.publish(CLIENTS[2], "t/b")
    cores.publish(CLIENTS[3], "t/b")

    assert cores.read(cores.walk("t/b")) == [cores.published[at] for at in (60, 62, 63)]
    assert cores.read(cores.walk("t/b", start="-2s")) == [cores.published[at] for at in (62, 63)]
    assert cores.read(cores.walk("t/b", end="-1s")) == [cores.published[60]], "62 is not before the end"


def test_a_record_that_is_larger_than_a_page_is_read_in_pieces(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_part, "PAGE_BYTES", 100)
    cores.publish(CLIENTS[0])
    cores.publish(CLIENTS[0], payload=bytes(range(256)) * 3)
    cores.publish(CLIENTS[1])

    assert cores.read(cores.walk()) == cores.published


def test_a_walk_that_follows_goes_on_with_what_comes(cores: Cores) -> None:
    cores.fill()
    walk = cores.walk(start="-10s", follow=True)

    async def run() -> list[bytes]:
        await walk.begin()
        got: list[bytes] = []
        async with asyncio.timeout(DEADLINE_S), aclosing(walk.pieces()) as pieces:
            async for found in pieces:
                got += [record.payload for _, record in found]
                if len(cores.published) < 70:
                    cores.publish(CLIENTS[len(cores.published) % len(CLIENTS)])
                elif len(got) >= 20:
                    return got
        return got

    cores.publish(CLIENTS[0])
    got = asyncio.run(run())

    assert sorted(map(int, got)) == list(range(50, 70))


def test_a_core_that_is_away_ends_the_walk(cores: Cores) -> None:
    cores.fill()

    class Away(LedPart):
        async def page(self, page: PageOf) -> PartPage:
            raise Unavailable("core three is away")

    walk = ClusterWalk([*cores.parts[:2], Away(cores.stages[2].log, [2, 5])], ReadRequest(filters=("#",)))
    with pytest.raises(Unavailable, match="core three is away"):
        cores.read(walk)


def test_a_bad_filter_or_time_is_refused_at_once(cores: Cores) -> None:
    with pytest.raises(UsageError, match="not a topic filter"):
        cores.walk("a/#/b")
    with pytest.raises(UsageError):
        cores.walk(start="yesterday")
