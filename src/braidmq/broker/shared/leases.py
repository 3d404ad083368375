"""Leases: recorded messages of a shared group that are in flight to a member."""

from __future__ import annotations

from typing import cast

from braidmq.broker.reading.fetch import Place
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription


def is_lease(delivery: Delivery) -> bool:
    """Whether a delivery in flight belongs to a group: when the connection ends it goes back there."""
    return delivery.qos == 1 and delivery.subscription.group is not None and delivery.place()[1] > 0


def lease_of(message: Message) -> tuple[Place, Message]:
    """The place of a message in the log, and the message."""
    return (message.shard, message.timestamp), message


def flow_of(member: Subscription) -> LogFlow:
    """The flow of a member's session; all sessions have one that knows the log."""
    return cast("LogFlow", member.flow)
