"""One destination of messages: a subscription, or all matching subscriptions of a session, merged into one.

Only this module decides what a destination receives of a message (QoS, RETAIN, No Local), whichever way the message comes:
live, through hooks, from the log, through a shared group or as a retained message. `expiry` decides whether it has expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.lane.path.message import Message

if TYPE_CHECKING:
    from braidmq.lane.path.flow import Flow
    from braidmq.lane.path.ports import SharedGroup


class Subscription:
    """One destination: the flow of a session or of a shared group; at most one per flow and filter."""

    __slots__ = (
        "echo", "flow", "group", "identifiers", "is_behind", "is_durable", "no_local", "passes_frames", "prompt", "qos",
        "retain_as_published", "topic_filter",
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        topic_filter: bytes,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        group: SharedGroup | None = None,
    ) -> None:
        self.flow = flow
        self.is_durable = flow is not None and flow.is_durable  # copied: in wide routes, reading each flow would miss the cache
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers  # as encoded PUBLISH properties
        self.passes_frames = not identifiers and not no_local  # QoS 0 frames, unless retained, are forwarded unchanged
        self.group = group
        self.echo: Subscription | None = None  # if no_local: the part that still receives the session's own messages
        self.is_behind = False  # it still reads the log, and recorded messages reach it there
        self.prompt: Subscription | None = None  # if is_behind: the part that still receives recorded messages live

    def qos_for(self, message: Message) -> int:
        """The QoS of its copy: the lower of the message's and its own [MQTT-3.8.4-8]."""
        return message.qos if message.qos < self.qos else self.qos

    def retain_for(self, message: Message) -> bool:
        """The RETAIN flag of its copy [MQTT-3.3.1-12], [MQTT-3.3.1-13]; not for stored retained messages, which keep theirs."""
        return message.retain and self.retain_as_published

    def for_publisher(self, client_id: str) -> Subscription | None:
        """The subscription that delivers this client's messages; None if No Local excludes them [MQTT-3.8.3-3]."""
        if not self.no_local or self.flow.client_id != client_id:
            return self
        return self.echo

    def live_for(self, message: Message) -> Subscription | None:
        """The subscription that delivers a message now; None if it is recorded and the subscriber is behind and will read it."""
        if not self.is_behind or not message.timestamp:
            return self
        return self.prompt


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
