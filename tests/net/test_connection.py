"""An open connection between two nodes: order, bounds, errors of the peer, and silence."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.deadline_clock import DeadlineClock
from braidmq.base.errors import UsageError
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEAD_BYTES, Frame, FrameKind, encode, head
from braidmq.net.handshake import Handshake, Side
from braidmq.net.streams import PlainStream
from tests.net.frames_in import frames_in
from tests.net.nodes import CORE, EDGE, SECRET, Owner, RawPeer, core_at, run, two_nodes, until, welcome


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.sock"


@pytest.mark.parametrize("is_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_frames_arrive_in_order_and_unchanged_in_both_directions(path: Path, is_uvloop: bool) -> None:
    sent = [
        Frame(FrameKind.FEED, size % 256, size, bytes([size % 251]) * size) for size in (0, 1, 4096, 4097, 70_000, BODY_BYTES_MAX)
    ]

    async def work() -> None:
        async with two_nodes(path) as (edge, core):
            for frame in sent:
                edge.connection.send(frame.kind, frame.destination, frame.body, frame.flags)
                core.connection.send(frame.kind, frame.destination, [frame.body[:1], frame.body[1:]], frame.flags)

            assert await core.has_frames(len(sent)) == sent
            assert await edge.has_frames(len(sent)) == sent
            assert core.connection.bytes_in == edge.connection.bytes_out > sum(len(frame.body) for frame in sent)

    run(work(), is_uvloop=is_uvloop)


def test_both_sides_know_each_other(path: Path) -> None:
    async def work() -> None:
        async with two_nodes(path) as (edge, core):
            assert (edge.connection.peer.name, core.connection.peer.name) == ("core1", "edge1")
            assert edge.connection.purpose == core.connection.purpose == "messages"
            assert edge.connection.version == core.connection.version == 1
            assert "edge1" in core.connection.name

    run(work())


def test_frames_of_one_turn_are_written_together(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            for number in range(100):
                owner.connection.send(FrameKind.FEED, number, b"x" * 10)

            data = await asyncio.get_running_loop().sock_recv(peer.socket, 65536)

            assert [frame.destination for frame in frames_in(data)] == list(range(100))
            peer.close()

    run(work())


def test_frames_can_be_written_before_the_end_of_the_turn(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            owner.connection.send(FrameKind.FEED, 1, b"x")
            owner.connection.send(FrameKind.FEED, 2, b"y")

            owner.connection.flush()

            frames = frames_in(peer.socket.recv(65536))  # without a turn of the loop
            assert [frame.destination for frame in frames] == [1, 2]
            peer.close()

    run(work())


def test_many_frames_in_one_read_are_handed_out_over_several_turns(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            turns: set[int] = set()
            turn = 0

            def count_turns() -> None:
                nonlocal turn
                turn += 1
                asyncio.get_running_loop().call_soon(count_turns)

            def take_a_while(frame: Frame) -> None:
                turns.add(turn)
                until = monotonic() + 0.0005
                while monotonic() < until:
                    pass

            owner.on_each = take_a_while
            count_turns()
            await peer.send(b"".join(encode(FrameKind.FEED, number, b"") for number in range(200)))

            frames = await owner.has_frames(200)

            assert [frame.destination for frame in frames] == list(range(200))
            assert len(turns) > 5
            peer.close()

    run(work())


@settings(max_examples=25)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_frames_survive_any_cut_of_the_stream(sizes: list[int], cuts: list[int]) -> None:
    sent = [Frame(FrameKind.FEED, 1, number, bytes(size)) for number, size in enumerate(sizes)]
    stream = b"".join(encode(frame.kind, frame.destination, frame.body, frame.flags) for frame in sent)

    async def work(path: Path) -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            at = turn = 0
            while at < len(stream):
                size = cuts[turn % len(cuts)]
                seen = owner.connection.bytes_in
                await peer.send(stream[at : at + size])
                await until(lambda seen=seen: owner.connection.bytes_in > seen)  # type: ignore[misc]
                at, turn = at + size, turn + 1

            assert await owner.has_frames(len(sent)) == sent
            peer.close()

    with tempfile.TemporaryDirectory() as directory:
        run(work(Path(directory) / "s"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((FRAME_BYTES_MAX - 3).to_bytes(4, "big"), "legal"),
        (bytes.fromhex("0000000a63000000000000000000"), "unknown kind of frame: 99"),
        (encode(FrameKind.HELLO, 0, b"\x91\xa7Welcome"), "second handshake"),
        (b"GET / HTTP/1.1\r\n\r\n", "legal"),
    ],
    ids=["too long", "unknown kind", "hello", "HTTP"],
)
def test_an_invalid_frame_ends_the_connection_with_a_line_that_names_the_peer(
    path: Path, data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            await peer.send(encode(FrameKind.FEED, 1, b"good") + data + encode(FrameKind.FEED, 2, b"never seen"))

            assert words in await owner.has_lost()
            assert [frame.destination for frame in owner.frames] == [1]
            await peer.end()
            peer.close()

    with caplog.at_level(logging.INFO, "braidmq.net"):
        run(work())

    assert [("edge1" in line.getMessage(), line.exc_info) for line in caplog.records] == [(True, None)]


def test_an_error_of_the_owner_ends_the_connection_without_a_traceback(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with two_nodes(path) as (edge, core):

            def fail(frame: Frame) -> None:
                raise KeyError("surprise")

            core.on_each = fail
            edge.connection.send(FrameKind.FEED, 1, b"")
            edge.connection.send(FrameKind.FEED, 2, b"")

            assert "KeyError" in await core.has_lost()
            assert len(core.frames) == 1

    with caplog.at_level(logging.INFO, "braidmq.net"):
        run(work())

    lines = [line for line in caplog.records if "KeyError" in line.getMessage()]
    assert len(lines) == 1
    assert "edge1" in lines[0].getMessage()
    assert all(line.exc_info is None for line in caplog.records)


def test_a_body_that_the_owner_keeps_is_an_error_and_not_later_bytes(path: Path) -> None:
    async def work() -> None:
        async with two_nodes(path) as (edge, core):
            kept: list[memoryview] = []
            core.connection.on_frame = lambda kind, flags, destination, body: kept.append(body)
            edge.connection.send(FrameKind.FEED, 1, b"abc")
            await until(lambda: bool(kept))

            with pytest.raises(ValueError, match="released"):
                bytes(kept[0])

    run(work())


def test_a_body_beyond_a_frame_is_the_callers_fault(path: Path) -> None:
    async def work() -> None:
        async with two_nodes(path) as (edge, core):
            with pytest.raises(UsageError, match="split"):
                edge.connection.send(FrameKind.FEED, 1, b"x" * (BODY_BYTES_MAX + 1))
            edge.connection.send(FrameKind.FEED, 2, b"")

            assert [frame.destination for frame in await core.has_frames(1)] == [2]

    run(work())


def test_a_peer_that_does_not_read_clogs_the_connection_until_there_is_room(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, write_bytes_max=1_000_000) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            count = 0
            while owner.connection.waiting_bytes <= 1_000_000:
                owner.connection.send(FrameKind.FEED, count, b"x" * 50_000)
                count += 1
            assert owner.connection.is_clogged
            assert owner.rooms == 0

            for number in range(count):
                assert (await peer.frame()).destination == number
            await owner.until(lambda: owner.rooms == 1 and not owner.connection.is_clogged)

            assert owner.connection.waiting_bytes == 0
            peer.close()

    run(work())


def test_room_is_told_when_less_than_half_of_the_bound_waits(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, write_bytes_max=1_000_000) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            waiting: list[int] = []
            owner.connection.on_room = lambda: waiting.append(owner.connection.waiting_bytes)
            while not owner.connection.is_clogged:
                owner.connection.send(FrameKind.FEED, 0, b"x" * 50_000)
            while not waiting:
                await asyncio.get_running_loop().sock_recv(peer.socket, 20_000)

            assert 0 < waiting[0] < 500_000
            peer.close()

    run(work())


def test_an_owner_that_stops_sending_early_is_told_of_room_as_well(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, write_bytes_max=16_000_000) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            owner.connection.room_bytes = 500_000
            waiting: list[int] = []
            owner.connection.on_room = lambda: waiting.append(owner.connection.waiting_bytes)
            while owner.connection.waiting_bytes <= 1_000_000:
                owner.connection.send(FrameKind.FEED, 0, b"x" * 50_000)
            assert not owner.connection.is_clogged
            while not waiting:
                await asyncio.get_running_loop().sock_recv(peer.socket, 20_000)

            assert 0 < waiting[0] < 500_000
            peer.close()

    run(work())


def test_bytes_that_wait_for_a_peer_are_bounded(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, write_bytes_max=100_000) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            for _ in range(100):
                owner.connection.send(FrameKind.FEED, 0, b"x" * 50_000)

            assert "too slowly" in await owner.has_lost()
            assert owner.connection.waiting_bytes == 0
            peer.close()

    run(work())


def test_a_paused_owner_gets_nothing_until_it_resumes(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            owner.on_each = lambda frame: owner.connection.pause_reading()
            await peer.send(b"".join(encode(FrameKind.FEED, number, b"") for number in range(3)))

            for number in range(3):
                await owner.has_frames(number + 1)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert [frame.destination for frame in owner.frames] == list(range(number + 1))
                assert owner.connection.silent_s == 0.0
                owner.connection.resume_reading()
            peer.close()

    run(work())


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Direct:
    """Owns one connection on a pair of sockets; it is accepted by hand."""

    def __init__(self, connected: socket.socket, clock: Callable[[], float]) -> None:
        self.owner: Owner | None = None
        handshake = Handshake(Side.ACCEPT, CORE, SECRET, welcome)
        self.connection = PeerConnection(PlainStream(connected), handshake, self, name="test", clock=clock)

    def opened(self, connection: PeerConnection) -> None:
        self.owner = Owner(connection)

    def failed(self, connection: PeerConnection, kind: str, detail: str) -> None:
        self.failure = kind

    def ended(self, connection: PeerConnection, reason: str) -> None:
        pass


@pytest.mark.parametrize("paused_s", [5.0, 5.1], ids=["soon enough", "too late"])
def test_what_has_waited_while_the_node_stood_still_for_too_long_is_not_handed_out(
    path: Path, paused_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("braidmq.net.connection.time_since_boot", lambda: now)

    async def work() -> None:
        nonlocal now
        async with two_nodes(path) as (edge, core):
            edge.connection.stale_s = 5.1
            core.connection.send(FrameKind.FEED, 1, b"before")
            await edge.has_frames(1)
            now += 5.0  # while nothing is read, as the connection has had nothing to read
            core.connection.send(FrameKind.FEED, 2, b"in time")
            await edge.has_frames(2)

            now += paused_s
            core.connection.send(FrameKind.FEED, 3, b"late")

            if paused_s < 5.1:
                assert len(await edge.has_frames(3)) == 3
            else:
                assert await edge.has_lost() == "this node has read nothing for 5 s"
                assert [frame.destination for frame in edge.frames] == [1, 2]

    run(work())


def test_a_silent_peer_is_pinged_and_its_silence_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.net.connection.BEAT_S", 0.001)

    async def work() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        clock = Clock()
        node, peer = Direct(ours, clock), RawPeer(theirs)
        handshake = Handshake(Side.CONNECT, EDGE, SECRET, welcome)
        await peer.send(handshake.begin())
        while handshake.peer is None:
            await peer.send(handshake.receive(await peer.frame()))
        assert node.owner is not None
        assert node.connection.silent_s == 0.0

        clock.now += 1.5
        assert node.connection.silent_s == 1.5
        assert (await peer.frame()).kind is FrameKind.PING
        clock.now += 1.5
        assert (await peer.frame()).kind is FrameKind.PING
        assert node.connection.silent_s == 3.0

        await peer.send(encode(FrameKind.PONG, 0, b""))
        await until(lambda: node.connection.silent_s == 0.0)
        assert node.connection.last_heard == clock.now
        assert node.owner.frames == []
        node.connection.abort()
        await node.owner.has_lost()
        peer.close()

    run(work())


def test_a_ping_is_answered_and_not_passed_on(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            await peer.send(encode(FrameKind.PING, 5, b""))

            assert await peer.frame() == Frame(FrameKind.PONG, 0, 5, b"")
            assert owner.frames == []
            peer.close()

    run(work())


def test_a_pause_of_this_process_is_no_silence_of_the_peer() -> None:
    async def work() -> None:
        machine = Clock()
        ours, theirs = socket.socketpair()
        node = Direct(ours, DeadlineClock(machine))

        machine.now += 60.0
        assert node.connection.silent_s == 0.0  # what the peer sent meanwhile is not read yet

        machine.now += 0.5
        assert node.connection.silent_s == 0.0
        for _ in range(22):
            machine.now += 0.5
            _ = node.connection.silent_s
        assert node.connection.silent_s > 0.0  # after the grace period silence counts again
        node.connection.abort()
        theirs.close()

    run(work())


def test_the_head_of_a_frame_counts_the_body() -> None:
    assert head(FrameKind.FEED, 1, 3) + b"abc" == encode(FrameKind.FEED, 1, b"abc")
    assert len(head(FrameKind.FEED, 1, 3)) == HEAD_BYTES
