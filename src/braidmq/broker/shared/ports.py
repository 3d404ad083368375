"""The broker services that a shared group's cursor depends on; `binding` implements them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from braidmq.broker.ports import LogScan
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State

if TYPE_CHECKING:
    from braidmq.broker.shared.cursor import GroupCursor


class GroupServices(Protocol):
    """What a group's cursor needs from the broker; called on the event loop."""

    @property
    def state(self) -> State: ...
    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or withhold messages for a member."""

    def replay(self, topic_filter: str, positions: list[int]) -> LogScan:
        """Read everything that was recorded above these positions."""

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        """Call back when the log's owner has its turn."""

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after this time."""

    def may_read(self, log: GroupCursor) -> bool:
        """Whether there is a place for one more reader; if not, ``wake`` it when there is."""

    def note_idle(self, log: GroupCursor) -> None:
        """The group has read-ahead that no member accepts now; ``pause`` it if another reader needs the slot."""

    def stop_reading(self, log: GroupCursor) -> None:
        """It needs no place any more."""

    def flush(self) -> None:
        """Write out what members were sent."""

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this member gets it, still the same record; None if a hook keeps it back."""

    def await_room(self, log: GroupCursor, flow: Flow) -> None:
        """``wake`` the log when this member takes more."""

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""

    def note_reservation(self, log: GroupCursor) -> None:
        """Write the row at the end of this turn; then the log is to ``keep`` or to ``release_reservations`` that it has made."""

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""

    def note_lost(self) -> None:
        """Retention was faster than the group."""
