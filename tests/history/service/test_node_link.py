"""The service's end of the socket to the node: counts of backlogs are made one at a time, and always answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from braidmq.history import messages
from braidmq.history.service.node_link import NodeLink

READERS = [messages.ReaderAt(["a/#"], {0: 5})]


class Node:
    """The other end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = end.makefile("rwb")

    def ask(self, number: int) -> None:
        self._stream.write(messages.frame(messages.AskBacklogs(number, READERS)))
        self._stream.flush()

    def hear(self) -> messages.FromService:
        length = messages.length_of(self._stream.read(messages.LENGTH_BYTES))
        return messages.from_service(self._stream.read(length))


@pytest.fixture
def ends() -> Iterator[tuple[NodeLink, Node]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        link = NodeLink(theirs)
        listening = threading.Thread(target=link.listen, args=(lambda: None,))
        listening.start()
        yield link, Node(ours)
        ours.shutdown(socket.SHUT_RDWR)
        listening.join()


def test_a_count_that_comes_while_another_is_made_is_answered_with_nothing_at_once(ends: tuple[NodeLink, Node]) -> None:
    link, node = ends
    begun, may_end = threading.Event(), threading.Event()

    def count(readers: Sequence[messages.ReaderAt]) -> list[messages.Behind]:
        begun.set()
        assert may_end.wait(30)
        return [messages.Behind(len(each.filters), False) for each in readers]

    link.count_backlogs = count
    node.ask(1)
    assert begun.wait(30)
    node.ask(2)

    assert node.hear() == messages.Backlogs(2, [])
    may_end.set()
    assert node.hear() == messages.Backlogs(1, [messages.Behind(1, False)])
    node.ask(3)
    assert node.hear() == messages.Backlogs(3, [messages.Behind(1, False)]), "the next one is made again"


def test_a_count_that_fails_or_cannot_be_made_yet_is_answered_with_nothing(
    ends: tuple[NodeLink, Node], caplog: pytest.LogCaptureFixture
) -> None:
    link, node = ends

    def count(readers: Sequence[messages.ReaderAt]) -> list[messages.Behind]:
        raise RuntimeError("the log cannot be opened")

    node.ask(1)
    assert node.hear() == messages.Backlogs(1, [])
    link.count_backlogs = count
    for number in (2, 3):
        node.ask(number)
        assert node.hear() == messages.Backlogs(number, [])

    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["the log cannot be opened"] * 2
