"""Which member of a group gets a message, and what happens to its unacknowledged messages."""

from __future__ import annotations

from collections import Counter

import pytest

from braidmq.broker.shared.group import Groups, Strategy, group_of
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.routes import Route
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Puback, Publish, Pubrec
from tests.support.fakes.group_services import FakeGroupServices
from tests.support.present import present
from tests.support.simulator.lane import Bench, FakeChannel


@pytest.fixture
def bench() -> Bench:
    return Bench()


def resolved(bench: Bench) -> Route:
    route = bench.routes.resolve(b"t")
    assert route is not None
    return route


class Members:
    """A group over ``t`` with members that are connected unless they leave."""

    def __init__(self, bench: Bench, strategy: Strategy, names: str = "abc", qos: int = 2, window: int = 100) -> None:
        self.bench = bench
        self.groups = Groups(bench.routes, strategy, FakeGroupServices(bench))
        self.flows: dict[str, LogFlow] = {}
        self.channels: dict[str, FakeChannel] = {}
        for name in names:
            flow = self.flows[name] = LogFlow(name, bench.state, 10, 1_000_000, False, False)
            self.channels[name] = bench.channel(flow, MQTT5, window)
            member, is_new = self.groups.join("g", flow, b"t", qos, False, b"")
            assert is_new
            self.group = present(group_of(member))

    def publish(self, qos: int = 1, publisher: str = "p", payload: bytes = b"") -> None:
        route = self.bench.routes.resolve(b"t")
        assert route is not None
        self.bench.lane.publish(Message(b"t", payload, qos, False, publisher), route, None)
        self.bench.lane.flush()

    def received(self) -> dict[str, list[bytes]]:
        """Payloads by member since the last call; those who got nothing are left out."""
        got: dict[str, list[bytes]] = {}
        for name, channel in self.channels.items():
            payloads = [packet.payload for packet in channel.sent() if isinstance(packet, Publish)]
            if payloads:
                got[name] = payloads
        return got

    def leave(self, name: str) -> None:
        """Lose the connection and give back what was not acknowledged, as the broker does."""
        self.flows[name].detach()
        del self.channels[name]
        self.groups.redispatch(self.flows[name], is_over=False)
        self.bench.lane.flush()


def test_round_robin_visits_members_in_order(bench: Bench) -> None:
    members = Members(bench, "round_robin")

    for i in range(6):
        members.publish(payload=b"%d" % i)

    assert members.received() == {"a": [b"0", b"3"], "b": [b"1", b"4"], "c": [b"2", b"5"]}


def test_random_reaches_every_member(bench: Bench) -> None:
    members = Members(bench, "random")

    for _ in range(99):
        members.publish()

    counts = Counter({name: len(got) for name, got in members.received().items()})
    assert counts.total() == 99
    assert set(counts) == {"a", "b", "c"}  # a member is missed once in 10^17


def test_sticky_stays_with_one_member_until_it_leaves(bench: Bench) -> None:
    members = Members(bench, "sticky")

    for _ in range(5):
        members.publish(qos=0)
    ((first, _),) = members.received().items()
    members.leave(first)
    for _ in range(5):
        members.publish(qos=0)

    ((second, got),) = members.received().items()
    assert second != first
    assert len(got) == 5


def test_sticky_stays_with_a_member_that_resubscribes(bench: Bench) -> None:
    members = Members(bench, "sticky")
    members.publish(qos=0)
    ((first, _),) = members.received().items()

    _, is_new = members.groups.join("g", members.flows[first], b"t", 0, False, b"")
    members.publish(qos=0)

    assert not is_new
    assert list(members.received()) == [first]


@pytest.mark.parametrize("strategy", ["hash_clientid", "hash_topic"])
def test_hashing_sends_the_same_key_to_the_same_member(bench: Bench, strategy: Strategy) -> None:
    members = Members(bench, strategy, "abcdefgh")
    chosen: dict[str, set[str]] = {}

    for _ in range(3):
        for publisher in map(str, range(40)):
            members.publish(0, publisher)
            chosen.setdefault(publisher, set()).update(members.received())

    assert all(len(names) == 1 for names in chosen.values())
    used = set().union(*chosen.values())
    assert len(used) == 1 if strategy == "hash_topic" else len(used) > 3


@pytest.mark.parametrize("strategy", ["round_robin", "random", "sticky", "hash_clientid", "hash_topic"])
def test_an_offline_member_is_skipped_while_another_is_connected(bench: Bench, strategy: Strategy) -> None:
    members = Members(bench, strategy)
    members.leave("a")
    members.leave("b")

    for qos in (0, 1, 2):
        members.publish(qos)

    assert {name: len(got) for name, got in members.received().items()} == {"c": 3}


def test_an_offline_member_gets_the_message_if_none_is_connected(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    members.leave("a")
    members.leave("b")

    members.publish(1)
    members.publish(0)

    assert sum(flow.queue_messages() for flow in members.flows.values()) == 1


def test_a_slow_member_is_skipped(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab", window=1)
    slow = Subscription(members.flows["a"], b"#", 1)
    for _ in range(8):
        members.flows["a"].deliver(Message(b"x", b"", 1, False, "p"), slow, 1, False)
    assert members.flows["a"].is_congested()

    members.publish(payload=b"1")

    assert members.received()["b"] == [b"1"]


def test_the_qos_is_that_of_the_member(bench: Bench) -> None:
    members = Members(bench, "round_robin", "a", qos=1)

    members.publish(2)
    members.publish(0)

    got = [packet.qos for packet in members.channels["a"].sent() if isinstance(packet, Publish)]
    assert got == [1, 0]


def test_unacknowledged_messages_of_a_leaving_member_go_to_another(bench: Bench) -> None:
    members = Members(bench, "sticky", "ab", window=2)
    for i in range(4):
        members.publish(payload=b"%d" % i)
    ((first, got),) = members.received().items()
    assert got == [b"0", b"1"]
    members.channels[first].read(encode(Puback(1), MQTT5))
    members.received()

    members.leave(first)

    ((second, got),) = members.received().items()
    assert second != first
    assert got == [b"1", b"2"]
    assert members.flows[first].inflight_messages() == members.flows[first].queue_messages() == 0
    members.channels[second].read(encode(Puback(1), MQTT5))
    assert members.received() == {second: [b"3"]}


def test_a_sent_qos_2_message_stays_with_its_session(bench: Bench) -> None:
    members = Members(bench, "sticky", "ab", window=2)
    for i in range(3):
        members.publish(2, payload=b"%d" % i)
    ((first, _),) = members.received().items()
    members.channels[first].read(encode(Pubrec(1), MQTT5))

    members.leave(first)

    assert list(members.received().values()) == [[b"2"]]
    assert members.flows[first].inflight_messages() == 2


def test_a_session_keeps_its_messages_if_no_other_member_can_take_them(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    members.leave("a")
    members.publish(payload=b"1")
    members.leave("b")

    assert members.flows["b"].inflight_messages() == 1
    back = bench.channel(members.flows["b"], MQTT5)
    assert [packet.payload for packet in back.sent() if isinstance(packet, Publish)] == [b"1"]


def test_an_ended_session_hands_its_messages_to_an_offline_member(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    members.leave("a")
    members.publish(payload=b"1")
    members.flows["b"].detach()

    assert members.groups.redispatch(members.flows["b"], is_over=True) == 1

    assert members.flows["a"].queue_messages() == 1


def test_messages_of_other_subscriptions_are_not_redispatched(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    own = Subscription(members.flows["a"], b"x", 1)
    members.flows["a"].deliver(Message(b"x", b"own", 1, False, "p"), own, 1, False)

    members.leave("a")

    assert members.received() == {}
    assert members.flows["a"].inflight_messages() == 1


def test_a_redispatched_message_has_its_remaining_expiry(bench: Bench) -> None:
    members = Members(bench, "sticky", "ab")
    message = Message(b"t", b"1", 1, False, "p")
    route = bench.routes.resolve(b"t")
    assert route is not None
    message.set_properties(b"\x02\x00\x00\x03\xe8", 1.0, 1)  # 1000 s, long over
    bench.lane.publish(message, route, None)
    bench.lane.flush()
    ((first, _),) = members.received().items()

    members.leave(first)

    assert members.received() == {}
    assert bench.state.counters.dropped_expired == 1


def test_a_redispatched_message_has_the_retain_flag_of_its_new_member(bench: Bench) -> None:
    members = Members(bench, "sticky", "a")
    bench.lane.publish(Message(b"t", b"1", 1, True, "p"), resolved(bench), None)
    bench.lane.flush()
    (first,) = [packet for packet in members.channels["a"].sent() if isinstance(packet, Publish)]
    flow = LogFlow("b", bench.state, 10, 1_000_000, False, False)
    channel = bench.channel(flow, MQTT5)
    members.groups.join("g", flow, b"t", 1, True, b"")

    members.leave("a")

    (second,) = [packet for packet in channel.sent() if isinstance(packet, Publish)]
    assert (first.retain, second.retain) == (False, True)


def test_a_group_ends_with_its_last_member(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    assert (len(members.groups), members.groups.members, bench.routes.count) == (1, 2, 1)

    members.groups.leave(members.group, members.flows["a"])
    members.groups.leave(members.group, members.flows["a"])
    assert (len(members.groups), members.groups.members, bench.routes.count) == (1, 1, 1)

    members.groups.leave(members.group, members.flows["b"])
    assert (len(members.groups), members.groups.members, bench.routes.count) == (0, 0, 0)
    route = bench.routes.resolve(b"t")
    assert route is not None
    assert route.targets == []


def test_groups_of_different_names_each_get_the_message(bench: Bench) -> None:
    members = Members(bench, "round_robin", "ab")
    other = bench.flow("other")
    channel = bench.channel(other, MQTT5)
    members.groups.join("h", other, b"t", 1, False, b"")

    members.publish(payload=b"1")

    assert [packet.payload for packet in channel.sent() if isinstance(packet, Publish)] == [b"1"]
    assert list(members.received()) == ["a"]


def test_a_changed_strategy_applies_to_existing_groups(bench: Bench) -> None:
    members = Members(bench, "round_robin")
    members.groups.use("sticky")

    for _ in range(4):
        members.publish()

    assert len(members.received()) == 1


def test_searching_among_offline_members_counts_as_work(bench: Bench) -> None:
    members = Members(bench, "round_robin", "abcdef")
    for name in "abcde":
        members.leave(name)
    bench.state.work = 0

    members.publish()

    assert bench.state.work >= 6


def test_a_member_of_many_groups_gets_waiting_messages_over_several_turns() -> None:
    bench = Bench()
    services = FakeGroupServices(bench)
    groups = Groups(bench.routes, "round_robin", services)
    absent = LogFlow("absent", bench.state, 1000, 1_000_000, False, False)
    arrived = LogFlow("arrived", bench.state, 1000, 1_000_000, False, False)
    for number in range(2000):
        groups.join(f"g{number}", absent, b"t/%d" % number, 1, False, b"")
    for number in (0, 1999):
        groups.join(f"g{number}", arrived, b"t/%d" % number, 1, False, b"")
        route = bench.routes.resolve(b"t/%d" % number)
        assert route is not None
        bench.lane.publish(Message(b"t/%d" % number, b"", 1, False, "p"), route, None)
    channel = bench.channel(arrived, MQTT5)

    groups.relieve_all(groups)
    assert len(services.waiting) == 1, "the rest is for later turns"
    services.turn()
    bench.lane.flush()

    assert sorted(packet.topic for packet in channel.sent() if isinstance(packet, Publish)) == ["t/0", "t/1999"]


@pytest.mark.parametrize("has_other_member", [False, True])
def test_a_durable_member_that_moves_leaves_the_row_of_its_group(bench: Bench, has_other_member: bool) -> None:
    services = FakeGroupServices(bench)
    groups = Groups(bench.routes, "round_robin", services)
    moving = LogFlow("moving", bench.state, 10, 1_000_000, False, True)
    member, _ = groups.join("g", moving, b"t", 1, False, b"")
    group = present(group_of(member))
    if has_other_member:
        groups.join("g", LogFlow("other", bench.state, 10, 1_000_000, False, False), b"t", 1, False, b"")

    groups.leave(group, moving, keeps_row=True)

    assert [(row.name, row.topic_filter, row.positions) for row in services.rows] == [("g", "t", tuple(bench.state.marks))]
    assert services.forgotten == []
    assert (len(groups), groups.members) == (has_other_member, has_other_member)
