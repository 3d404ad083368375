"""A node keeps its connection to another one: it connects again, and not too often."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address
from braidmq.net.frames import FrameKind
from braidmq.net.handshake import refusal
from tests.net.nodes import EDGE, SECRET, Owner, RawPeer, core_at, edge_to, run, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.sock"


class Pauses(Backoff):
    """Records the pauses and makes them short; ``resets`` counts the fresh starts."""

    def __init__(self) -> None:
        super().__init__(0.1, 30.0)
        self.wanted: list[float] = []
        self.resets = 0

    def next(self) -> float:
        self.wanted.append(super().next())
        return 0.001

    def reset(self) -> None:
        self.resets += 1
        super().reset()


def test_a_lost_connection_is_made_again(path: Path) -> None:
    async def work() -> None:
        async with edge_to(path) as edge:
            for turn in range(3):
                async with core_at(path) as core:
                    here, there = await core.owners.get(), await edge.owners.get()
                    there.connection.send(FrameKind.FEED, turn, b"")
                    await here.has_frames(1)
                    assert edge.dialer.connection is there.connection
                await there.has_lost()
                await until(lambda turn=turn: len(edge.downs) == turn + 1)  # type: ignore[misc]
                assert edge.dialer.connection is not there.connection

    run(work())


def test_the_owner_of_a_connection_hears_of_its_end_before_the_owner_of_the_dialer(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core, edge_to(path) as edge:
            there = await edge.owners.get()
            order: list[str] = []
            there.connection.on_lost = lambda reason: order.append("connection")
            edge.dialer._on_down = lambda reason: order.append("dialer")
            (await core.owners.get()).connection.abort()

            await until(lambda: len(order) == 2)
            assert order == ["connection", "dialer"]

    run(work())


def test_pauses_grow_up_to_their_maximum_and_are_short_again_on_request(path: Path) -> None:
    pauses = Pauses()

    async def work() -> None:
        async with edge_to(path, backoff=pauses) as edge:
            await edge.failed(12)
            edge.dialer.retry_now()
            await edge.failed(14)

    run(work())

    assert pauses.wanted[:10] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0])
    assert 0.1 in pauses.wanted[10:]


def test_a_retry_ends_the_pause_at_once(path: Path) -> None:
    async def work() -> None:
        async with edge_to(path, backoff=Backoff(3600, 3600)) as edge:
            await edge.failed(1)
            async with core_at(path):
                edge.dialer.retry_now()
                await edge.owners.get()

    run(work())


def test_a_peer_that_accepts_and_closes_does_not_shorten_the_pauses(path: Path) -> None:
    pauses = Pauses()

    async def work() -> None:
        async with core_at(path) as core, edge_to(path, backoff=pauses):
            for _ in range(4):
                (await core.owners.get()).connection.abort()

    run(work())

    assert pauses.resets == 0


def test_a_connection_that_lasted_makes_the_pauses_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.net.dialer.STABLE_S", 0.0)
    pauses = Pauses()

    async def work() -> None:
        async with core_at(path) as core, edge_to(path, backoff=pauses) as edge:
            (await core.owners.get()).connection.abort()
            await until(lambda: len(edge.downs) == 1)

    run(work())

    assert pauses.resets == 1


def test_a_reason_is_logged_once_and_again_after_a_success(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with edge_to(path) as edge:
            await edge.failed(3)
            assert len(caplog.records) == 1
            assert "No such file" in caplog.text
            async with core_at(path):
                await edge.owners.get()
            caplog.clear()
            await edge.failed(edge.dialer.failures + 3)

    run(work())

    assert sum("No such file" in line.getMessage() for line in caplog.records) == 1


def test_a_refusal_of_the_peer_is_logged_once_for_each_reason(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen()
        listening.setblocking(False)
        async with edge_to(path) as edge:
            for reason in ("no room", "no room", "go away", "no room"):
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                peer = RawPeer(accepted)
                await peer.frame()
                await peer.send(refusal(reason))
                await peer.end()
                peer.close()
            assert "no room" in await edge.failed(4)
            listening.close()

    run(work())

    lines = [line.getMessage() for line in caplog.records if "refused by the peer" in line.getMessage()]
    assert [("no room" in line, "go away" in line) for line in lines] == [(True, False), (False, True)]


def test_a_peer_that_says_nothing_ends_the_attempt_at_its_deadline(path: Path) -> None:
    async def work() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(path))
            listening.listen()
            async with edge_to(path, handshake_s=0.02) as edge:
                assert "took too long" in await edge.failed(2)

    run(work())


def test_an_address_that_does_not_answer_ends_the_attempt_at_its_deadline() -> None:
    """The queue of a listening socket that never accepts is full: the kernel drops what connects."""

    async def work() -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = Address("127.0.0.1", listening.getsockname()[1])
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        async with edge_to(address, connect_s=0.05) as edge:
            assert "did not answer in time" in await edge.failed(1)
        for each in (listening, *fillers):
            each.close()

    run(work())


def test_a_host_without_an_address_is_a_failure_in_words() -> None:
    async def work() -> None:
        async with edge_to(Address("host.invalid", 4370)) as edge:
            assert await edge.failed(1) != ""

    run(work())


@pytest.mark.parametrize("moment", ["in a pause", "in a handshake", "connected"])
def test_closing_ends_everything_at_any_moment(path: Path, moment: str) -> None:
    async def work() -> None:
        owner: Owner | None = None
        async with edge_to(path, backoff=Backoff(3600, 3600)) as edge:
            if moment == "in a pause":
                await edge.failed(1)
                await edge.dialer.close()
            elif moment == "in a handshake":
                await edge.failed(1)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
                    listening.bind(str(path))
                    listening.listen()
                    edge.dialer.retry_now()
                    await until(lambda: edge.dialer._attempt is not None)
                    await edge.dialer.close()
            else:
                async with core_at(path) as core:
                    edge.dialer.retry_now()
                    owner = await edge.owners.get()
                    await core.owners.get()
                    await edge.dialer.close()
            assert edge.dialer.connection is None
            assert edge.dialer._task is not None
            assert edge.dialer._task.done()
            assert edge.downs == (["the node stops"] if owner else [])

    run(work())


def test_each_attempt_sends_a_new_hello(path: Path) -> None:
    """A node learns its incarnation from the first connection and names it on later ones."""

    async def work() -> None:
        async with core_at(path) as core, edge_to(path, edge=EDGE, secret=SECRET) as edge:
            first = await core.owners.get()
            edge.dialer._hello = lambda: type(EDGE)("braid", "edge1", "replicant", 8, "messages", 4, 1, 1)
            first.connection.abort()
            second = await core.owners.get()

            assert [owner.connection.peer.incarnation for owner in (first, second)] == [7, 8]

    run(work())
