"""From a topic to its destinations.

Exact subscriptions live in a dict keyed by topic, those with wildcards in a trie. What a topic resolves to, a *route*, is
cached: it is rebuilt when an exact subscription of that very topic changes, or after any wildcard subscription has changed.
Clients that come and go with exact topics therefore never empty the cache. The cache has two halves; when the fresh one is
full the aged one is let go, which keeps what is used and bounds the rest.

``version`` rises with every change, so that whoever keeps a route may go on using it while the number stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from braidmq.lane.scanner import topic_error

# A QoS that no message has.
NEVER = 3
# What the inspector says of a topic that belongs into history, beside the flags of its own.
HISTORY = 1 << 16

# A cache of topics of 64 KiB would be all of the node's memory: longer ones than this are looked up each time.
CACHED_TOPIC_BYTES_MAX = 512


class Subscription:
    """One destination: the flow of a session, or the one that stands for a group; at most one per flow and filter."""

    __slots__ = (
        "echo", "flow", "group", "identifiers", "is_behind", "no_local", "prompt", "qos", "retain_as_published", "topic_filter",
    )  # fmt: skip

    def __init__(
        self,
        flow: Any,
        topic_filter: bytes,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        group: Any = None,
    ) -> None:
        self.flow = flow
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers  # as encoded PUBLISH properties
        self.group = group
        self.echo: Subscription | None = None  # if no_local: what the session's own messages are delivered by all the same
        self.is_behind = False  # it still reads the log: recorded messages reach it there
        self.prompt: Subscription | None = None  # if is_behind: what recorded messages are delivered by live all the same


class Route:
    """The destinations of one topic, at most one for each session."""

    __slots__ = ("flags", "keep_qos", "record_qos", "stale", "targets", "topic", "wild_version")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.targets: list[Subscription] = []
        self.stale = True  # an exact subscription has changed
        self.wild_version = -1
        self.flags = 0  # what the inspector said; not 0: the message takes the long way
        self.record_qos = NEVER  # the least QoS that goes into history
        self.keep_qos = NEVER  # the least QoS that is recorded, for history or for a durable session


class TrieNode:
    """A level of the wildcard filters."""

    __slots__ = ("children", "here", "multi", "single")

    def __init__(self) -> None:
        # Most levels have one of these, and a filter may have a hundred levels: they are made on first use.
        self.children: dict[bytes, TrieNode] | None = None
        self.single: TrieNode | None = None  # "+"
        self.here: dict[object, Subscription] | None = None  # filters that end at this level
        self.multi: dict[object, Subscription] | None = None  # filters that end in "#" below it

    def below(self, level: bytes) -> TrieNode | None:
        """The node of a level that is no wildcard."""
        return None if self.children is None else self.children.get(level)

    def bucket(self, is_multi: bool) -> dict[object, Subscription]:
        """The subscriptions whose filters end here, or in "#" below it."""
        if is_multi:
            if self.multi is None:
                self.multi = {}
            return self.multi
        if self.here is None:
            self.here = {}
        return self.here

    def is_empty(self) -> bool:
        """Nothing hangs here any more."""
        return not (self.children or self.here or self.multi or self.single is not None)


def _merge(first: Subscription, second: Subscription) -> Subscription:
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
        # [MQTT-3.8.3-3] takes out the one subscription that asked for it; the other still gets the session's own messages.
        echoes = [echo for echo in (_echo(first), _echo(second)) if echo is not None]
        if echoes:
            merged.echo = echoes[0] if len(echoes) == 1 else _merge(echoes[0], echoes[1])
    if first.is_behind or second.is_behind:
        merged.is_behind = True
        prompts = [prompt for prompt in (_prompt(first), _prompt(second)) if prompt is not None]
        if prompts:
            merged.prompt = prompts[0] if len(prompts) == 1 else _merge(prompts[0], prompts[1])
    return merged


def merge(subscriptions: list[Subscription]) -> Subscription | None:
    """One copy for all of these subscriptions of a session; None if there are none."""
    merged: Subscription | None = None
    for subscription in subscriptions:
        merged = subscription if merged is None else _merge(merged, subscription)
    return merged


def _prompt(subscription: Subscription) -> Subscription | None:
    return subscription.prompt if subscription.is_behind else subscription


def _echo(subscription: Subscription) -> Subscription | None:
    return subscription.echo if subscription.no_local else subscription


class RouteTable:
    """All subscriptions of a node and the cache of routes over them."""

    __slots__ = (
        "_aged", "_cache_max", "_exact", "_fresh", "_root", "count", "filters", "history_qos", "inspector", "levels_max",
        "version", "visited", "wild_version",
    )  # fmt: skip

    def __init__(self, levels_max: int, cache_max: int = 200_000) -> None:
        self._exact: dict[bytes, Subscription | dict[object, Subscription]] = {}
        self._root = TrieNode()
        self._fresh: dict[bytes, Route] = {}
        self._aged: dict[bytes, Route] = {}
        self._cache_max = cache_max // 2
        self.levels_max = levels_max  # after a change call ``refresh``
        self.version = 0
        self.wild_version = 0
        self.count = 0
        self.filters = 0  # different ones
        self.visited = 0  # nodes on the way to routes that had to be built, ever: what resolving costs
        self.inspector: Callable[[bytes], int] | None = None  # gives a route's flags
        self.history_qos = NEVER  # the least QoS that is recorded where the inspector says HISTORY

    def add(self, subscription: Subscription) -> bool:
        """Add or replace the flow's subscription to this filter; True if it is new."""
        topic_filter = subscription.topic_filter
        flow = subscription.flow
        if b"+" in topic_filter or b"#" in topic_filter:
            node, multi = self._node(topic_filter)
            bucket = node.bucket(multi)
            self.filters += not bucket
            is_new = flow not in bucket
            bucket[flow] = subscription
            self.wild_version += 1
        else:
            is_new = self._add_exact(topic_filter, flow, subscription)
        self.version += 1
        self.count += is_new
        return is_new

    def _add_exact(self, topic: bytes, flow: object, subscription: Subscription) -> bool:
        held = self._exact.get(topic)
        if held is None:
            is_new = True
            self.filters += 1
            self._exact[topic] = subscription
        elif isinstance(held, dict):
            is_new = flow not in held
            held[flow] = subscription
        elif held.flow is flow:
            is_new = False
            self._exact[topic] = subscription
        else:
            is_new = True
            self._exact[topic] = {held.flow: held, flow: subscription}
        self._spoil(topic)
        return is_new

    def _spoil(self, topic: bytes) -> None:
        route = self._fresh.get(topic) or self._aged.get(topic)
        if route is not None:
            route.stale = True

    def _node(self, topic_filter: bytes) -> tuple[TrieNode, bool]:
        levels = topic_filter.split(b"/")
        multi = levels[-1] == b"#"
        if multi:
            levels.pop()
        node = self._root
        for level in levels:
            if level == b"+":
                if node.single is None:
                    node.single = TrieNode()
                node = node.single
            else:
                below = node.below(level)
                if below is None:
                    below = TrieNode()
                    if node.children is None:
                        node.children = {}
                    node.children[level] = below
                node = below
        return node, multi

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Take the flow's subscription to this filter out; False if there was none."""
        if b"+" in topic_filter or b"#" in topic_filter:
            found = self._remove_wild(topic_filter, flow)
            self.wild_version += found
        else:
            found = self._remove_exact(topic_filter, flow)
        self.version += found
        self.count -= found
        return found

    def _remove_exact(self, topic: bytes, flow: object) -> bool:
        held = self._exact.get(topic)
        if held is None:
            return False
        if isinstance(held, dict):
            if held.pop(flow, None) is None:
                return False
            if len(held) == 1:
                self._exact[topic] = next(iter(held.values()))
        elif held.flow is flow:
            self.filters -= 1
            del self._exact[topic]
        else:
            return False
        self._spoil(topic)
        return True

    def _remove_wild(self, topic_filter: bytes, flow: object) -> bool:
        levels = topic_filter.split(b"/")
        multi = levels[-1] == b"#"
        if multi:
            levels.pop()
        path = [self._root]
        for level in levels:
            node = path[-1]
            below = node.single if level == b"+" else node.below(level)
            if below is None:
                return False
            path.append(below)
        node = path[-1]
        bucket = node.bucket(multi)
        if bucket.pop(flow, None) is None:
            return False
        self.filters -= not bucket
        for level in reversed(levels):
            if not path.pop().is_empty():
                break
            if level == b"+":
                path[-1].single = None
            elif path[-1].children is not None:
                del path[-1].children[level]
        return True

    def match_wild(self, topic: bytes) -> list[Subscription]:
        """The wildcard subscriptions that a topic matches, in no order."""
        found: list[Subscription] = []
        root = self._root
        levels = topic.split(b"/")
        if topic[:1] == b"$":  # [MQTT-4.7.2-1]: a leading wildcard does not reach these
            first = root.below(levels[0])
            frontier = [] if first is None else [first]
            depth = 1
        else:
            frontier = [root]
            depth = 0
        for i in range(depth, len(levels)):
            if not frontier:
                return found
            level = levels[i]
            self.visited += len(frontier)
            reached: list[TrieNode] = []
            for node in frontier:
                if node.multi:
                    found.extend(node.multi.values())
                if node.single is not None:
                    reached.append(node.single)
                below = node.below(level)
                if below is not None:
                    reached.append(below)
            frontier = reached
        for node in frontier:
            if node.here:
                found.extend(node.here.values())
            if node.multi:  # "a/#" matches "a" too
                found.extend(node.multi.values())
        return found

    def resolve(self, topic: bytes) -> Route | None:
        """The route of a topic, fresh; None if the topic is not a valid one (``topic_error`` says why)."""
        route = self._fresh.get(topic)
        if route is None:
            route = self._aged.get(topic)
            if route is None:
                if topic_error(topic, self.levels_max):
                    return None
                route = Route(topic)
                self.visited += 1
                if len(topic) > CACHED_TOPIC_BYTES_MAX:
                    self._build(route)
                    return route
            if len(self._fresh) >= self._cache_max:
                # Routes let go here are no longer told of changes: the version keeps others from using them.
                self._aged = self._fresh
                self._fresh = {}
                self.version += 1
            self._fresh[topic] = route
        if route.stale or route.wild_version != self.wild_version:
            self._build(route)
        return route

    def _build(self, route: Route) -> None:
        topic = route.topic
        found = self.match_wild(topic)
        held = self._exact.get(topic)
        if held is not None:
            if isinstance(held, dict):
                found.extend(held.values())
            else:
                found.append(held)
        if len(found) > 1:
            merged: dict[object, Subscription] = {}
            for subscription in found:
                # A group has a flow of its own: a member gets its share beside what it subscribed to itself.
                other = merged.get(subscription.flow)
                merged[subscription.flow] = subscription if other is None else _merge(other, subscription)
            found = list(merged.values())
        route.targets = found
        route.stale = False
        route.wild_version = self.wild_version
        flags = 0 if self.inspector is None else self.inspector(topic)
        route.flags = flags & ~HISTORY
        route.record_qos = self.history_qos if flags & HISTORY else NEVER
        route.keep_qos = route.record_qos
        if route.keep_qos > 1:
            for subscription in found:
                if subscription.flow.is_durable:
                    route.keep_qos = 1
                    break

    def refresh(self) -> None:
        """Forget every cached route: what the inspector says, or which topics are valid, has changed."""
        self._fresh = {}
        self._aged = {}
        self.version += 1

    def subscriptions(self) -> Iterator[Subscription]:
        """Every subscription; the table must not change meanwhile."""
        for held in self._exact.values():
            if isinstance(held, dict):
                yield from held.values()
            else:
                yield held
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield from (node.here or {}).values()
            yield from (node.multi or {}).values()
            nodes.extend((node.children or {}).values())
            if node.single is not None:
                nodes.append(node.single)
