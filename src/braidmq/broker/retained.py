"""The last retained message of each topic, found by topic or by filter."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from time import monotonic, time

from braidmq.lane.message import Message
from braidmq.lane.routes import Subscription

_STRETCH = 256  # topic levels that are looked at in one go
_STALE_MAX = 1000  # entries about messages that have been replaced, before they are cleared out


class Retained:
    """A retained message and the user that published it, whose right to do so may be asked for again."""

    __slots__ = ("message", "stored_at", "user_name")

    def __init__(self, message: Message, user_name: str | None, stored_at: float) -> None:
        self.message = message
        self.user_name = user_name
        self.stored_at = stored_at  # wall-clock seconds


class _Node:
    """A topic level."""

    __slots__ = ("below", "held")

    def __init__(self) -> None:
        self.below: dict[bytes, _Node] | None = None
        self.held: Retained | None = None


class RetainedStore:
    """Retained messages in memory, bounded by ``messages_max`` (0: no bound)."""

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        self.payload_bytes = 0
        self.on_expired: Callable[[bytes], None] | None = None  # its row is to go too
        self._own = 0  # messages of $-topics, which clients cannot publish to
        self._by_topic: dict[bytes, Retained] = {}
        self._root = _Node()
        self._expiring: list[tuple[float, bytes]] = []  # a heap; entries about messages that were replaced stay for a while

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: bytes) -> Retained | None:
        """The message of a topic; None if there is none or it has expired."""
        held = self._by_topic.get(topic)
        if held is not None and _is_expired(held):
            self.remove(topic)
            self._tell(topic)
            return None
        return held

    def _tell(self, topic: bytes) -> None:
        if self.on_expired is not None:
            self.on_expired(topic)

    def has_place(self, message: Message) -> bool:
        """Whether it may be kept: the store is not full, or has the topic already."""
        if message.topic in self._by_topic or message.topic.startswith(b"$"):  # the broker's own do not take clients' places
            return True
        return not self.messages_max or len(self._by_topic) - self._own < self.messages_max

    def put(self, message: Message, user_name: str | None, stored_at: float = 0.0) -> None:
        """Keep it in place of the topic's last one; ask ``has_place`` before. ``stored_at`` 0: now."""
        topic = message.topic
        replaced = self._by_topic.get(topic)
        if replaced is None and topic.startswith(b"$"):
            self._own += 1
        self.payload_bytes += len(message.payload) - (len(replaced.message.payload) if replaced is not None else 0)
        held = self._by_topic[topic] = Retained(message, user_name, stored_at or time())
        node = self._root
        for level in topic.split(b"/"):
            if node.below is None:
                node.below = {}
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _Node()
            node = below
        node.held = held
        if message.expires_at:
            self._note_expiry(message)

    def _note_expiry(self, message: Message) -> None:
        if len(self._expiring) > len(self._by_topic) * 2 + _STALE_MAX:
            held = (each.message for each in self._by_topic.values())
            self._expiring = [(each.expires_at, each.topic) for each in held if each.expires_at]
            heapq.heapify(self._expiring)
        else:
            heapq.heappush(self._expiring, (message.expires_at, message.topic))

    def expire(self, now: float, count_max: int) -> int:
        """Forget messages whose time is over, looking at no more than ``count_max``; how many went."""
        gone = 0
        for _ in range(count_max):
            if not self._expiring or self._expiring[0][0] > now:
                break
            expires_at, topic = heapq.heappop(self._expiring)
            held = self._by_topic.get(topic)
            if held is not None and held.message.expires_at == expires_at:
                gone += self.remove(topic)
                self._tell(topic)
        return gone

    def remove(self, topic: bytes) -> bool:
        """Forget the topic's message; False if there was none."""
        removed = self._by_topic.pop(topic, None)
        if removed is None:
            return False
        self.payload_bytes -= len(removed.message.payload)
        self._own -= topic.startswith(b"$")
        path = [self._root]
        levels = topic.split(b"/")
        for level in levels:
            node = path[-1]
            assert node.below is not None  # every held topic has its path
            path.append(node.below[level])
        path[-1].held = None
        for level in reversed(levels):
            node = path.pop()
            if node.held is not None or node.below:
                break
            above = path[-1].below
            assert above is not None
            del above[level]
        return True

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match, one at a time, and None for each stretch of the search without one.

        What changes meanwhile may or may not be seen. Expired messages are passed over.
        """
        if b"+" not in topic_filter and b"#" not in topic_filter:
            held = self.get(topic_filter)
            if held is not None:
                yield held
            return
        levels = topic_filter.split(b"/")
        # Each open level of the walk is a list of its own, so that the tree may change while a slow client is served.
        walk: list[tuple[Iterator[_Node], int]] = [(iter((self._root,)), 0)]
        looked_at = 0
        while walk:
            looked_at += 1
            if looked_at % _STRETCH == 0:
                yield None
            nodes, depth = walk[-1]
            node = next(nodes, None)
            if node is None:
                walk.pop()
                continue
            level = levels[depth] if depth < len(levels) else b""
            if depth == len(levels) or level == b"#":
                held = node.held
                if held is not None and not _is_expired(held):
                    yield held
                if depth == len(levels):
                    continue
            if node.below is None:
                continue
            if level in (b"#", b"+"):
                below = node.below
                if node is self._root:  # [MQTT-4.7.2-1]: a leading wildcard does not reach $-topics
                    found = [child for name, child in below.items() if name[:1] != b"$"]
                else:
                    found = list(below.values())
                walk.append((iter(found), depth if level == b"#" else depth + 1))
            else:
                child = node.below.get(level)
                if child is not None:
                    walk.append((iter((child,)), depth + 1))

    def topics(self) -> Iterator[bytes]:
        """All topics; the store must not change meanwhile."""
        return iter(self._by_topic)


class RetainedFeed:
    """Retained messages on their way to a new subscription."""

    __slots__ = ("messages", "subscription")

    def __init__(self, messages: Iterator[Retained | None], subscription: Subscription) -> None:
        self.messages = messages
        self.subscription = subscription


def _is_expired(held: Retained) -> bool:
    return bool(held.message.expires_at) and held.message.expires_at <= monotonic()
