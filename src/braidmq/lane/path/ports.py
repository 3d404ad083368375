"""Types that the lane passes between higher layers: ``storage`` implements ``Change`` and ``Refusal``, the broker the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from braidmq.lane.flows.delivery import Delivery
    from braidmq.lane.path.message import Message


class Change:
    """A row to set or remove, in the store's internal form: others only pass it on, to be written with a message or rows."""

    __slots__ = ()


class Refusal(Protocol):
    """Why something was not stored. ``is_in_doubt``: it must be neither acknowledged nor rejected."""

    @property
    def reason(self) -> str:
        """The reason as text."""
        ...

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may be on disk nevertheless."""
        ...


class SharedGroup(Protocol):
    """A shared group, as the flow of a member sees it."""

    def on_settled(self, delivery: Delivery) -> None:
        """A member has acknowledged or rejected a message, or released its packet id."""
        ...


class Distributor(Protocol):
    """Gives each message of a shared group to one of its members."""

    def offer(self, message: Message) -> None:
        """Give the message to a member, or leave it to the log."""
        ...

    def hand_out_deferred(self) -> None:
        """Offer the messages that the group's flow has deferred."""
        ...

    def fall_behind(self) -> None:
        """Read the log from now on."""
        ...

    def wake(self) -> None:
        """A member may have room."""
        ...
