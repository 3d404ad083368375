"""The interfaces of a channel: the outlet for its session's messages, and the upcalls for everything but the fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.lane.path.message import Message
from braidmq.lane.path.parser import Parser
from braidmq.lane.routing.routes import Route
from braidmq.lane.routing.subscription import Subscription

if TYPE_CHECKING:
    from braidmq.lane.flows.flow import Flow
    from braidmq.lane.path.ports import Change


class Outlet:
    """A connected client as its session sees it; implemented by the channel."""

    __slots__ = ("is_muted", "is_waiting", "turn")

    is_waiting: bool  # it is a publisher held until a subscriber's queue has drained
    is_muted: bool  # it belongs to the peer that the current QoS 0 message came from, and must not be sent that message
    turn: int  # the turn of the event loop in which it was last written to

    def send_publish(self, message: Message, subscription: Subscription, flags: int, packet_id: int, expiry: int) -> int:
        """Put a PUBLISH into the outbox; returns its size, or 0 if it exceeds the client's Maximum Packet Size."""
        raise NotImplementedError

    def forward_frame(self, parser: Parser, v5: bool) -> bool:
        """Put the parser's current QoS 0 PUBLISH into the outbox as it is; False if it cannot be sent unchanged."""
        raise NotImplementedError

    def send_ack(self, first_byte: int, packet_id: int, reason: int) -> None:
        """Put PUBACK, PUBREC, PUBREL or PUBCOMP into the outbox."""
        raise NotImplementedError

    def is_clogged(self) -> bool:
        """Whether messages should stay in the queue because the client does not read."""
        raise NotImplementedError

    def is_filling(self) -> bool:
        """Whether the outbox should be written before more is added, or the client would soon count as slow."""
        raise NotImplementedError

    def flush(self) -> None:
        """Hand the outbox to the transport."""
        raise NotImplementedError

    def want_room(self) -> None:
        """Messages for this client wait in the log: call ``on_room`` when its outbox has room."""
        raise NotImplementedError

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        """A message that this client published with this flow is on disk and delivered: acknowledge it."""
        raise NotImplementedError

    def end_large(self, size: int) -> None:
        """A large message of this client is on disk, or was rejected: the client may send the next one in its turn."""
        raise NotImplementedError

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        """A message of this client was not stored, or it is unknown whether it was."""
        raise NotImplementedError

    def schedule_release(self) -> None:
        """Release a publisher that was held by a full queue, after the running callback."""
        raise NotImplementedError


class Upcalls(Outlet):
    """The calls from the lane to the broker; the connection in ``broker`` implements them."""

    __slots__ = ()

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        """A packet that the fast lane does not handle."""
        raise NotImplementedError

    def on_publish(self, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        """A PUBLISH that takes the slow path; returns the reason code to acknowledge it with.

        -1: nothing more to do, because the connection is closed or the acknowledgement waits for the log.
        """
        raise NotImplementedError

    def on_bad_topic(self, topic: bytes) -> None:
        """A PUBLISH to an invalid topic."""
        raise NotImplementedError

    def on_denied(self, topic: bytes) -> bool:
        """A PUBLISH without permission, already counted; False if the connection is closed."""
        raise NotImplementedError

    def on_refused(self, reason: int) -> None:
        """A message of a producer was answered with this reason code."""
        raise NotImplementedError

    def may_publish(self, topic: bytes) -> bool:
        """Check the access rules; the answer is cached until ``forget_verdicts``."""
        raise NotImplementedError

    def on_violation(self, reason: int, detail: str) -> None:
        """The client violated the protocol: answer and close."""
        raise NotImplementedError

    def on_hold(self, bit: int) -> None:
        """Reading was held for this reason."""
        raise NotImplementedError

    def schedule_resume(self, bit: int) -> None:
        """Call ``resume`` for this reason, after the running callback."""
        raise NotImplementedError

    def on_metered(self, messages: int, size: int) -> None:
        """Messages and bytes received in one read; called if ``is_metered``."""
        raise NotImplementedError

    def on_part(self, size: int) -> None:
        """Received bytes that wait for the rest of their packet, or for a hold to end; called if they are many."""
        raise NotImplementedError

    def received_row(self, packet_id: int) -> Change:
        """The row to write with a QoS 2 message so that its packet id is known after a restart."""
        raise NotImplementedError

    def on_release(self, packet_id: int) -> None:
        """PUBREL for an id that is on disk: remove it there, then answer."""
        raise NotImplementedError

    def on_room(self) -> None:
        """The outbox may have room for more; called if ``wants_room``."""
        raise NotImplementedError

    def on_trace(self, inbound: bool, frame: bytes) -> None:
        """A frame was received or sent; called if ``is_traced``."""
        raise NotImplementedError
