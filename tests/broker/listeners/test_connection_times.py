"""R4: the time of a connection is when its peer last spoke, not when a loop that was stuck got to accept it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from braidmq.base.config.settings import ListenerSettings
from braidmq.base.listening import tcp_info
from braidmq.base.listening.tcp_info import TICK_S, PollTimes, is_established
from tests.support.certificates import Authority
from tests.support.clients.transports import upgrade_request
from tests.support.echo_listeners import LOOPS, EchoHouse, open_house, run

STUCK_S = 0.3
HEADER = b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 1883\r\n"

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


def stick() -> None:
    """Keep the loop from doing anything, as a long callback does."""
    time.sleep(STUCK_S)


async def connect_while_stuck(house: EchoHouse, listener: str, first_bytes: bytes = b"") -> tuple[socket.socket, float]:
    """A connection that waits in the kernel while the loop is stuck, and when its peer had said its last word."""
    client = socket.create_connection(house.address(listener))
    client.sendall(first_bytes)
    spoke_at = time.monotonic()
    stick()
    client.setblocking(False)
    await house.until(lambda: house.live(listener) == 1)  # accepted; what the client says from now on is later
    return client, spoke_at


def assert_is_as_old_as(house: EchoHouse, spoke_at: float) -> None:
    (connection,) = house.connections
    assert spoke_at - 1 < connection.origin.spoke_at <= spoke_at + TICK_S


@both_loops
def test_a_connection_is_as_old_as_its_peers_last_word(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=ListenerSettings(bind="127.0.0.1:0")) as house:
            client, spoke_at = await connect_while_stuck(house, "tcp:default", b"word")
            await house.until(lambda: bool(house.connections))

            assert_is_as_old_as(house, spoke_at)
            client.close()

    run(loop_name, scenario())


@both_loops
def test_the_upgrade_to_a_websocket_makes_a_connection_no_newer(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=ListenerSettings(bind="127.0.0.1:0")) as house:
            client, spoke_at = await connect_while_stuck(house, "ws:default")
            await asyncio.get_running_loop().sock_sendall(client, upgrade_request())
            await house.until(lambda: bool(house.connections))

            assert_is_as_old_as(house, spoke_at)
            client.close()

    run(loop_name, scenario())


@both_loops
def test_the_tls_handshake_makes_a_connection_no_newer(loop_name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    listener = ListenerSettings(bind="127.0.0.1:0", cert_file=server.cert_file, key_file=server.key_file)

    async def scenario() -> None:
        async with open_house(tls=listener) as house:
            client, spoke_at = await connect_while_stuck(house, "tls:default")
            context = authority.client_context()
            _, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname="localhost")
            await house.until(lambda: bool(house.connections))

            assert_is_as_old_as(house, spoke_at)
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_the_proxy_header_makes_a_connection_no_newer(loop_name: str) -> None:
    listener = ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("127.0.0.1",))

    async def scenario() -> None:
        async with open_house(tcp=listener) as house:
            client, spoke_at = await connect_while_stuck(house, "tcp:default", HEADER[:5])
            await asyncio.get_running_loop().sock_sendall(client, HEADER[5:])
            await house.until(lambda: bool(house.connections))

            assert_is_as_old_as(house, spoke_at)
            client.close()

    run(loop_name, scenario())


@both_loops
def test_a_system_that_cannot_say_it_dates_a_connection_to_an_earlier_poll(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_info, "_TCP_INFO", None)

    async def scenario() -> None:
        async with open_house(tcp=ListenerSettings(bind="127.0.0.1:0")) as house:
            client, spoke_at = await connect_while_stuck(house, "tcp:default")
            await house.until(lambda: bool(house.connections))

            assert_is_as_old_as(house, spoke_at)
            client.close()

    run(loop_name, scenario())


@both_loops
def test_the_time_of_an_earlier_poll_is_not_much_older_than_it_must_be(loop_name: str) -> None:
    async def scenario() -> None:
        polls = PollTimes(asyncio.get_running_loop())
        polls.start()
        stick()
        await asyncio.sleep(STUCK_S / 2)  # turns go by
        polls.stop()

        assert time.monotonic() - polls.before < STUCK_S / 2

    run(loop_name, scenario())


def test_a_peer_that_has_left_is_noticed_though_its_last_bytes_are_unread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert is_established(accepted)

            client.sendall(b"last")
            client.close()

            assert accepted.recv(4, socket.MSG_PEEK) == b"last"
            assert not is_established(accepted)
