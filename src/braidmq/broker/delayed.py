"""``$delayed/SECONDS/topic``: messages that are published later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import time
from typing import TYPE_CHECKING

from braidmq.broker.ports import StoredMessage
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
        self._overdue: list[StoredMessage] = []  # their time came while nobody could say whether they may be published

    def __len__(self) -> int:
        return len(self._waiting) + len(self._overdue)

    def has_place(self, delay_s: int) -> bool:
        """Whether another message may wait for so long."""
        bounds = self._broker.settings.delayed
        return delay_s <= bounds.delay_max and len(self) < bounds.messages_max

    def keep(self, message: Message, delay_s: int, user_name: str | None) -> Callable[[], None]:
        """Write the message down, with what this turn records; when that is done, call the result, and it waits."""
        broker = self._broker
        due = time() + delay_s
        row_id, change = broker.keeper.storage.delayed.put(message, user_name, due)
        broker.keeper.recorder.change(change)
        return partial(self._wait, StoredMessage(message, user_name, due=due, row_id=row_id), delay_s)

    def restore(self, stored: StoredMessage, now: float) -> None:
        """Let a message wait that was found at start; one that is overdue is published at once."""
        self._wait(stored, max(0.0, stored.due - now))

    def _wait(self, stored: StoredMessage, delay_s: float) -> None:
        def on_time() -> None:
            self._waiting.discard(timer)
            if self._broker.access.has_rules:
                self._publish(stored)
            else:
                self._overdue.append(stored)

        timer = self._broker.loop.call_later(delay_s, on_time)
        self._waiting.add(timer)

    def publish_overdue(self) -> None:
        """There are rules again: publish what waited for them, as far as they allow it."""
        overdue, self._overdue = self._overdue, []
        for stored in overdue:
            self._publish(stored)

    def _publish(self, stored: StoredMessage) -> None:
        message, user_name = stored.message, stored.user_name
        broker = self._broker
        broker.keeper.write(broker.keeper.storage.delayed.remove(message.publisher, stored.row_id))
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

    def stop(self) -> None:
        """Wait no more; what is written down is taken up at the next start."""
        for timer in self._waiting:
            timer.cancel()
        self._waiting.clear()
