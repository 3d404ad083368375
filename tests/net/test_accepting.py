"""Which connections a node accepts, over which sockets, and how strangers are bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from braidmq.base.config.addresses import Address
from braidmq.base.errors import ConfigError, UsageError
from braidmq.net.frames import FrameKind, encode
from braidmq.net.handshake import HELLO_FRAME_BYTES_MAX, Handshake, Side
from braidmq.net.proto_v1 import Hello
from braidmq.net.tls import accepting_context, connecting_context
from tests.net.frames_in import frames_in
from tests.net.nodes import EDGE, SECRET, RawPeer, core_at, edge_to, run, until, welcome
from tests.support.certificates import Authority


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.sock"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def accepting(authority: Authority) -> Any:
    server = authority.server()
    return accepting_context("cluster.tls", server.cert_file, server.key_file, authority.cert_file)


def connecting(trusted: Authority, shown: Authority) -> Any:
    client = shown.client()
    return connecting_context("cluster.tls", client.cert_file, client.key_file, trusted.cert_file)


@pytest.mark.parametrize("is_uvloop", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_nodes_agree_and_talk_over_each_transport(path: Path, authority: Authority, transport: str, is_uvloop: bool) -> None:
    tls = transport == "tls"
    body = os.urandom(900_000)

    async def work() -> None:
        async with core_at(path if transport == "unix" else None, tls=accepting(authority) if tls else None) as core:
            address = path if transport == "unix" else core.acceptor.addresses[0]
            async with edge_to(address, tls=connecting(authority, authority) if tls else None) as edge:
                there, here = await edge.owners.get(), await core.owners.get()
                for number in range(10):
                    there.connection.send(FrameKind.BLOCK, number, body)
                    here.connection.send(FrameKind.FEED, number, body)

                for owner in (there, here):
                    frames = await owner.has_frames(10)
                    assert [frame.destination for frame in frames] == list(range(10))
                    assert all(frame.body == body for frame in frames)

    run(work(), is_uvloop=is_uvloop)


@pytest.mark.parametrize("is_tls", [False, True], ids=["tcp", "tls"])
def test_what_a_node_sent_over_the_network_before_it_died_is_read(authority: Authority, is_tls: bool) -> None:
    there_tls, here_tls = (connecting(authority, authority), accepting(authority)) if is_tls else (None, None)

    async def work() -> None:
        async with core_at(tls=here_tls) as core, edge_to(core.acceptor.addresses[0], tls=there_tls) as edge:
            there, here = await edge.owners.get(), await core.owners.get()
            here.connection.pause_reading()
            for number in range(20):
                there.connection.send(FrameKind.BLOCK, number, b"x" * 1000)
            await until(lambda: there.connection.waiting_bytes == 0)
            there.connection.abort()
            while here.connection.is_open:  # until a write finds that the node is gone
                here.connection.send(FrameKind.FEED, 0, b"y" * 1000)
                await asyncio.sleep(0.001)
            assert here.lost == []
            here.connection.resume_reading()

            await here.has_lost()
            assert [frame.destination for frame in here.frames] == list(range(20))

    run(work())


def test_closing_over_tls_hands_out_what_the_peer_sends_meanwhile(authority: Authority) -> None:
    async def work() -> None:
        async with (
            core_at(tls=accepting(authority)) as core,
            edge_to(core.acceptor.addresses[0], tls=connecting(authority, authority)) as edge,
        ):
            there, here = await edge.owners.get(), await core.owners.get()
            for number in range(20):
                here.connection.send(FrameKind.FEED, number, b"x" * 200_000)
            there.connection.close("enough")

            assert await there.has_lost() == "enough"
            assert [frame.destination for frame in there.frames] == list(range(20))
            assert await here.has_lost() == "closed by the peer"

    run(work())


def test_a_node_without_a_certificate_of_the_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "Other CA")

    async def work() -> None:
        async with core_at(tls=accepting(authority)) as core:
            address = core.acceptor.addresses[0]
            async with edge_to(address, tls=connecting(authority, stranger)) as edge:
                await core.refused("tls")
                assert edge.owners.empty()
            async with edge_to(address, tls=connecting(stranger, authority)) as edge:
                assert "certificate" in (await edge.failed()).lower()
            async with edge_to(address) as edge:  # without TLS
                await core.refused("tls", 3)
            assert core.owners.empty()

    run(work())


def test_the_certificate_must_name_the_host(authority: Authority) -> None:
    server = authority.server("core1.example")  # also for 127.0.0.1, but not for localhost
    tls = accepting_context("cluster.tls", server.cert_file, server.key_file, authority.cert_file)

    async def work() -> None:
        async with core_at(tls=tls) as core:
            port = core.acceptor.addresses[0].port
            async with edge_to(Address("localhost", port), tls=connecting(authority, authority)) as edge:
                assert "hostname" in (await edge.failed()).lower()

    run(work())


@pytest.mark.parametrize("name", ["cert_file", "key_file", "ca_file"])
def test_a_tls_file_that_is_missing_is_named_by_its_key(authority: Authority, name: str) -> None:
    server = authority.server()
    files = {"cert_file": server.cert_file, "key_file": server.key_file, "ca_file": authority.cert_file}
    files[name] = "missing.pem"

    for build in (accepting_context, connecting_context):
        with pytest.raises(ConfigError, match=r"missing\.pem") as caught:
            build("cluster.tls", **files)
        assert caught.value.key == f"cluster.tls.{name}"


@pytest.mark.parametrize(
    ("edge", "secret", "kind", "words"),
    [
        (EDGE, b"another", "refused", "cluster.secret"),
        (replace(EDGE, cluster="other"), SECRET, "cluster", "cluster 'other'"),
        (replace(EDGE, version_min=2, version_max=3), SECRET, "version", "versions 2 to 3"),
        (replace(EDGE, name="unwanted"), SECRET, "unwelcome", "another node named unwanted"),
    ],
    ids=["secret", "cluster", "version", "check"],
)
def test_nodes_that_do_not_belong_together_are_refused_and_told_why(
    path: Path, edge: Hello, secret: bytes, kind: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def check(peer: Hello) -> str | None:
        return f"there is another node named {peer.name}" if peer.name == "unwanted" else None

    async def work() -> None:
        async with core_at(path, check=check) as core, edge_to(path, edge=edge, secret=secret) as node:
            assert words in await node.failed(3)
            await core.refused(kind, 3)
            assert core.owners.empty()
            assert node.owners.empty()

    with caplog.at_level(logging.INFO, "braidmq.net"):
        run(work())

    lines = [line.getMessage() for line in caplog.records]
    assert sum("refused (" in line and words in line for line in lines) >= 3
    assert sum("cannot connect" in line for line in lines) == 1  # once for each reason


async def first_steps(peer: RawPeer, secret: bytes = SECRET) -> tuple[bytes, bytes]:
    """The hello and the proof of a node that connects, of which the hello is sent."""
    handshake = Handshake(Side.CONNECT, EDGE, secret, welcome)
    begin = handshake.begin()
    await peer.send(begin)
    handshake.receive(await peer.frame())
    return begin, handshake.receive(await peer.frame())


@pytest.mark.parametrize("steps", ["hello, hello", "proof", "hello, proof, proof", "call", "hello, call"])
def test_steps_out_of_order_are_refused_and_nothing_is_passed_on(path: Path, steps: str) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            other, peer = await RawPeer.dial(path), await RawPeer.dial(path)
            sent = {"call": encode(FrameKind.CALL, 1, b""), "hello": b"", "proof": b""}
            if steps.startswith("hello"):
                sent["hello"], sent["proof"] = await first_steps(peer)
                await peer.send(b"".join(sent[step] for step in steps.split(", ")[1:]))
            else:
                sent["hello"], sent["proof"] = await first_steps(other)
                await peer.send(sent[steps])

            answer = await peer.end()

            if steps == "hello, proof, proof":  # the node was accepted, and then broke the protocol
                owner = await core.owners.get()
                assert "second handshake" in await owner.has_lost()
                assert owner.frames == []
            else:
                await core.refused("protocol")
                assert core.owners.empty()
                assert b"HelloRefusal" in frames_in(answer)[-1].body
            peer.close()
            other.close()

    run(work())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: core1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
        bytes(100),
        b"\xff" * 100,
        encode(FrameKind.HELLO, 0, b"x" * HELLO_FRAME_BYTES_MAX)[:20],
        encode(FrameKind.HELLO, 0, b"\xc1garbage"),
    ],
    ids=["HTTP", "TLS", "MQTT", "zeros", "ones", "a large frame", "a frame of garbage"],
)
def test_garbage_is_refused_before_anything_is_known(path: Path, data: bytes) -> None:
    async def work() -> None:
        async with core_at(path) as core:
            peer = await RawPeer.dial(path)
            await peer.send(data)

            await peer.end()

            await core.refused("protocol")
            assert core.owners.empty()
            peer.close()

    run(work())


def test_a_stranger_that_closes_is_counted_and_one_that_is_silent_too(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, handshake_s=0.05) as core:
            (await RawPeer.dial(path)).close()
            await core.refused("closed")
            silent = await RawPeer.dial(path)
            slow = await RawPeer.dial(path)
            await slow.send(b"\x00\x00")

            assert await silent.end() == b""
            assert await slow.end() == b""

            await core.refused("timeout", 2)
            assert core.acceptor.refusals == {"closed": 1, "timeout": 2}
            silent.close()
            slow.close()

    run(work())


def test_an_accepted_node_may_be_slow_afterwards(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, handshake_s=0.05) as core:
            peer = await RawPeer.join(path)
            owner = await core.owners.get()
            silent = await RawPeer.dial(path)
            await silent.end()  # by now the deadline of the first has passed as well
            await peer.send(encode(FrameKind.FEED, 3, b""))

            assert [frame.destination for frame in await owner.has_frames(1)] == [3]
            peer.close()
            silent.close()

    run(work())


def test_too_many_strangers_are_refused_and_peers_are_not_counted_among_them(path: Path) -> None:
    async def work() -> None:
        async with core_at(path, strangers_max=2) as core:
            known = [await RawPeer.join(path) for _ in range(3)]
            strangers = [await RawPeer.dial(path) for _ in range(3)]
            await core.refused("crowded")

            strangers[0].close()
            await core.refused("closed")
            known.append(await RawPeer.join(path))

            assert core.acceptor.refusals["crowded"] == 1
            assert len(core.acceptor.connections) == 4
            for peer in [*known, *strangers[1:]]:
                peer.close()

    run(work())


def test_a_long_name_in_a_hello_does_not_fill_the_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with core_at(path) as core, edge_to(path, edge=replace(EDGE, cluster="x" * 3000)):
            await core.refused("cluster")

    run(work())

    assert max(len(line.getMessage()) for line in caplog.records) < 400


def test_the_unix_socket_has_mode_0600_and_is_removed_at_the_end(path: Path) -> None:
    modes: list[int] = []

    async def work() -> None:
        async with core_at(path):
            modes.append(os.stat(path).st_mode)

    run(work())
    assert [(stat.S_ISSOCK(mode), stat.S_IMODE(mode)) for mode in modes] == [(True, 0o600)]
    assert not path.exists()


def test_only_the_socket_of_a_dead_node_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))

    async def work() -> None:
        async with core_at(path):
            with pytest.raises(UsageError, match="already running"):
                async with core_at(path):
                    pass
            (await RawPeer.join(path)).close()

    run(work())


def test_a_file_in_the_way_is_not_removed(path: Path) -> None:
    path.write_text("precious")

    async def work() -> None:
        with pytest.raises(ConfigError, match="cannot create"):
            async with core_at(path):
                pass

    run(work())
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_for_a_socket_is_an_error_in_words(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(ConfigError, match="too long for a Unix socket; choose a shorter directory"):
            async with core_at(tmp_path / ("x" * 100)):
                pass

    run(work())


def test_an_address_in_use_is_an_error_with_its_key_and_leaves_nothing_open(path: Path) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="in use") as caught:
            async with core_at(path, bind=f"127.0.0.1:{taken.getsockname()[1]}"):
                pass
        assert caught.value.key == "cluster.rpc_bind"

    run(work())
    assert not path.exists()


def test_closing_ends_peers_and_strangers(path: Path) -> None:
    async def work() -> None:
        async with core_at(path) as core, edge_to(path) as edge:
            here, there = await core.owners.get(), await edge.owners.get()
            stranger = await RawPeer.dial(path)
            here.connection.send(FrameKind.FEED, 5, b"last words")
            await until(lambda: here.connection.waiting_bytes == 0)

            await core.acceptor.close()

            assert here.lost == ["the node stops"]
            assert await there.has_lost() == "closed by the peer"
            assert [frame.destination for frame in there.frames] == [5]
            assert await stranger.end() == b""
            assert core.acceptor.connections == set()
            stranger.close()

    run(work())


def test_an_error_of_the_node_that_accepts_ends_that_connection_only(path: Path) -> None:
    async def work() -> None:
        def fail(connection: object) -> None:
            raise KeyError("surprise")

        async with core_at(path) as core:
            core.acceptor._on_peer = fail
            peer = await RawPeer.dial(path)
            _, proof = await first_steps(peer)
            await peer.send(proof)
            await peer.end()
            await until(lambda: not core.acceptor.connections)
            peer.close()
            await asyncio.sleep(0)

    run(work())
