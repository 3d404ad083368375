"""The last retained message of each topic, found by topic or by filter.

Small messages are in memory as well as on disk. Of large ones, and of small ones beyond a bound, memory has only what is needed
to find them; they are read from disk when they are served.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from time import time

from braidmq.broker.session.ports import RetainedSearch
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import matches

SMALL_BYTES_MAX = 4096  # payload and properties of a message that is kept in memory
MEMORY_BYTES_MAX = 64 * 1024 * 1024  # of all these together; further ones are on disk only
PLACE_BYTES = 500  # memory that a message takes beside topic, payload and properties
LEVEL_BYTES = 320  # and each topic level; levels that topics have in common are there once

_STRETCH = 256  # topic levels searched in one go
_DEPTH_MAX = 16  # levels with nodes of their own: what is below them is one name, else a deep topic costs 300 bytes a level
_STALE_MAX = 1000  # entries of replaced messages before they are cleared out
_ROUNDS_MAX = 20  # of looking again for messages that are being replaced; the subscriber gets their replacements, too


class Retained:
    """A retained message and the user that published it, whose right to do so may be checked again."""

    __slots__ = ("is_on_disk", "message", "payload_bytes", "size_bytes", "stored_at", "user_name")

    def __init__(self, message: Message, user_name: str | None, stored_at: float, is_on_disk: bool = False) -> None:
        self.message = _without_payload(message) if is_on_disk else message
        self.user_name = user_name
        self.stored_at = stored_at  # wall-clock seconds
        self.is_on_disk = is_on_disk  # payload and properties are not in memory
        self.payload_bytes = len(message.payload)
        self.size_bytes = message.cost() + PLACE_BYTES  # what it counts for in ``bytes_max``

    @property
    def number(self) -> int:
        """When it was stored, in microseconds; with several cores, the number that says which message of a topic is newer."""
        return round(self.stored_at * 1e6)

    @property
    def memory_bytes(self) -> int:
        """Bytes of payload and properties that are in memory."""
        return _content_bytes(self.message)


class _TopicNode:
    """A topic level; below the last one that has a node of its own, the whole rest of a topic."""

    __slots__ = ("below", "held")

    def __init__(self) -> None:
        self.below: dict[bytes, _TopicNode] | None = None
        self.held: Retained | None = None


class RetainedStore:
    """Retained messages, bounded by ``messages_max`` and ``bytes_max`` (0: no bound)."""

    def __init__(self, messages_max: int, bytes_max: int = 0) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.payload_bytes = 0
        self.memory_bytes = 0  # of payloads and properties in memory
        self.reserved_bytes = 0  # for messages that are on their way to the disk
        self._bytes = self._levels = 0
        self.on_expired: Callable[[bytes], None] | None = None  # called so that its row is removed, too
        self._own = 0  # messages of $-topics, which clients cannot publish to
        self._by_topic: dict[bytes, Retained] = {}
        self._root = _TopicNode()
        self._expiring: list[tuple[float, bytes]] = []  # a heap; entries about messages that were replaced stay for a while

    def __len__(self) -> int:
        return len(self._by_topic)

    @property
    def size_bytes(self) -> int:
        """What all messages count for in ``bytes_max``: their bytes, and the memory of the index."""
        return self._bytes + self._levels * LEVEL_BYTES

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
        """Whether it may be stored: the store is not full, or it replaces the topic's last one."""
        if message.topic.startswith(b"$"):  # the broker's own messages do not count
            return True
        replaced = self._by_topic.get(message.topic)
        if replaced is None and self.messages_max and len(self._by_topic) - self._own >= self.messages_max:
            return False
        more = self.bytes_of(message) - (replaced.size_bytes if replaced is not None else 0)
        return not self.bytes_max or more <= 0 or self.size_bytes + self.reserved_bytes + more <= self.bytes_max

    def bytes_of(self, message: Message) -> int:
        """The bytes that a message would count towards the limit."""
        node: _TopicNode | None = self._root
        levels = 0
        for level in message.topic.split(b"/", _DEPTH_MAX):
            node = node.below.get(level) if node is not None and node.below is not None else None
            levels += node is None
        return message.cost() + PLACE_BYTES + levels * LEVEL_BYTES

    def fits_in_memory(self, message: Message) -> bool:
        """Whether it may be kept in memory; what does not fit must be on disk before it is ``put``."""
        size = _content_bytes(message)
        return size <= SMALL_BYTES_MAX and self.memory_bytes + size <= MEMORY_BYTES_MAX

    def put(self, message: Message, user_name: str | None, stored_at: float = 0.0, *, is_on_disk: bool = False) -> None:
        """Replace the topic's message; call ``has_place`` first. ``stored_at`` 0: now.

        ``is_on_disk``: its row is written, so that only small messages stay in memory.
        """
        topic = message.topic
        replaced = self._by_topic.get(topic)
        if replaced is None and topic.startswith(b"$"):
            self._own += 1
        if replaced is not None:
            self._count(replaced, -1)
        held = Retained(message, user_name, stored_at or time(), is_on_disk and not self.fits_in_memory(message))
        self._by_topic[topic] = held
        self._count(held, 1)
        node = self._root
        for level in topic.split(b"/", _DEPTH_MAX):
            if node.below is None:
                node.below = {}
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _TopicNode()
                self._levels += 1
            node = below
        node.held = held
        if message.expires_at:
            self._note_expiry(message)

    def _count(self, held: Retained, sign: int) -> None:
        self.payload_bytes += sign * held.payload_bytes
        self.memory_bytes += sign * held.memory_bytes
        self._bytes += sign * held.size_bytes

    def _note_expiry(self, message: Message) -> None:
        if len(self._expiring) > len(self._by_topic) * 2 + _STALE_MAX:
            held = (each.message for each in self._by_topic.values())
            self._expiring = [(each.expires_at, each.topic) for each in held if each.expires_at]
            heapq.heapify(self._expiring)
        else:
            heapq.heappush(self._expiring, (message.expires_at, message.topic))

    def expire(self, now: float, count_max: int) -> int:
        """Remove expired messages, checking at most ``count_max``; returns the number removed."""
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
        self._count(removed, -1)
        self._own -= topic.startswith(b"$")
        path = [self._root]
        levels = topic.split(b"/", _DEPTH_MAX)
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
            self._levels -= 1
        return True

    def may_match(self, topic_filter: bytes) -> bool:
        """False if there is certainly no message for this filter: then there is nothing to search for."""
        if b"+" in topic_filter or b"#" in topic_filter:
            return len(self._by_topic) > (0 if topic_filter[:1] == b"$" else self._own)
        return topic_filter in self._by_topic

    def match(self, topic_filter: bytes) -> Iterator[Retained | None]:
        """The messages that match, one at a time, and None for each stretch of the search without one.

        Changes made meanwhile may or may not be seen. Expired messages are skipped.
        """
        if b"+" not in topic_filter and b"#" not in topic_filter:
            held = self.get(topic_filter)
            if held is not None:
                yield held
            return
        levels, rest = _split(topic_filter)
        # Each open level of the walk is a list of its own, so that the tree may change while a slow client is served.
        walk: list[tuple[Iterator[_TopicNode], int]] = [(iter((self._root,)), 0)]
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
            if depth == _DEPTH_MAX and rest:
                walk.append((_matching(list(node.below.items()), rest), depth + 1))
            elif level in (b"#", b"+"):
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

    __slots__ = ("_later", "_messages", "_rounds", "_unread", "is_waiting", "subscription")

    def __init__(self, messages: Iterator[Retained | None], subscription: Subscription) -> None:
        self._messages = messages
        self.subscription = subscription
        self.is_waiting = False  # until the pause of ``begin_again`` is over, or the source is ready
        self._later: list[Retained] = []
        self._unread: Retained | None = None
        self._rounds = 0

    def put_off(self, held: Retained) -> None:
        """It cannot be read now, because another message is about to replace it: try again after the others."""
        self._later.append(held)

    def wait_for(self, held: Retained) -> None:
        """The log cannot be read now: continue with this message after a while."""
        self._unread = held
        self.is_waiting = True

    def next(self, end: object) -> object:
        """The next message, None after a stretch of the search that found nothing, or ``end``; may raise Unavailable."""
        held, self._unread = self._unread, None
        return next(self._messages, end) if held is None else held

    def await_source(self, wake: Callable[[], None]) -> None:
        """Nothing was found: if that is because the source is not ready, wait; ``wake`` is called when it is."""
        messages = self._messages
        if isinstance(messages, RetainedSearch) and messages.is_waiting:
            self.is_waiting = True
            messages.when_ready(wake)

    @property
    def is_over(self) -> bool:
        """Whether it is known that nothing is left, without asking for it."""
        if self._later or self._unread is not None:
            return False
        return isinstance(self._messages, RetainedSearch) and self._messages.is_over

    def pause(self) -> None:
        """The source is unavailable: go on after a while."""
        self.is_waiting = True

    def close(self) -> None:
        """The subscription has ended or was renewed: what its source was asked for is not needed."""
        if isinstance(self._messages, RetainedSearch):
            self._messages.close()

    def begin_again(self) -> bool:
        """All others were served: continue later with postponed messages; False if there are none, or after too many attempts."""
        if not self._later or self._rounds >= _ROUNDS_MAX:
            return False
        self._rounds += 1
        self.is_waiting = True
        self._messages, self._later = iter(self._later), []
        return True


def _content_bytes(message: Message) -> int:
    return len(message.payload) + len(message.properties)


def _without_payload(message: Message) -> Message:
    """A copy without payload, enough to find the message and to expire it."""
    left = Message(message.topic, b"", message.qos, message.retain, message.publisher)
    left.set_properties(b"", message.expires_at, -1)
    return left


def _split(topic_filter: bytes) -> tuple[list[bytes], str]:
    """The levels of a filter as nodes have them, and a filter for the rest if that has wildcards."""
    levels = topic_filter.split(b"/", _DEPTH_MAX)
    rest = levels[-1] if len(levels) > _DEPTH_MAX else b""
    if rest == b"#" or (b"+" not in rest and b"#" not in rest):
        return levels, ""
    return levels, f"rest/{rest.decode()}"


def _matching(below: list[tuple[bytes, _TopicNode]], rest: str) -> Iterator[_TopicNode]:
    """A node for each name, an empty one if the name does not match, so that the search can pause."""
    nowhere = _TopicNode()
    for name, node in below:
        yield node if matches(rest, f"rest/{name.decode()}") else nowhere


def _is_expired(held: Retained) -> bool:
    return held.message.seconds_left() == 0
