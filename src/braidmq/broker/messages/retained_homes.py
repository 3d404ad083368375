"""Where retained messages are kept if there are several cores: each at the home of its topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braidmq.broker.ports import Change
from braidmq.lane.path.message import Message


class RetainedIntent(Protocol):
    """A retained message that is kept in another shard than it is recorded in."""

    @property
    def row(self) -> Change:
        """To be written with the record."""

    def committed(self, on_settled: Callable[[], None] | None = None) -> None:
        """The row is on disk: take the message to the home of its topic.

        ``on_settled`` is called once, when that has it; or does not answer, and gets it later.
        """

    def refused(self, on_settled: Callable[[], None] | None = None) -> None:
        """The row could not be written."""


class RetainedHomes(Protocol):
    """The homes of all topics, as the core sees them; `cluster.home.retained.homes.CoreRetainedHomes`."""

    def is_elsewhere(self, message: Message) -> bool:
        """Whether the message is kept in another shard than that of its publisher."""

    def has_room(self, message: Message) -> bool:
        """Whether such a message may be on its way."""

    def intent(self, message: Message, user_name: str | None) -> RetainedIntent:
        """What takes such a message to the home of its topic."""

    def begin(self, topic: bytes) -> float:
        """A message of a topic that is at home here, without a detour, is about to be written; when it counts as stored."""

    def expect(self, topic: bytes, stored_at: float) -> None:
        """A message of a topic that is at home here waits for the disk; ``end`` follows."""

    def end(self, topic: bytes) -> None:
        """It is written, or refused."""

    def note_removed(self, topic: bytes, stored_at: float) -> None:
        """The message of a topic was removed, with a row that says so."""
