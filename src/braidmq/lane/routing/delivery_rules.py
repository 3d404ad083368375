"""The rules of delivery: the QoS and RETAIN flag of a subscriber's copy, No Local, live or from the log, overlapping filters.

Only these functions decide what a subscriber receives of a message, whichever way the message comes: live, through hooks, from
the log, through a shared group or as a retained message. `expiry` decides whether it has expired.
"""

from __future__ import annotations

from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription


def copy_qos(message: Message, subscription: Subscription) -> int:
    """The QoS of the subscriber's copy: the lower of the message's and the subscription's [MQTT-3.8.4-8]."""
    return message.qos if message.qos < subscription.qos else subscription.qos


def copy_retain(message: Message, subscription: Subscription) -> bool:
    """The RETAIN flag of the copy [MQTT-3.3.1-12], [MQTT-3.3.1-13]; not for stored retained messages, which keep theirs."""
    return message.retain and subscription.retain_as_published


def for_publisher(subscription: Subscription, client_id: str) -> Subscription | None:
    """The subscription that delivers this client's messages; None if No Local excludes them [MQTT-3.8.3-3]."""
    if not subscription.no_local or subscription.flow.client_id != client_id:
        return subscription
    return subscription.echo


def live_for(subscription: Subscription, message: Message) -> Subscription | None:
    """The subscription that delivers a message now; None if it is recorded and the subscriber is behind and will read it."""
    if not subscription.is_behind or not message.timestamp:
        return subscription
    return subscription.prompt


def merge_two(first: Subscription, second: Subscription) -> Subscription:
    """One copy for two subscriptions of a session: the higher QoS [MQTT-3.3.4-2] and all identifiers [MQTT-3.3.4-4]."""
    merged = Subscription(
        first.flow,
        first.topic_filter,
        max(first.qos, second.qos),
        first.no_local or second.no_local,
        first.retain_as_published or second.retain_as_published,
        first.identifiers + second.identifiers,
    )
    if merged.no_local:
        # [MQTT-3.8.3-3] excludes only the subscription with No Local; the other still receives the session's own messages.
        echoes = [echo for echo in (_echo(first), _echo(second)) if echo is not None]
        if echoes:
            merged.echo = echoes[0] if len(echoes) == 1 else merge_two(echoes[0], echoes[1])
    if first.is_behind or second.is_behind:
        merged.is_behind = True
        prompts = [prompt for prompt in (_prompt(first), _prompt(second)) if prompt is not None]
        if prompts:
            merged.prompt = prompts[0] if len(prompts) == 1 else merge_two(prompts[0], prompts[1])
    return merged


def merge(subscriptions: list[Subscription]) -> Subscription | None:
    """One copy for all of these subscriptions of a session; None if there are none."""
    merged: Subscription | None = None
    for subscription in subscriptions:
        merged = subscription if merged is None else merge_two(merged, subscription)
    return merged


def _prompt(subscription: Subscription) -> Subscription | None:
    return subscription.prompt if subscription.is_behind else subscription


def _echo(subscription: Subscription) -> Subscription | None:
    return subscription.echo if subscription.no_local else subscription
