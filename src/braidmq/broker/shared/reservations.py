"""Reservations: QoS 2 messages of a stored group for members whose sessions are in memory (S10).

The lease of such a message ends with the member's session, at the latest with the process. The disk can only record that the
message no longer belongs to the group. That is written before PUBLISH: otherwise the group would assign it again after a crash,
and two members would have it. In between it is *reserved*: it occupies a slot of the member's window, and is not sent yet.
"""

from __future__ import annotations

from braidmq.broker.shared.leases import flow_of
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.delivery_rules import copy_retain
from braidmq.lane.routing.subscription import Subscription


class Reservation:
    """A message that a member is to get: as the log has it, and as a hook may have changed it."""

    __slots__ = ("expiry", "given", "member", "message")

    def __init__(self, member: Subscription, message: Message, given: Message, expiry: int) -> None:
        self.member = member
        self.message = message
        self.given = given
        self.expiry = expiry

    def send(self) -> bool:
        """Send the message to its member; False if that has no room for it."""
        return flow_of(self.member).take(self.given, self.member, 2, copy_retain(self.given, self.member), self.expiry)


class Reservations:
    """The reservations of a group, in order."""

    __slots__ = ("_counts", "_open", "_unwritten")

    def __init__(self) -> None:
        self._open: dict[Reservation, None] = {}
        self._counts: dict[Flow, int] = {}  # of those, by member
        self._unwritten: list[Reservation] = []

    def add(self, reservation: Reservation) -> None:
        """It is to be written down."""
        flow = reservation.member.flow
        self._open[reservation] = None
        self._counts[flow] = self._counts.get(flow, 0) + 1
        self._unwritten.append(reservation)

    def leaves_room(self, flow: Flow) -> bool:
        """Whether the member's window takes a message beside those that it was reserved."""
        return flow.outstanding + self._counts.get(flow, 0) < flow.window

    def take_unwritten(self) -> list[Reservation]:
        """The reservations not on disk yet; the caller must write them."""
        unwritten, self._unwritten = self._unwritten, []
        return [reservation for reservation in unwritten if reservation in self._open]

    def end(self, reservation: Reservation) -> bool:
        """It is kept or broken; False if it was before."""
        if reservation not in self._open:
            return False
        del self._open[reservation]
        flow = reservation.member.flow
        self._counts[flow] -= 1
        if not self._counts[flow]:
            del self._counts[flow]
        return True

    def pending(self) -> list[Reservation]:
        """Those that are neither kept nor broken."""
        return list(self._open)
