"""Routes: the destinations of each topic.

Exact subscriptions are in a dict keyed by topic, those with wildcards in `filter_trie`. The result of resolving a topic, a
*route*, is cached: it is rebuilt when an exact subscription of that topic changes, or after any wildcard subscription has
changed. So clients that connect and disconnect with exact topics never empty the cache. The cache has two halves; when the fresh
one is full the aged one is discarded, which keeps used routes and bounds the rest.

``version`` rises with every change; a stored route stays valid as long as the number is unchanged.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator

from braidmq.lane.path.parser import topic_error
from braidmq.lane.routing.delivery_rules import merge_two
from braidmq.lane.routing.filter_trie import FilterTrie
from braidmq.lane.routing.subscription import Subscription

# A QoS that no message has.
NEVER = 3
# The inspector's flag for a topic that belongs to history.
HISTORY = 1 << 16
# Set by the table itself: the route has too many destinations for one turn of the loop.
WIDE = 1 << 17

# The cost of a shared group, which selects a member, in sessions.
GROUP_WEIGHT = 20

# Python's garbage collector visits every entry of a young list and waits for the memory of each: 40,000 entries took 24 ms. Lists
# longer than this are hidden from it. They belong to no cycle that only it could free: routes are rebuilt or aged out.
COLLECTED_MAX = 1000
_hide = ctypes.pythonapi.PyObject_GC_UnTrack
_hide.argtypes = [ctypes.py_object]
_hide.restype = None

# A cache of topics of 64 KiB would use up the node's memory, so topics longer than this are looked up each time.
CACHED_TOPIC_BYTES_MAX = 512


# These describe the node itself: a client gets those of the node that it is connected to, and of no other.
OWN_TOPICS = b"$SYS/broker/"


class Route:
    """The destinations of one topic, at most one for each session."""

    __slots__ = ("entry_qos", "flags", "keep_qos", "record_qos", "stale", "targets", "topic", "wild_version")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.targets: list[Subscription] = []
        self.stale = True  # an exact subscription has changed
        self.wild_version = -1
        self.flags = 0  # from the inspector; not 0: the message takes the slow path
        self.record_qos = NEVER  # the lowest QoS that history records
        self.keep_qos = NEVER  # the lowest QoS that is recorded, for history, a durable session or another node
        self.entry_qos = NEVER  # the same for messages of other nodes, whose acknowledgements wait for the nodes that want them


def _one_each(found: list[Subscription]) -> list[Subscription]:
    """One subscription for each session and for each group."""
    # A group has a flow of its own and one filter: a member receives its share in addition to its own subscriptions.
    targets: list[Subscription] = []
    merged: dict[object, Subscription] = {}
    for subscription in found:
        if subscription.group is not None:
            targets.append(subscription)
        else:
            other = merged.get(subscription.flow)
            if other is not subscription:  # the filters of a peer share one
                merged[subscription.flow] = subscription if other is None else merge_two(other, subscription)
    targets.extend(merged.values())
    return targets


def _has_peer(targets: list[Subscription]) -> bool:
    """Whether another node is among the destinations."""
    return any(subscription.flow.is_peer for subscription in targets)


class RouteTable:
    """All subscriptions of a node and the cache of routes over them."""

    __slots__ = (
        "_aged", "_cache_max", "_exact", "_fresh", "_wild", "count", "filters", "history_qos", "inspector", "keep_all",
        "keep_for_peers", "levels_max", "remote", "system", "version", "visited", "weight_max", "wild_version",
    )  # fmt: skip

    def __init__(self, levels_max: int, cache_max: int = 200_000) -> None:
        self._exact: dict[bytes, Subscription | dict[object, Subscription]] = {}
        self._wild = FilterTrie()
        self._fresh: dict[bytes, Route] = {}
        self._aged: dict[bytes, Route] = {}
        self._cache_max = cache_max // 2
        self.levels_max = levels_max  # after a change call ``refresh``
        self.version = 0
        self.wild_version = 0
        self.count = 0
        self.filters = 0  # different ones
        self.remote = 0  # filters of other nodes; not in ``count``
        self.system = 0  # subscriptions to topics that begin with "$", and other nodes' filters of such topics
        self.visited = 0  # nodes visited to build routes since the start: the cost of resolving
        self.inspector: Callable[[bytes], int] | None = None  # returns a route's flags
        self.history_qos = NEVER  # the lowest QoS that is recorded where the inspector sets HISTORY
        self.keep_all = False  # everything with QoS 1 or 2 goes to the recorder, except topics that begin with "$"
        self.keep_for_peers = False  # what another node wants is recorded, because acknowledgements do not wait for that node
        self.weight_max = 0  # the total cost of destinations above which a route is WIDE; 0: no bound

    def add(self, subscription: Subscription) -> bool:
        """Add or replace the flow's subscription to this filter; True if it is new."""
        topic_filter = subscription.topic_filter
        flow = subscription.flow
        if b"+" in topic_filter or b"#" in topic_filter:
            is_new = self._add_wild(topic_filter, subscription)
            self.wild_version += 1
        else:
            is_new = self._add_exact(topic_filter, flow, subscription)
        self.version += 1
        self.count += is_new
        if is_new and topic_filter[:1] == b"$":
            self.system += 1
        return is_new

    def _add_wild(self, topic_filter: bytes, subscription: Subscription) -> bool:
        others = self._wild.put(topic_filter, subscription)
        self.filters += others == 0
        return others >= 0

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

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove the flow's subscription to this filter; returns False if there was none."""
        if b"+" in topic_filter or b"#" in topic_filter:
            left = self._wild.remove(topic_filter, flow)
            found = left >= 0
            self.filters -= left == 0
            self.wild_version += found
        else:
            found = self._remove_exact(topic_filter, flow)
        self.version += found
        self.count -= found
        if found and topic_filter[:1] == b"$":
            self.system -= 1
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

    def apply_remote(self, added: Iterable[bytes], removed: Iterable[bytes], subscription: Subscription) -> int:
        """Add and remove filters that another node wants; all of them share the subscription, whose flow is the way there.

        Cached routes are rebuilt once for all of them. Returns the difference in the number of filters.
        """
        flow = subscription.flow
        before = self.remote
        is_wild_changed = is_changed = False
        for topic_filter in removed:
            is_wild = b"+" in topic_filter or b"#" in topic_filter
            if is_wild:
                left = self._wild.remove(topic_filter, flow)
                found = left >= 0
                self.filters -= left == 0
            else:
                found = self._remove_exact(topic_filter, flow)
            if found:
                self.remote -= 1
                self.system -= topic_filter[:1] == b"$"
                is_changed = True
                is_wild_changed = is_wild_changed or is_wild
        for topic_filter in added:
            is_wild = b"+" in topic_filter or b"#" in topic_filter
            is_new = self._add_wild(topic_filter, subscription) if is_wild else self._add_exact(topic_filter, flow, subscription)
            self.remote += is_new
            self.system += is_new and topic_filter[:1] == b"$"
            is_changed = True
            is_wild_changed = is_wild_changed or is_wild
        self.wild_version += is_wild_changed
        self.version += is_changed
        return self.remote - before

    def match_wild(self, topic: bytes) -> list[Subscription]:
        """The wildcard subscriptions that match a topic, in no particular order."""
        visited = self._wild.visited
        found = self._wild.match(topic)
        self.visited += self._wild.visited - visited
        return found

    def resolve(self, topic: bytes) -> Route | None:
        """The current route of a topic; None if the topic is invalid (``topic_error`` says why)."""
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
                # Routes discarded here are no longer marked stale: the changed version keeps others from using them.
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
        if topic.startswith(OWN_TOPICS):
            found = [subscription for subscription in found if not subscription.flow.is_peer]
        if len(found) > 1:
            found = _one_each(found)
        if len(found) > COLLECTED_MAX:
            _hide(found)
        route.targets = found
        route.stale = False
        route.wild_version = self.wild_version
        flags = 0 if self.inspector is None else self.inspector(topic)
        route.flags = flags & ~HISTORY
        if self.weight_max and self._is_wide(found, route.flags > 1):
            route.flags |= WIDE
        route.record_qos = self.history_qos if flags & HISTORY else NEVER
        route.keep_qos = route.record_qos
        if route.keep_qos > 1 and self.keep_all and topic[:1] != b"$":
            route.keep_qos = 1
        elif route.keep_qos > 1:
            for subscription in found:
                if subscription.is_durable:
                    route.keep_qos = 1
                    break
        route.entry_qos = route.keep_qos
        if route.keep_qos > 1 and self.keep_for_peers and _has_peer(found):
            route.keep_qos = 1

    def _is_wide(self, targets: list[Subscription], is_flagged: bool) -> bool:
        count = len(targets)
        if count * GROUP_WEIGHT <= self.weight_max:
            return False
        self.visited += count >> 3  # building the route takes time as well
        if is_flagged:
            return True  # a hook may be called for each of them
        weight = count
        for subscription in targets:
            if subscription.group is not None:
                weight += GROUP_WEIGHT - 1
        return weight > self.weight_max

    def is_known(self) -> bool:
        """Whether every publisher's messages reach all subscriptions: on a single node, as soon as they are added."""
        return True

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back when every publisher's messages reach the subscriptions that were added so far: at once."""
        callback()

    def refresh(self) -> None:
        """Discard every cached route, because the inspector's decisions or the valid topics have changed."""
        self._fresh = {}
        self._aged = {}
        self.version += 1

    def subscriptions(self) -> Iterator[Subscription]:
        """Every subscription; the table must not change during the iteration."""
        for held in self._exact.values():
            if isinstance(held, dict):
                yield from held.values()
            else:
                yield held
        yield from self._wild.values()
