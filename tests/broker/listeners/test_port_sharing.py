"""Several processes of one node on one port, and no foreign process among them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from braidmq.base.errors import ConfigError
from braidmq.base.listening.sockets import PortSharing, open_sockets

KEY = "listeners.tcp.default.bind"
# Joins the port in its argument and answers each connection with its process id.
WORKER = """
import asyncio, os, sys
from braidmq.base.listening.sockets import PortSharing, open_sockets

[listening] = asyncio.run(open_sockets(sys.argv[1], "key", PortSharing.JOIN))
listening.setblocking(True)
print("listens", flush=True)
while True:
    accepted, _ = listening.accept()
    accepted.sendall(str(os.getpid()).encode())
    accepted.close()
"""


def open_one(bind: str, sharing: PortSharing, *, listens: bool = True) -> socket.socket:
    return asyncio.run(open_sockets(bind, KEY, sharing, listens=listens))[0]


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


def start_worker(address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "listens\n"
    return worker


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """A port that the first process of a node holds, without listening itself."""
    with closing(open_one("127.0.0.1:0", PortSharing.FIRST, listens=False)) as holder:
        yield holder


@pytest.mark.parametrize("shares", [False, True], ids=["alone", "with SO_REUSEPORT"])
def test_a_foreign_listener_is_an_error_that_names_the_port(shares: bool) -> None:
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        address = address_of(foreign)

        with pytest.raises(ConfigError) as caught:
            open_one(address, PortSharing.FIRST)

    assert caught.value.key == KEY
    assert caught.value.detail == f"address {address} is in use"


def test_two_processes_accept_connections_of_one_port() -> None:
    with closing(open_one("127.0.0.1:0", PortSharing.FIRST)) as ours:
        worker = start_worker(address_of(ours))
        try:
            answered = accepted = 0
            while not (answered and accepted):  # the kernel decides by a hash of the client's port
                with socket.create_connection(ours.getsockname()) as client:
                    try:
                        connection, _ = ours.accept()
                    except BlockingIOError:
                        assert client.recv(100) == str(worker.pid).encode()
                        answered += 1
                    else:
                        connection.close()
                        accepted += 1
        finally:
            worker.kill()
            worker.communicate()


def test_a_held_port_takes_no_connection_itself(held: socket.socket) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname())


def test_all_connections_to_a_held_port_go_to_the_processes_that_share_it(held: socket.socket) -> None:
    worker = start_worker(address_of(held))
    try:
        for _ in range(20):
            with socket.create_connection(held.getsockname()) as client:
                assert client.recv(100) == str(worker.pid).encode()
    finally:
        worker.kill()
        worker.communicate()


def test_a_process_that_does_not_share_cannot_take_a_held_port(held: socket.socket) -> None:
    with socket.socket() as foreign, pytest.raises(OSError, match="in use"):
        foreign.bind(held.getsockname())


def test_the_port_that_the_system_chose_is_the_same_for_both_families() -> None:
    opened = asyncio.run(open_sockets("localhost:0", KEY, PortSharing.FIRST))
    try:
        assert len({each.getsockname()[1] for each in opened}) == 1
    finally:
        for each in opened:
            each.close()


def test_a_port_is_free_again_after_its_processes_have_ended() -> None:
    with closing(open_one("127.0.0.1:0", PortSharing.FIRST)) as first:
        address = address_of(first)
        with socket.create_connection(first.getsockname()):  # leaves a connection in TIME_WAIT
            first.accept()[0].close()

    open_one(address, PortSharing.FIRST).close()
