"""Describes parts of the broker as values of the API."""

from __future__ import annotations

from time import monotonic, time
from typing import Final

from braidmq.broker.session.session import Session
from braidmq.control.contract import ClientInfo, SubscriptionInfo
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311
from braidmq.mqtt.wire import read_varint

BETWEEN: Final = "\0"
_PROTOCOLS = {MQTT31: "MQTT 3.1", MQTT311: "MQTT 3.1.1", MQTT5: "MQTT 5"}


def client_info(session: Session) -> ClientInfo:
    """A session and its connection, if it has one."""
    flow = session.flow
    connection = session.connection
    origin = connection.origin if connection is not None else None
    return ClientInfo(
        client_id=session.client_id,
        connected=connection is not None,
        user_name=session.user_name,
        peer=connection.peer() if connection is not None else "",
        listener=origin.listener if origin is not None else "",
        protocol=_PROTOCOLS[connection.version] if connection is not None else "",
        clean_start=session.is_clean,
        keep_alive_s=connection.keep_alive if connection is not None else 0,
        session_expiry_s=float(session.expiry_s),
        connected_at=wall(connection.opened_at) if connection is not None else None,
        disconnected_at=wall(session.ended_at) if connection is None else None,
        subscriptions=len(session.subscriptions),
        inflight=flow.inflight_messages(),
        queue_messages=flow.queue_messages(),
        queue_bytes=flow.queue_bytes,
    )


def subscription_info(client_id: str, written: str, subscription: Subscription) -> SubscriptionInfo:
    """A subscription; ``written`` is the filter as the client wrote it."""
    identifiers = subscription.identifiers  # property 0x0B and its value, or nothing
    return SubscriptionInfo(
        client_id=client_id,
        topic_filter=written,
        qos=subscription.qos,
        no_local=subscription.no_local,
        retain_as_published=subscription.retain_as_published,
        subscription_identifier=read_varint(identifiers, 1)[0] if identifiers else None,
    )


def subscription_name(subscription: SubscriptionInfo) -> str:
    """The name by which subscriptions are sorted: that of the client, then the filter."""
    return join_names(subscription.client_id, subscription.topic_filter)


def join_names(first: str, second: str) -> str:
    """One name that sorts by the first, then the second; MQTT strings cannot contain what is between them."""
    return f"{first}{BETWEEN}{second}"


def wall(moment: float) -> float:
    """Convert a time of the monotonic clock to seconds since 1970."""
    return round(time() - (monotonic() - moment), 3)
