"""The interfaces of a channel: the outlet for its session's messages, and the upcalls for everything but the fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.lane.path.message import Message
from braidmq.lane.path.routes import Route
from braidmq.lane.path.scanner import Scanner
from braidmq.lane.path.subscription import Subscription

if TYPE_CHECKING:
    from braidmq.lane.path.flow import Flow
    from braidmq.lane.path.ports import Change


class Outlet:
    """A connected client as its session sees it; the channel is the one there is."""

    __slots__ = ("is_waiting", "turn")

    is_waiting: bool  # it publishes, and is held until somebody's queue has drained
    turn: int  # of the event loop, in which it was last written to

    def send_publish(self, message: Message, subscription: Subscription, flags: int, packet_id: int, expiry: int) -> int:
        """Put a PUBLISH into the outbox; its size, or 0 if the client does not take packets that large."""
        raise NotImplementedError

    def forward_frame(self, scan: Scanner, v5: bool) -> bool:
        """Put the QoS 0 PUBLISH that the scanner stands on into the outbox as it is; False if it cannot go unchanged."""
        raise NotImplementedError

    def send_ack(self, first_byte: int, packet_id: int, reason: int) -> None:
        """Put PUBACK, PUBREC, PUBREL or PUBCOMP into the outbox."""
        raise NotImplementedError

    def is_clogged(self) -> bool:
        """Whether more should wait in the queue because the client does not read."""
        raise NotImplementedError

    def is_filling(self) -> bool:
        """Whether what waits should be written before more is put to it, or the client would soon count as slow."""
        raise NotImplementedError

    def flush(self) -> None:
        """Hand the outbox to the transport."""
        raise NotImplementedError

    def want_room(self) -> None:
        """Something waits elsewhere, in the log, until this client takes more: call ``on_room`` when it does."""
        raise NotImplementedError

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        """A message that this client published as this flow's is on disk and delivered: acknowledge it."""
        raise NotImplementedError

    def end_large(self, size: int) -> None:
        """A message of this client's that was large is on disk, or will not be: it may send the next one in its turn."""
        raise NotImplementedError

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        """A message of this client cannot be stored, or it is unknown whether it is."""
        raise NotImplementedError

    def schedule_release(self) -> None:
        """Let a publisher that was held for a full queue go on, after the running callback."""
        raise NotImplementedError


class Upcalls(Outlet):
    """What the lane passes up; the connection in ``broker`` implements it."""

    __slots__ = ()

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        """A packet that the fast lane does not know."""
        raise NotImplementedError

    def on_publish(self, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        """A PUBLISH that is not plain; the reason code to acknowledge it with.

        -1: there is nothing more to do, because the connection is over or the acknowledgement waits for the log.
        """
        raise NotImplementedError

    def on_bad_topic(self, topic: bytes) -> None:
        """A PUBLISH to an invalid topic."""
        raise NotImplementedError

    def on_denied(self, topic: bytes) -> bool:
        """A PUBLISH without permission, counted already; False if the connection is over."""
        raise NotImplementedError

    def on_refused(self, reason: int) -> None:
        """A message of a client that numbers its messages was answered with this reason code."""
        raise NotImplementedError

    def may_publish(self, topic: bytes) -> bool:
        """Ask the access rules; the answer is remembered until ``forget_verdicts``."""
        raise NotImplementedError

    def on_violation(self, reason: int, detail: str) -> None:
        """The client broke the protocol: answer and close."""
        raise NotImplementedError

    def on_hold(self, bit: int) -> None:
        """Reading was held for this reason."""
        raise NotImplementedError

    def schedule_resume(self, bit: int) -> None:
        """Call ``resume`` for this reason, after the running callback."""
        raise NotImplementedError

    def on_metered(self, messages: int, size: int) -> None:
        """So much came in one read; called if ``is_metered``."""
        raise NotImplementedError

    def on_part(self, size: int) -> None:
        """So many received bytes wait for the rest of their packet, or for a hold to end; called if they are many."""
        raise NotImplementedError

    def received_row(self, packet_id: int) -> Change:
        """What to write with a QoS 2 message so that its packet id is known after a restart."""
        raise NotImplementedError

    def on_release(self, packet_id: int) -> None:
        """PUBREL for an id that is on disk: remove it there, then answer."""
        raise NotImplementedError

    def on_room(self) -> None:
        """There may be place for more; called if ``wants_room``."""
        raise NotImplementedError

    def on_trace(self, inbound: bool, frame: bytes) -> None:
        """A frame passed; called if ``is_traced``."""
        raise NotImplementedError
