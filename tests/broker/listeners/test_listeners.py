"""Listeners as sockets: addresses, options, bounds on connections, starting and stopping."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.x509.oid import NameOID

from braidmq.base.config.settings import LimitSettings, Listeners, ListenerSettings, Settings
from braidmq.base.errors import ConfigError
from braidmq.base.file_descriptors import Room
from braidmq.base.listening import door as door_module
from braidmq.broker.listeners.origin import peer_address
from tests.support.certificates import Authority
from tests.support.echo_listeners import LOOPS, EchoHouse, open_house, run
from tests.support.ports import free_port

LOCAL = ListenerSettings(bind="127.0.0.1:0")

UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: mqtt\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


async def echo(address: tuple[str, int]) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"word")
    assert await reader.readexactly(4) == b"word"
    return writer


async def is_dropped(address: tuple[str, int]) -> bool:
    """Is a new connection ended by the server without a word?"""
    try:
        reader, writer = await asyncio.open_connection(*address)
        answer = await reader.read()
        writer.close()
    except ConnectionResetError:
        return True
    return answer == b""


needs_ipv6 = pytest.mark.needs("ipv6")


@both_loops
def test_a_plain_connection_is_the_loops_own_protocol_and_knows_its_origin(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=LOCAL) as house:
            writer = await echo(house.address("tcp:default"))

            connection = house.connections[0]
            assert connection.transport.get_protocol() is connection
            origin = connection.origin
            assert (origin.peer_host, origin.peer_port) == writer.get_extra_info("sockname")
            assert (origin.listener, origin.kind, origin.secure) == ("tcp:default", "tcp", False)
            assert house.live("tcp:default") == 1
            writer.close()
            await house.until(lambda: house.live("tcp:default") == 0)

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_accepted_sockets_have_no_delay_and_keep_alive(loop_name: str, kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    settings = LOCAL if kind == "tcp" else ListenerSettings(bind="127.0.0.1:0", cert_file=pair.cert_file, key_file=pair.key_file)

    chosen: dict[str, Any] = {kind: settings}

    async def scenario() -> None:
        async with open_house(**chosen) as house:
            context = authority.client_context() if kind == "tls" else None
            host, port = house.address(f"{kind}:default")
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            await house.until(lambda: len(house.connections) == 1)

            accepted = house.connections[0].transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
            writer.close()

    run(loop_name, scenario())


@needs_ipv6
@both_loops
def test_ipv6_peers_are_known_by_their_address(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=ListenerSettings(bind="[::1]:0")) as house:
            writer = await echo(house.address("tcp:default"))

            assert house.address("tcp:default")[0] == "::1"
            assert house.connections[0].origin.peer_host == "::1"
            assert house.connections[0].origin.anonymous_allowed
            writer.close()

    run(loop_name, scenario())


@needs_ipv6
@both_loops
def test_an_empty_host_listens_on_both_families_with_one_port(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=ListenerSettings(bind=":0")) as house:
            port = house.address("tcp:default")[1]
            for host in ("127.0.0.1", "::1"):
                (await echo((host, port))).close()

            assert [connection.origin.peer_host for connection in house.connections] == ["127.0.0.1", "::1"]
            # Whoever can reach the machine can reach this listener, so nobody is let in without a name.
            assert not house.connections[0].origin.anonymous_allowed

    run(loop_name, scenario())


def test_mapped_and_scoped_addresses_are_shown_in_plain_form() -> None:
    class Transport(asyncio.BaseTransport):
        def __init__(self, peer: Any) -> None:
            super().__init__({"peername": peer})

    assert peer_address(Transport(("::ffff:192.0.2.1", 5, 0, 0))) == ("192.0.2.1", 5)
    assert peer_address(Transport(("fe80::1%eth0", 5, 0, 2))) == ("fe80::1", 5)
    assert peer_address(Transport(("2001:db8::1", 5, 0, 0))) == ("2001:db8::1", 5)
    assert peer_address(Transport(None)) == ("", 0)


@both_loops
@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_connections_above_the_bound_are_dropped_until_one_leaves(loop_name: str, kind: str, tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    keys = {"cert_file": pair.cert_file, "key_file": pair.key_file} if kind == "tls" else {}
    settings = ListenerSettings(bind="127.0.0.1:0", connections_max=2, **keys)  # type: ignore[arg-type]

    chosen: dict[str, Any] = {kind: settings}

    async def scenario() -> None:
        async with open_house(**chosen) as house:
            address = house.address(f"{kind}:default")
            info = house.listeners.listeners[f"{kind}:default"]
            writers = [(await asyncio.open_connection(*address))[1] for _ in range(2)]
            await house.until(lambda: info.live == 2)

            assert await is_dropped(address)
            assert house.refusals == {"connections_max": 1}

            writers[0].close()
            await house.until(lambda: info.live == 1)
            third = (await asyncio.open_connection(*address))[1]
            await house.until(lambda: info.live == 2)
            for writer in (writers[1], third):
                writer.close()

    run(loop_name, scenario())


@both_loops
def test_all_listeners_share_the_room_that_the_node_has_and_a_burst_does_not_exceed_it(loop_name: str, tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    secured = ListenerSettings(bind="127.0.0.1:0", cert_file=pair.cert_file, key_file=pair.key_file)
    room = Room(10)

    async def scenario() -> None:
        async with open_house(tcp=LOCAL, ws=LOCAL, tls=secured, options={"room": room}) as house:
            addresses = [house.address(f"{kind}:default") for kind in ("tcp", "ws", "tls")]
            pairs = await asyncio.gather(*(asyncio.open_connection(*addresses[each % 3]) for each in range(30)))
            await house.until(lambda: house.refusals["open_files"] == 20)

            assert (room.taken, room.refused) == (10, 20)
            assert sum(house.live(f"{kind}:default") for kind in ("tcp", "ws", "tls")) == 10

            for _, writer in pairs:
                writer.close()
            await house.until(lambda: room.taken == 0)
            _, writer = await asyncio.open_connection(*addresses[0])
            await house.until(lambda: room.taken == 1)
            writer.close()

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_the_admission_callback_can_reject_connections(loop_name: str, kind: str) -> None:
    answers = [True, False]
    chosen: dict[str, Any] = {kind: LOCAL, "options": {"admit": lambda: answers.pop(0)}}

    async def scenario() -> None:
        async with open_house(**chosen) as house:
            address = house.address(f"{kind}:default")
            _, writer = await asyncio.open_connection(*address)
            info = house.listeners.listeners[f"{kind}:default"]
            await house.until(lambda: info.live == 1)

            assert await is_dropped(address)
            assert house.refusals == {"connection_rate": 1}
            assert info.live == 1
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_an_address_in_use_gives_a_clear_message_and_nothing_stays_bound(loop_name: str) -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = other.getsockname()[1]
            free = free_port()
            listeners = Listeners(
                tcp={"first": ListenerSettings(bind=f"127.0.0.1:{free}"), "second": ListenerSettings(bind=f"127.0.0.1:{taken}")}
            )
            house = EchoHouse(Settings(listeners=listeners))

            with pytest.raises(ConfigError, match=f"address 127.0.0.1:{taken} is in use") as caught:
                await house.listeners.start()

            assert caught.value.key == "listeners.tcp.second.bind"
            assert caught.value.hint
            assert house.listeners.addresses() == {}
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", free)

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize(
    ("bind", "words"),
    [("192.0.2.77:0", "not an address of this machine"), ("no.such.host.invalid:0", "cannot resolve"), ("1883", "has no port")],
)
def test_an_address_that_cannot_be_bound_names_its_key(loop_name: str, bind: str, words: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=words) as caught:
            async with open_house(tcp=ListenerSettings(bind=bind)):
                pass
        assert caught.value.key == "listeners.tcp.default.bind"

    run(loop_name, scenario())


def test_a_disabled_listener_is_not_there() -> None:
    async def scenario() -> None:
        async with open_house(tcp=LOCAL, ws=ListenerSettings(bind="127.0.0.1:0", enabled=False)) as house:
            assert set(house.listeners.addresses()) == {"tcp:default"}

    run("uvloop", scenario())


@both_loops
@pytest.mark.parametrize("kind", ["tcp", "ws", "tls"])
def test_after_stopping_no_client_gets_in_and_connected_clients_stay(loop_name: str, kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    keys = {"cert_file": pair.cert_file, "key_file": pair.key_file} if kind == "tls" else {}

    async def scenario() -> None:
        async with open_house(**{kind: ListenerSettings(bind="127.0.0.1:0", **keys)}) as house:  # type: ignore[arg-type]
            address = house.address(f"{kind}:default")
            context = authority.client_context() if kind == "tls" else None
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            if kind == "ws":
                writer.write(UPGRADE)
                await reader.readuntil(b"\r\n\r\n")
            await house.until(lambda: len(house.connections) == 1)

            house.listeners.stop_accepting()
            await asyncio.sleep(0)

            house.connections[0].transport.write(b"inside")
            assert (await reader.readexactly(8 if kind == "ws" else 6)).endswith(b"inside")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_connection_made_in_the_very_turn_of_the_stop_stays(loop_name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()

    async def scenario() -> None:
        settings = ListenerSettings(bind="127.0.0.1:0", cert_file=pair.cert_file, key_file=pair.key_file)
        async with open_house(tls=settings) as house:
            house.on_met = house.listeners.stop_accepting
            reader, writer = await asyncio.open_connection(*house.address("tls:default"), ssl=authority.client_context())
            writer.write(b"inside")

            assert await reader.readexactly(6) == b"inside"
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_listener_that_runs_out_of_descriptors_pauses_and_then_resumes(
    loop_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    monkeypatch.setattr(door_module, "ACCEPT_PAUSE_S", 0.05)
    failures = [OSError(errno.EMFILE, "Too many open files")]
    accept = socket.socket.accept

    def failing_accept(self: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(self)

    async def scenario() -> None:
        settings = ListenerSettings(bind="127.0.0.1:0", cert_file=pair.cert_file, key_file=pair.key_file)
        async with open_house(tls=settings) as house:
            monkeypatch.setattr(socket.socket, "accept", failing_accept)
            _, writer = await asyncio.open_connection(*house.address("tls:default"), ssl=authority.client_context())

            await house.until(lambda: len(house.connections) == 1)
            assert not failures
            writer.close()

    run(loop_name, scenario())
    assert "Too many open files" in caplog.text


def test_a_burst_of_connections_is_accepted_whole() -> None:
    async def scenario() -> None:
        async with open_house(tcp=LOCAL, limits=LimitSettings()) as house:
            pairs = await asyncio.gather(*(asyncio.open_connection(*house.address("tcp:default")) for _ in range(300)))
            await house.until(lambda: house.live("tcp:default") == 300 == len(house.connections))
            for _, writer in pairs:
                writer.close()
            await house.until(lambda: house.live("tcp:default") == 0)

    run("uvloop", scenario())


def test_listeners_of_one_kind_are_distinguished_by_name() -> None:
    async def scenario() -> None:
        settings = Settings(listeners=Listeners(tcp={"a": LOCAL, "b": LOCAL}))
        house = EchoHouse(settings)
        await house.listeners.start()
        first, second = house.address("tcp:a"), house.address("tcp:b")
        (await echo(first)).close()
        (await echo(second)).close()

        assert [connection.origin.listener for connection in house.connections] == ["tcp:a", "tcp:b"]
        house.listeners.stop_accepting()
        for connection in house.connections:
            connection.transport.abort()

    run("uvloop", scenario())


@both_loops
def test_settings_that_bind_nothing_change_while_clients_stay(loop_name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, pump = authority.server(), authority.client((NameOID.COMMON_NAME, "pump"))
    before = ListenerSettings(bind="127.0.0.1:0", cert_file=pair.cert_file, key_file=pair.key_file)

    def with_tls(**keys: Any) -> Settings:
        return Settings(listeners=Listeners(tls={"default": msgspec.structs.replace(before, **keys)}))

    async def scenario() -> None:
        async with open_house(tls=before) as house:
            address = house.address("tls:default")
            reader, writer = await asyncio.open_connection(*address, ssl=authority.client_context())

            verified = with_tls(
                bind="127.0.0.1:1",
                ca_file=authority.cert_file,
                verify="required",
                user_from_certificate="cn",
                allow_anonymous=False,
            )
            await house.listeners.reconfigure(verified)
            _, second = await asyncio.open_connection(*address, ssl=authority.client_context(pump))
            await house.until(lambda: len(house.connections) == 2)

            assert [each.origin.certificate_name for each in house.connections] == [None, "pump"]
            assert [each.origin.anonymous_allowed for each in house.connections] == [True, False]
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"

            # A change that cannot be loaded changes nothing, not even the keys that need no file.
            await house.listeners.reconfigure(
                with_tls(ca_file="absent", verify="optional", allow_anonymous=True, connections_max=1)
            )
            _, third = await asyncio.open_connection(*address, ssl=authority.client_context(pump))
            await house.until(lambda: len(house.connections) == 3)
            assert not house.connections[2].origin.anonymous_allowed
            assert house.connections[2].origin.certificate_name == "pump"
            for each in (writer, second, third):
                each.close()

    run(loop_name, scenario())


def test_a_smaller_bound_on_connections_holds_at_once() -> None:
    async def scenario() -> None:
        async with open_house(tcp=LOCAL) as house:
            address = house.address("tcp:default")
            writer = await echo(address)

            smaller = ListenerSettings(bind="127.0.0.1:0", connections_max=1)
            await house.listeners.reconfigure(Settings(listeners=Listeners(tcp={"default": smaller, "new": LOCAL})))

            assert await is_dropped(address)
            assert set(house.listeners.addresses()) == {"tcp:default"}
            writer.close()

    run("uvloop", scenario())
