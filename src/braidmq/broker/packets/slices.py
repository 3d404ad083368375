"""Processes packets with many filters in slices, so that a packet with a hundred thousand filters delays no other client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol

from braidmq.base.errors import ProtocolViolation
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.connection import Connection
from braidmq.broker.ports import Refusal
from braidmq.lane.path.channel_reader import HOLD_BUSY
from braidmq.mqtt.reasons import Reason

_SLICE_S = (
    0.0005  # for the filters of one packet, before others have their turn; a filter costs 5 us or, rarely, a hundred times that
)


class FilterWork(Protocol):
    """A packet being processed."""

    def run(self, deadline: float) -> bool:
        """Handle filters until then, one in any case; True when all are done."""
        ...

    def answer(self) -> None:
        """Send the acknowledgement."""
        ...


def work_off(turns: Turns, connection: Connection, packet: FilterWork) -> None:
    """Do the work now if it is short, else in slices; the connection is not read meanwhile."""
    if packet.run(monotonic() + _SLICE_S):
        packet.answer()
    else:
        connection.hold(HOLD_BUSY)
        work_on(turns, connection, packet)


def work_on(turns: Turns, connection: Connection, packet: FilterWork) -> None:
    """Do the work for which the connection was held."""
    turns.repeat(connection, partial(_do_more, connection, packet))


def _do_more(connection: Connection, packet: FilterWork) -> bool:
    """Process another slice; True when the client has its answer or no longer needs one."""
    try:
        if connection.is_open:
            if not packet.run(monotonic() + _SLICE_S):
                return False
            packet.answer()
    except ProtocolViolation as violation:
        connection.on_violation(violation.reason, violation.detail)
    except Exception:
        connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "")
        raise
    connection.schedule_resume(HOLD_BUSY)  # its next packet is not part of this piece of work
    connection.lane.flush()
    return True


def answer_when_kept(connection: Connection, answer: Callable[[], None]) -> Callable[[], None]:
    """Hold the connection; returns the callback for the commit of the rows, which sends the answer."""
    connection.hold(HOLD_BUSY)
    return partial(_on_kept, connection, answer)


def _on_kept(connection: Connection, answer: Callable[[], None]) -> None:
    if connection.is_open:
        answer()
        connection.schedule_resume(HOLD_BUSY)
        connection.lane.flush()


def on_not_kept(connection: Connection, refusal: Refusal) -> None:
    """The subscriptions cannot be stored: disconnect the client, which then retries."""
    connection.close(Reason.QUOTA_EXCEEDED, "subscriptions cannot be stored")
    connection.lane.flush()
