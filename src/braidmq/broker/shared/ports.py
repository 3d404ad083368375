"""The broker services that a shared group's cursor depends on; `binding` implements them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from braidmq.broker.ports import Change
from braidmq.broker.reading.slots import Slots
from braidmq.broker.reading.source import LogSource
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

if TYPE_CHECKING:
    from braidmq.broker.shared.cursor import GroupCursor


class GroupRoutes(Protocol):
    """The routes that groups are destinations of."""

    def add(self, subscription: Subscription) -> bool:
        """Add a group's destination."""

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove it."""


class RoomWaiter(Protocol):
    """Waits until a client takes more: a group, or the membership in one that is elsewhere."""

    def wake(self) -> None:
        """The client may have room."""


class GroupServices(Protocol):
    """What a group's cursor needs from the broker; called on the event loop."""

    @property
    def state(self) -> State: ...
    @property
    def source(self) -> LogSource:
        """Opens scans of the log."""

    @property
    def slots(self) -> Slots:
        """Decides which groups may read."""

    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or withhold messages for a member."""

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        """Call back when the log's owner has its turn."""

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after this time."""

    def flush(self) -> None:
        """Write out what members were sent."""

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this member receives it, still the same record; None if a hook withholds it."""

    def await_room(self, log: GroupCursor, flow: Flow) -> None:
        """``wake`` the log when this member takes more."""

    def note_blocked(self, log: GroupCursor) -> None:
        """The log waits until the source is ready; ask whether it ``keeps_waiting`` when a member disconnects."""

    def note_left(self) -> None:
        """A member of some group has disconnected."""

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        """The row on disk is behind; ``at_once``: write it at the end of this turn."""

    def note_reservation(self, log: GroupCursor) -> None:
        """Write the row at the end of this turn; then call the log's ``keep`` or ``release_reservations``."""

    def write_row(self, log: GroupCursor) -> None:
        """Write the row of a group as it is now."""

    def row_of(self, log: GroupCursor) -> Change:
        """The row of a group as it is now, to be written by the caller."""

    def forget_row(self, name: str, topic_filter: str) -> None:
        """Remove the row of a group."""

    def note_lost(self) -> None:
        """Retention deleted a message before the group could read it."""
