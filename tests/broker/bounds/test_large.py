"""Large messages are admitted one after the other, with longer pauses while clients publish smaller ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.broker.bounds.large import LargeMessages

MIB = 1024 * 1024


class FakeLoop:
    """Notes the pauses, and ends the one that runs when the test says so."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self._callback: Callable[[], None] | None = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert self._callback is None, "one pause at a time"
        self.pauses_s.append(delay_s)
        self._callback = callback

    def end_pause(self) -> None:
        callback, self._callback = self._callback, None
        assert callback is not None
        callback()


class Publishers:
    """What clients publish, and who has been called back."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.large = LargeMessages(self.loop, lambda: self.received)  # type: ignore[arg-type]
        self.received = 0
        self.admitted: list[str] = []

    def send_large(self) -> None:
        self.received += 1
        self.large.begin()

    def commit_large(self, client: str, size: int = MIB) -> None:
        self.large.end(lambda: self.admitted.append(client), size)


def test_clients_are_admitted_one_after_the_other_in_the_order_of_their_commits() -> None:
    publishers = Publishers()
    for _ in range(3):
        publishers.send_large()
    for client in ("a", "b", "c"):
        publishers.commit_large(client)

    assert publishers.admitted == []
    publishers.loop.end_pause()
    assert publishers.admitted == ["a"]
    publishers.loop.end_pause()
    publishers.loop.end_pause()

    assert publishers.admitted == ["a", "b", "c"]


def test_large_messages_alone_are_paused_for_at_100_megabytes_a_second() -> None:
    publishers = Publishers()
    for _ in range(3):
        publishers.send_large()
        publishers.send_large()  # of a client that waits for the disk meanwhile
        publishers.commit_large("a", 1_000_000)
        publishers.loop.end_pause()
        publishers.commit_large("b", 1_000_000)
        publishers.loop.end_pause()

    assert publishers.loop.pauses_s == pytest.approx([0.01] * 6)


def test_smaller_messages_make_the_pause_five_times_as_long() -> None:
    publishers = Publishers()
    publishers.send_large()
    publishers.received += 1
    publishers.commit_large("a", 1_000_000)
    publishers.loop.end_pause()
    assert publishers.loop.pauses_s == pytest.approx([0.05])

    publishers.send_large()
    publishers.commit_large("a", 1_000_000)

    assert publishers.loop.pauses_s[1:] == pytest.approx([0.01])  # there were no more of them
