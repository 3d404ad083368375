"""Connections to the history service that are too many: whom they are taken from."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from braidmq.history.service.crowd import Crowd


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


def crowd_with_room_for(house: House, fewer: int) -> Crowd:
    """Make this many of the open descriptors exceed the limit."""
    return Crowd(house.port, len(os.listdir("/proc/self/fd")) - fewer)


def test_no_connection_is_closed_while_there_are_descriptors(house: House) -> None:
    callers = [house.connect() for _ in range(5)]

    assert Crowd(house.port, 10_000).look() == 0

    assert all(map(is_open, callers))


def test_the_silent_go_first_and_of_them_the_newest(house: House) -> None:
    callers = [house.connect(says) for says in (b"hello", b"", b"", b"", b"hello")]
    crowd = crowd_with_room_for(house, 2)

    assert crowd.look() == 2

    assert [is_open(each) for each in callers] == [True, True, False, False, True]
    assert crowd.refused == 2


def test_sockets_that_are_not_connected_to_the_port_are_left_alone(house: House) -> None:
    with ExitStack() as stack:
        other = House(stack)
        foreign = [other.connect() for _ in range(5)]
        caller = house.connect()

        assert crowd_with_room_for(house, 6).look() == 1

        assert all(map(is_open, foreign))
        assert not is_open(caller)
        house.connect()  # it still listens
