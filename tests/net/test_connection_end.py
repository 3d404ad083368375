"""How a connection between two nodes ends: everything that was sent before is read, and its owner is told once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from braidmq.net.frames import FrameKind, encode, head
from tests.net.nodes import RawPeer, core_at, run, two_nodes, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.sock"


def test_a_closed_connection_is_read_to_its_end(path: Path) -> None:
    """The peer sends its last frames and dies, while this node writes to it: the failed write must not lose them."""

    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            owner.connection.pause_reading()
            await peer.send(b"".join(encode(FrameKind.BLOCK, number, b"x" * 1000) for number in range(50)))
            peer.close()
            for _ in range(20):
                owner.connection.send(FrameKind.FEED, 0, b"y" * 100_000)  # the first one finds that the peer is gone
                await asyncio.sleep(0)
            assert not owner.connection.is_open
            assert owner.lost == []
            owner.connection.resume_reading()

            await owner.has_lost()

            assert [frame.destination for frame in owner.frames] == list(range(50))
            assert len(owner.lost) == 1

    run(work())


def test_closing_sends_what_waits_and_hands_out_what_the_peer_had_sent(path: Path) -> None:
    async def work() -> None:
        async with two_nodes(path) as (edge, core):
            for number in range(20):
                edge.connection.send(FrameKind.FEED, number, b"x" * 100_000)
                core.connection.send(FrameKind.MARKS, number, b"x" * 100_000)
            edge.connection.close("enough")
            edge.connection.send(FrameKind.FEED, 99, b"too late")

            assert await edge.has_lost() == "enough"
            assert await core.has_lost() == "closed by the peer"
            assert [frame.destination for frame in core.frames] == list(range(20))
            assert [frame.destination for frame in edge.frames] == list(range(20))

    run(work())


def test_a_peer_that_has_closed_one_direction_gets_what_waits_for_it(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            for number in range(30):
                owner.connection.send(FrameKind.FEED, number, b"x" * 100_000)
            peer.socket.shutdown(socket.SHUT_WR)
            await until(lambda: not owner.connection.is_open)
            assert owner.connection.waiting_bytes > 0

            assert [(await peer.frame()).destination for _ in range(30)] == list(range(30))
            with pytest.raises(EOFError):
                await peer.frame()
            assert await owner.has_lost() == "closed by the peer"
            peer.close()

    run(work())


def test_a_peer_that_ends_in_the_middle_of_a_frame_is_lost_and_the_part_dropped(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            await peer.send(encode(FrameKind.FEED, 1, b"whole") + head(FrameKind.FEED, 2, 100) + b"part")
            peer.socket.shutdown(socket.SHUT_WR)

            assert "in the middle of a frame" in await owner.has_lost()
            assert [frame.destination for frame in owner.frames] == [1]
            assert await peer.end() == b""
            peer.close()

    run(work())


def test_an_aborted_connection_hands_out_nothing_more_and_ends_once(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            owner.on_each = lambda frame: owner.connection.abort("no more")
            await peer.send(b"".join(encode(FrameKind.FEED, number, b"") for number in range(5)))

            assert await owner.has_lost() == "no more"
            owner.connection.abort("again")
            owner.connection.close("again")
            owner.connection.send(FrameKind.FEED, 1, b"ignored")
            for _ in range(20):
                await asyncio.sleep(0)

            assert len(owner.frames) == 1
            assert owner.lost == ["no more"]
            await peer.end()
            peer.close()

    run(work())


def test_a_peer_that_never_closes_is_left_after_a_few_seconds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.net.duplex.END_S", 0.05)

    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()

            owner.connection.close("enough")

            assert await owner.has_lost() == "enough"
            peer.close()

    run(work())
