"""``$delayed/SECONDS/topic``: messages that are published later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from braidmq.lane.message import Message

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

PREFIX = b"$delayed/"


def parse(topic: bytes) -> tuple[int, bytes] | None:
    """Seconds and inner topic of a ``$delayed`` topic; None if it is not written right."""
    seconds, slash, inner = topic[len(PREFIX) :].partition(b"/")
    if not slash or not inner or not seconds.isdigit() or len(seconds) > 9:
        return None
    return int(seconds), inner


class DelayedMessages:
    """Messages that wait for their time, bounded in number and delay."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: set[asyncio.TimerHandle] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: Message, delay_s: int, user_name: str | None) -> bool:
        """Publish the message after the delay; False if that is too long or too many wait."""
        bounds = self._broker.settings.delayed
        if delay_s > bounds.delay_max or len(self._waiting) >= bounds.messages_max:
            return False

        def publish() -> None:
            self._waiting.discard(timer)
            broker = self._broker
            # The right to publish was there when the message came, and must still be.
            rules = broker.access.rules_for(message.publisher, user_name)
            if rules.unrestricted or rules.may_publish(message.topic.decode()):
                session = broker.sessions.get(message.publisher)
                broker.statistics.own_messages += session is not None
                broker.publish(message, None if session is None else session.flow, user_name)  # the flow is for No Local
                broker.lane.flush()
            else:
                broker.statistics.dropped_revoked += 1
                broker.state.drop("not_authorized", message.publisher, message.topic)

        timer = self._broker.loop.call_later(delay_s, publish)
        self._waiting.add(timer)
        return True

    def stop(self) -> None:
        """Forget all that waits."""
        for timer in self._waiting:
            timer.cancel()
        self._waiting.clear()
