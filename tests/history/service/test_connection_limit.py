"""Connections to the history service that are too many: whom they are taken from."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from braidmq.history.service.connection_limit import ConnectionLimit


class House:
    """A listening socket and its connections, both ends of them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self.listening.getsockname()[1]

    def connect(self, says: bytes = b"") -> socket.socket:
        """The client's end of a new connection that was accepted."""
        caller = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        accepted = self._stack.enter_context(self.listening.accept()[0])
        if says:
            caller.sendall(says)
            accepted.recv(len(says), socket.MSG_PEEK)
        caller.setblocking(False)
        return caller


@pytest.fixture
def house() -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack)


def is_open(caller: socket.socket) -> bool:
    try:
        return caller.recv(1) != b""
    except BlockingIOError:
        return True


def limit_with_room_for(house: House, fewer: int, known: Sequence[socket.socket] = ()) -> ConnectionLimit:
    """Make this many of the open descriptors exceed the limit."""
    addresses = {each.getsockname() for each in known}
    files_max = len(os.listdir("/proc/self/fd")) - fewer
    return ConnectionLimit(house.port, files_max, files_max, lambda host, port: (host, port) in addresses)


def test_no_connection_is_closed_while_there_are_descriptors(house: House) -> None:
    callers = [house.connect() for _ in range(5)]

    assert ConnectionLimit(house.port, 10_000, 10_000, lambda host, port: False).look() == 0

    assert all(map(is_open, callers))


@pytest.mark.parametrize("says", [b"", b"x"])
def test_unauthenticated_connections_are_closed_first_the_longest_silent_before_others(house: House, says: bytes) -> None:
    known = house.connect(b"hello")
    strangers = [house.connect(says) for _ in range(3)]
    time.sleep(0.02)  # how long each is silent is what is tested, and the kernel counts it in milliseconds
    newcomer = house.connect(b"hello")
    strangers[0].sendall(b"y")
    time.sleep(0.02)
    limit = limit_with_room_for(house, 2, [known])

    assert limit.look() == 2

    assert [is_open(each) for each in (known, *strangers, newcomer)] == [True, True, False, False, True]
    assert limit.refused == 2


def test_authenticated_callers_are_closed_when_no_others_are_left(house: House) -> None:
    known = [house.connect(b"hello") for _ in range(3)]
    stranger = house.connect(b"hello")

    assert limit_with_room_for(house, 2, known).look() == 2

    assert not is_open(stranger)
    assert sum(map(is_open, known)) == 2


def test_tables_of_the_log_close_no_connection_while_there_are_descriptors(house: House, tmp_path: Path) -> None:
    callers = [house.connect() for _ in range(5)]
    with ExitStack() as stack:
        files_max = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            stack.enter_context((tmp_path / f"{number:06}.sst").open("wb"))

        # Each has a spare descriptor, too.
        assert ConnectionLimit(house.port, files_max, files_max + 30, lambda host, port: False).look() == 0
        assert ConnectionLimit(house.port, files_max, files_max + 18, lambda host, port: False).look() == 3

    assert sum(map(is_open, callers)) == 2


def test_sockets_that_are_not_connected_to_the_port_are_left_alone(house: House) -> None:
    with ExitStack() as stack:
        other = House(stack)
        foreign = [other.connect() for _ in range(5)]
        caller = house.connect()

        assert limit_with_room_for(house, 6).look() == 1

        assert all(map(is_open, foreign))
        assert not is_open(caller)
        house.connect()  # it still listens
