"""Routes against a naive table: every subscription is held against every topic."""

from __future__ import annotations

import gc
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.lane.flows.flow import Flow
from braidmq.lane.routing.routes import COLLECTED_MAX, HISTORY, NEVER, RouteTable
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import matches

# Few levels of few names, so that filters meet topics often.
LEVELS = st.sampled_from(("a", "b", "", "$x"))
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    elif draw(st.integers(0, 9)) == 0:
        return "#"
    return "/".join(levels) or "a"


# For histories even fewer, so that the same topic is resolved before and after a change of its very subscriptions.
SOME_TOPICS = ("a", "b", "a/b", "a/a", "a/b/a", "/", "a/", "$x", "$x/a")
SOME_FILTERS = ("#", "+", "a/#", "a/+", "+/b", "+/+", "a/+/a", "a/b/#", "$x/#", "$x/+", "+/#", "/+")
FILTER = st.sampled_from(SOME_TOPICS + SOME_FILTERS)


class Owner:
    """Stands for a flow."""

    is_durable = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


OWNERS: list[Any] = [Owner(f"flow{i}") for i in range(4)]


class Routes(RuleBasedStateMachine):
    """Adds, removes and resolves in any order; the cache is so small that it turns over all the time."""

    @initialize(cache_max=st.sampled_from((2, 4, 1000)))
    def start(self, cache_max: int) -> None:
        self.table = RouteTable(128, cache_max)
        self.model: dict[tuple[str, Owner], Subscription] = {}

    @rule(
        topic_filter=FILTER,
        owner=st.sampled_from(OWNERS),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        as_published=st.booleans(),
        identifier=st.sampled_from((b"", b"\x0b\x01", b"\x0b\x02")),
    )
    def subscribe(self, topic_filter: str, owner: Owner, qos: int, no_local: bool, as_published: bool, identifier: bytes) -> None:
        subscription = Subscription(cast(Flow, owner), topic_filter.encode(), qos, no_local, as_published, identifier)
        assert self.table.add(subscription) == ((topic_filter, owner) not in self.model)
        self.model[topic_filter, owner] = subscription

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter, owner = key = data.draw(st.sampled_from(sorted(self.model, key=str)))
            assert self.table.remove(topic_filter.encode(), owner)
            del self.model[key]

    @rule(topic_filter=FILTER, owner=st.sampled_from(OWNERS))
    def remove_any(self, topic_filter: str, owner: Owner) -> None:
        was_there = self.model.pop((topic_filter, owner), None) is not None
        assert self.table.remove(topic_filter.encode(), owner) == was_there

    @invariant()
    def every_route_is_right(self) -> None:
        if hasattr(self, "table"):
            for topic in SOME_TOPICS:
                self.resolve(topic)

    def resolve(self, topic: str) -> None:
        route = self.table.resolve(topic.encode())
        assert route is not None
        assert route.topic == topic.encode()
        assert self.targets(route.targets) == self.expected(topic)
        echoes = [each.echo for each in route.targets if each.no_local and each.echo is not None]
        echoes += [each for each in route.targets if not each.no_local]
        assert self.targets(echoes) == self.expected(topic, own=True)

    def expected(self, topic: str, own: bool = False) -> dict[object, tuple[object, ...]]:
        """For each session the highest QoS and all identifiers of what matches.

        ``own``: of what each session published itself, so that subscriptions with No Local do not count.
        """
        found: dict[object, tuple[object, ...]] = {}
        for (topic_filter, owner), each in self.model.items():
            if not matches(topic_filter, topic) or (own and each.no_local):
                continue
            qos, no_local, as_published, identifiers = found.get(owner, (0, False, False, ()))
            found[owner] = (
                max(qos, each.qos),  # type: ignore[call-overload]
                no_local or each.no_local,
                as_published or each.retain_as_published,
                tuple(sorted((*identifiers, *([each.identifiers] if each.identifiers else [])))),  # type: ignore[misc]
            )
        return found

    @staticmethod
    def targets(subscriptions: list[Subscription]) -> dict[object, tuple[object, ...]]:
        found: dict[object, tuple[object, ...]] = {}
        for each in subscriptions:
            assert each.flow not in found, "a session is there twice"
            encoded = each.identifiers
            identifiers = tuple(sorted(encoded[i : i + 2] for i in range(0, len(encoded), 2)))
            found[each.flow] = (each.qos, each.no_local, each.retain_as_published, identifiers)
        return found

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "table"):
            assert self.table.count == len(self.model)
            assert self.table.filters == len({topic_filter for topic_filter, _ in self.model})

    @invariant()
    def every_subscription_is_listed_once(self) -> None:
        if hasattr(self, "table"):
            listed = list(self.table.subscriptions())
            assert len(listed) == len(self.model)
            assert {id(each) for each in listed} == {id(each) for each in self.model.values()}


class RemoteRoutes(RuleBasedStateMachine):
    """Filters of two peers, applied in batches beside a client's own, against a naive set."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(128, 4)
        self.peers = [Subscription(OWNERS[number], b"#", 2) for number in range(2)]
        self.wanted: list[set[str]] = [set(), set()]
        self.own: set[str] = set()

    @rule(peer=st.integers(0, 1), added=st.lists(FILTER, max_size=5), removed=st.lists(FILTER, max_size=5))
    def apply(self, peer: int, added: list[str], removed: list[str]) -> None:
        before = len(self.wanted[peer])
        versions = self.table.version, self.table.wild_version
        self.wanted[peer] -= set(removed)
        self.wanted[peer] |= set(added)

        count = self.table.apply_remote([each.encode() for each in added], [each.encode() for each in removed], self.peers[peer])

        assert count == len(self.wanted[peer]) - before
        assert self.table.version - versions[0] <= 1
        assert self.table.wild_version - versions[1] <= 1

    @rule(topic_filter=FILTER, is_there=st.booleans())
    def change_own(self, topic_filter: str, is_there: bool) -> None:
        if is_there:
            self.table.add(Subscription(OWNERS[2], topic_filter.encode(), 0))
            self.own.add(topic_filter)
        else:
            assert self.table.remove(topic_filter.encode(), OWNERS[2]) == (topic_filter in self.own)
            self.own.discard(topic_filter)

    @invariant()
    def every_route_is_right(self) -> None:
        for topic in SOME_TOPICS:
            route = self.table.resolve(topic.encode())
            assert route is not None
            found = {id(each.flow) for each in route.targets}
            sets = [*self.wanted, self.own]
            assert found == {id(OWNERS[at]) for at, each in enumerate(sets) if any(matches(one, topic) for one in each)}
            assert len(found) == len(route.targets)
            # Filters of a peer that match together need no merged subscription.
            assert all(each in self.peers for each in route.targets if each.flow is not OWNERS[2])

    @invariant()
    def counts_are_right(self) -> None:
        assert self.table.remote == sum(len(each) for each in self.wanted)
        assert self.table.count == len(self.own)
        assert self.table.filters == len(self.own.union(*self.wanted))


TestRemoteRoutes = RemoteRoutes.TestCase
TestRemoteRoutes.settings = settings(settings.get_profile("default"), max_examples=60, stateful_step_count=30, deadline=None)


def test_a_batch_that_changes_nothing_leaves_routes_valid() -> None:
    table = RouteTable(128)

    table.apply_remote([], [b"a", b"a/#"], Subscription(OWNERS[0], b"#", 2))

    assert (table.version, table.wild_version) == (0, 0)


def test_a_batch_of_exact_topics_leaves_other_routes_as_they_are() -> None:
    table = RouteTable(128)
    table.add(Subscription(OWNERS[1], b"t", 0))
    route = table.resolve(b"t")
    assert route is not None
    targets = route.targets

    table.apply_remote([b"a", b"b"], [], Subscription(OWNERS[0], b"#", 2))

    found = table.resolve(b"t")
    assert found is not None
    assert found.targets is targets


def test_a_node_without_a_log_sends_all_qos_1_to_the_recorder_except_system_topics() -> None:
    table = RouteTable(128)
    table.keep_all = True

    routes = [table.resolve(topic) for topic in (b"t", b"$SYS/t")]

    assert [(route.keep_qos, route.record_qos) for route in routes if route is not None] == [(1, NEVER), (NEVER, NEVER)]


def test_a_node_without_a_log_records_qos_0_where_history_does() -> None:
    table = RouteTable(128)
    table.keep_all = True
    table.history_qos = 0
    table.inspector = lambda topic: HISTORY

    route = table.resolve(b"t")

    assert route is not None
    assert (route.keep_qos, route.record_qos) == (0, 0)


TestRoutes = Routes.TestCase
TestRoutes.settings = settings(settings.get_profile("default"), max_examples=60, stateful_step_count=40, deadline=None)


@given(pairs=st.lists(st.tuples(filters() | TOPICS, TOPICS), min_size=1, max_size=20))
def test_matching_follows_the_specification(pairs: list[tuple[str, str]]) -> None:
    table = RouteTable(128)
    for topic_filter, _ in pairs:
        table.add(Subscription(cast(Flow, Owner(topic_filter)), topic_filter.encode(), 0))

    for _, topic in pairs:
        route = table.resolve(topic.encode())
        assert route is not None
        found = {each.topic_filter.decode() for each in route.targets}
        assert found == {topic_filter for topic_filter, _ in pairs if matches(topic_filter, topic)}


def test_an_invalid_topic_has_no_route() -> None:
    table = RouteTable(3)

    assert table.resolve(b"a/b/c") is not None
    for topic in (b"", b"a/+", b"a/b/c/d", b"\xff", b"\0"):
        assert table.resolve(topic) is None


def test_exact_subscriptions_to_other_topics_do_not_rebuild_a_route() -> None:
    table = RouteTable(128)
    table.add(Subscription(OWNERS[0], b"t", 0))
    route = table.resolve(b"t")
    assert route is not None
    targets = route.targets

    table.add(Subscription(OWNERS[1], b"elsewhere", 0))

    assert table.resolve(b"t") is route
    assert route.targets is targets


def test_the_garbage_collector_never_visits_a_long_list_of_destinations() -> None:
    table = RouteTable(128)
    owners: list[Any] = [Owner(f"flow{i}") for i in range(COLLECTED_MAX + 1)]
    for number, owner in enumerate(owners):
        table.add(Subscription(owner, b"+/x" if number % 2 else b"t/x", 0))

    route = table.resolve(b"t/x")

    assert route is not None
    assert len(route.targets) == COLLECTED_MAX + 1
    assert not gc.is_tracked(route.targets)


def test_every_change_raises_the_version_that_validates_cached_routes() -> None:
    table = RouteTable(128, cache_max=4)
    versions = [table.version]

    for change in (
        lambda: table.add(Subscription(OWNERS[0], b"t", 0)),
        lambda: table.add(Subscription(OWNERS[0], b"t", 1)),
        lambda: table.add(Subscription(OWNERS[0], b"+", 1)),
        lambda: table.remove(b"t", OWNERS[0]),
        lambda: table.remove(b"+", OWNERS[0]),
        table.refresh,
    ):
        change()
        versions.append(table.version)

    assert versions == sorted(set(versions))


def test_the_inspector_is_called_when_a_route_is_built_and_after_a_refresh() -> None:
    asked: list[bytes] = []
    table = RouteTable(128)

    def inspect(topic: bytes) -> int:
        asked.append(topic)
        return len(asked)

    table.inspector = inspect
    for _ in range(3):
        route = table.resolve(b"t")
        assert route is not None
        assert route.flags == 1
    version = table.version

    table.refresh()

    assert table.version > version
    route = table.resolve(b"t")
    assert route is not None
    assert route.flags == 2
    assert asked == [b"t", b"t"]


def test_the_route_cache_is_bounded_and_keeps_recently_used_routes() -> None:
    table = RouteTable(128, cache_max=20)
    used = table.resolve(b"used")

    for i in range(1000):
        table.resolve(b"%d" % i)
        assert table.resolve(b"used") is used


def test_removing_the_last_wildcard_leaves_no_nodes() -> None:
    table = RouteTable(128)
    for topic_filter in (b"a/+/c", b"a/#", b"+", b"#", b"a/+/+/#"):
        table.add(Subscription(OWNERS[0], topic_filter, 0))
    for topic_filter in (b"a/+/c", b"a/#", b"+", b"#", b"a/+/+/#"):
        assert table.remove(topic_filter, OWNERS[0])

    assert table.match_wild(b"a/b/c") == []
    assert (table.count, table.filters) == (0, 0)
    assert list(table.subscriptions()) == []
