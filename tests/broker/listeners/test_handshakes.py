"""What strangers can make a TLS listener do before their handshakes are over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.config.settings import LimitSettings
from braidmq.broker.listeners.handshakes import STARTS_PER_TURN, Handshakes
from tests.support.certificates import Authority
from tests.support.echo_listeners import EchoHouse, open_house, run
from tests.support.tls_house import both_loops, echo, secured

HALF_A_HELLO = b"\x16\x03\x01\x02\x00" + bytes(100)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The CA that everybody trusts."""
    return Authority(tmp_path)


def under_way(house: EchoHouse) -> int:
    """Handshakes that have begun."""
    return sum(len(server._handshakes._under_way) for server in house.listeners._servers.values())


@contextlib.contextmanager
def half_open(house: EchoHouse, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that said this and nothing more."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(house.address("tls:default"))) for _ in range(count)]
        for connection in opened:
            connection.sendall(said)
        yield opened


@both_loops
def test_a_silent_connection_has_no_handshake(loop_name: str, authority: Authority) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server())) as house:
            with half_open(house, 30, b""):
                await house.until(lambda: house.live("tls:default") == 30)
                assert under_way(house) == 0
                await echo(house, authority.client_context())
            await house.until(lambda: house.live("tls:default") == 0)

    run(loop_name, scenario())


@both_loops
def test_the_oldest_handshake_gives_way_and_honest_clients_get_through(loop_name: str, authority: Authority) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server()), limits=LimitSettings(handshakes_max=8)) as house:
            with half_open(house, 8, HALF_A_HELLO) as stuck:
                await house.until(lambda: under_way(house) == 8)
                await echo(house, authority.client_context())
                assert house.refusals == {"tls_crowded": 1}
                with half_open(house, 20, HALF_A_HELLO):
                    await house.until(lambda: house.refusals["tls_crowded"] == 20)
                    assert under_way(house) == 8
                    await echo(house, authority.client_context())
                stuck[0].setblocking(False)
                with contextlib.suppress(ConnectionResetError):
                    assert stuck[0].recv(1) == b""
            await house.until(lambda: house.live("tls:default") == 0)
            assert under_way(house) == 0

    run(loop_name, scenario())


def test_a_turn_of_the_loop_begins_a_bounded_number() -> None:
    begun: list[int] = []
    turn = 0

    async def begin(handshakes: Handshakes, accepted: socket.socket) -> None:
        await handshakes.wait_for_turn(accepted)
        begun.append(turn)

    async def scenario() -> None:
        nonlocal turn
        handshakes = Handshakes(1000)
        with contextlib.ExitStack() as stack:
            tasks = []
            for _ in range(5 * STARTS_PER_TURN):
                ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
                ours.setblocking(False)
                theirs.send(b"hello")
                tasks.append(asyncio.create_task(begin(handshakes, ours)))
            while not all(task.done() for task in tasks):
                turn += 1
                await asyncio.sleep(0)

    run("uvloop", scenario())

    assert len(begun) == 5 * STARTS_PER_TURN
    assert max(begun.count(number) for number in set(begun)) <= STARTS_PER_TURN + 1  # our count of turns may be off by one


def test_a_client_that_leaves_while_it_waits_does_not_delay_others() -> None:
    async def scenario() -> None:
        handshakes = Handshakes(1000)
        with contextlib.ExitStack() as stack:
            tasks = []
            for _ in range(4 * STARTS_PER_TURN):
                ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
                ours.setblocking(False)
                theirs.send(b"hello")
                tasks.append(asyncio.create_task(handshakes.wait_for_turn(ours)))
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks[1::2])

    run("asyncio", scenario())
