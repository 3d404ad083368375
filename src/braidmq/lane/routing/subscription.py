"""One destination of messages: a subscription, or all matching subscriptions of a session, merged into one.

It is data; ``delivery_rules`` decides what it receives of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.lane.flows.flow import Flow
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
