"""Groups with several cores: each leader lends the messages of its own shards, also to clients homed elsewhere (C5, C25)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.cluster.protocol.blocks import FENCED
from braidmq.cluster.protocol.operations import JoinGroup, LeaveGroup, ReleaseGuest
from braidmq.cluster.remote.leases import message_of
from braidmq.lane.records.records import Record
from braidmq.net.proto_v1 import HeldLeases
from braidmq.storage.format.group_rows import GROUP_PREFIX, GROUPS_END
from tests.support.simulator.cores_world import SHARDS, CoresWorld, CoreWorld
from tests.support.simulator.edge_node import EdgeNode, joining
from tests.support.simulator.peer import Peer

SHARED = "$share/g/a"


@pytest.fixture
def cores() -> Iterator[CoresWorld]:
    with CoresWorld(history={"topics": ["kept/#"]}) as cores:
        cores.link_all()
        yield cores


@pytest.fixture
def core(cores: CoresWorld) -> CoreWorld:
    return cores["core2"]


@pytest.fixture
def guest_id(cores: CoresWorld) -> str:
    return cores["core1"].client_id("m")


def publisher(core: CoreWorld, stem: str = "p") -> Peer:
    return core.replicant(stem).client(core.client_id(stem), expiry=0)


def group_rows(core: CoreWorld) -> dict[int, int]:
    """How many rows of groups there are, by shard."""
    counts = {shard: len(list(core.log.rows(shard, GROUP_PREFIX, GROUPS_END))) for shard in range(SHARDS)}
    return {shard: count for shard, count in counts.items() if count}


def records(core: CoreWorld) -> list[Record]:
    scan = core.log.replay(["#"], 0, with_session_only=True)
    found: list[Record] = []
    while not scan.is_caught_up:
        found += [record for _, record in scan.next(100, slice_s=1.0)]
    scan.close()
    return found


def test_a_client_of_another_core_gets_the_messages_of_this_cores_shards(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.join(guest_id, 7)
    sender = publisher(core)

    for number in range(3):
        sender.publish("a", b"%d" % number, qos=1)

    assert {each.channel for each in node.lent} == {7}
    assert node.take() == [b"0", b"1", b"2"]
    sender.publish("a", b"3", qos=1)
    assert node.take() == [b"3"]


def test_each_core_lends_its_own_messages_and_each_goes_to_one_member(cores: CoresWorld) -> None:
    first, second = cores["core1"].client_id("m"), cores["core3"].client_id("m")
    nodes = {name: EdgeNode(cores[name], "edge") for name in ("core2", "core3")}
    others = {name: EdgeNode(cores[name], "far") for name in ("core2",)}
    for name, node in nodes.items():
        if name != "core3":
            others[name].join(second, 9)
        node.join(first, 7)
    for name in ("core2", "core3"):
        sender = publisher(cores[name])
        for number in range(4):
            sender.publish("a", f"{name}-{number}".encode(), qos=1)

    of_two = nodes["core2"].take() + others["core2"].take()
    of_three = nodes["core3"].take()

    assert sorted(of_two) == [b"core2-%d" % number for number in range(4)]
    assert of_three == [b"core3-%d" % number for number in range(4)]


def test_with_several_cores_a_group_lends_with_qos_1_at_most(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.join(guest_id, 7, qos=2)

    publisher(core).publish("a", b"1", qos=2)

    assert [each.qos for each in node.lent] == [1]


def test_the_leases_of_a_dead_node_go_to_members_on_others(core: CoreWorld, guest_id: str) -> None:
    one, two = EdgeNode(core, "one"), EdgeNode(core, "two", 2)
    one.join(guest_id, 7)
    sender = publisher(core)
    for number in range(3):
        sender.publish("a", b"%d" % number, qos=1)
    one.settle(one.lent[0])
    two.join(guest_id + "x", 8) if not core.home.led.has(guest_id + "x") else two.join(guest_id, 8)
    assert not two.lent, "they are the first member's"

    one.die()

    assert sorted(two.take()) == [b"1", b"2"]


def test_the_leases_of_a_channel_that_has_ended_go_to_others(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.join(guest_id, 7)
    publisher(core).publish("a", b"1", qos=1)
    node.join(guest_id, 8)  # the client has connected again
    assert [each.channel for each in node.lent] == [7]

    node.say(LeaveGroup(guest_id, "g", "a", 7))
    assert [each.channel for each in node.lent] == [7], "the client may still answer"
    node.say(ReleaseGuest(guest_id, 7))

    assert [each.channel for each in node.lent] == [7, 8]


def test_a_release_that_comes_again_is_nothing(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.join(guest_id, 7)
    node.say(ReleaseGuest(guest_id, 7))
    node.say(ReleaseGuest(guest_id, 7))
    publisher(core).publish("a", b"1", qos=1)

    assert not node.lent
    assert [answer.outcomes for answer in node.answers] == [{}, {}, {}]


def test_a_client_that_this_core_decides_about_is_no_guest(core: CoreWorld) -> None:
    node = EdgeNode(core, "edge")

    node.join(core.client_id("m"), 7)
    node.say(JoinGroup(core.client_id("m"), 1, "g", "a", 1, False, 10, None, False))

    assert [answer.outcomes for answer in node.answers] == [{0: FENCED}, {0: FENCED}]
    assert not len(core.broker.groups)


def test_a_membership_that_is_on_its_way_when_its_node_dies_leaves_nothing(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.send(joining(guest_id, 7))
    while not core.is_writing:
        core.turn()
    core.home.bury(node.member)
    core.settle()

    assert not len(core.broker.groups)


def test_what_a_node_did_not_receive_before_a_cut_is_lent_again(core: CoreWorld, guest_id: str) -> None:
    node = EdgeNode(core, "edge")
    node.join(guest_id, 7)
    sender = publisher(core)
    for number in range(3):
        sender.publish("a", b"%d" % number, qos=1)
    arrived = node.lent
    node.lent = []
    node.lose()

    node.connect([HeldLeases(7, [arrived[0].lease], [arrived[1].lease])])

    assert [message_of(each).payload for each in node.lent] == [b"2"]


def test_a_new_group_begins_at_the_start_that_its_first_member_names_in_this_cores_shards(core: CoreWorld, guest_id: str) -> None:
    sender = publisher(core)
    sender.publish("kept/x", b"1", qos=1)
    start = list(core.broker.state.marks)
    sender.publish("kept/x", b"2", qos=1)
    foreign = next(shard for shard in range(SHARDS) if shard not in core.home.led)
    start[foreign] = 10**15
    node = EdgeNode(core, "edge")

    node.say(JoinGroup(guest_id, 7, "g", "kept/x", 1, False, 10, start, False, 7))
    sender.publish("kept/x", b"3", qos=1)

    assert node.take() == [b"2", b"3"]


def test_the_row_of_a_group_is_in_a_shard_that_the_core_leads(core: CoreWorld, guest_id: str) -> None:
    EdgeNode(core, "edge").join(guest_id, 7)

    rows = group_rows(core)
    assert sum(rows.values()) == 1
    assert set(rows) <= set(core.home.led)


# Durable sessions of other cores' shards


def absent_member(cores: CoresWorld) -> tuple[Peer, str]:
    """A durable session of core1 is in the group, and its client is away; the client again, connected to core1 alone."""
    core = cores["core1"]
    client_id = core.client_id("m")
    node = core.replicant("s")
    client = node.client(client_id)
    client.subscribe(SHARED, qos=1)
    client.cut()
    cores.settle()
    return client, client_id


def test_messages_wait_for_a_group_whose_only_member_is_a_durable_session_elsewhere(cores: CoresWorld, core: CoreWorld) -> None:
    _, client_id = absent_member(cores)
    sender = publisher(core)
    cores.pass_time(3)

    for number in range(3):
        sender.publish("a", b"%d" % number, qos=1)

    assert all(record.session_only for record in records(core))
    node = EdgeNode(core, "edge")
    node.say(joining(client_id, 7, is_stored=True))
    assert node.take() == [b"0", b"1", b"2"]


def test_a_group_ends_everywhere_with_its_last_durable_member(cores: CoresWorld, core: CoreWorld) -> None:
    absent_member(cores)
    assert len(core.broker.groups) == 1
    assert group_rows(core)

    (session,) = cores["core1"].broker.sessions
    cores["core1"].broker.lifecycle.end(session)
    cores.settle()

    assert not len(core.broker.groups)
    assert not group_rows(core)


def test_c25_a_restarted_core_goes_on_with_a_group_where_it_was(cores: CoresWorld, core: CoreWorld) -> None:
    _, client_id = absent_member(cores)
    sender = publisher(core)
    cores.pass_time(3)
    sender.publish("a", b"before", qos=1)

    cores.crash("core2")
    cores.link("core1", "core2")
    cores.link("core2", "core3")
    cores.pass_time(3)
    core = cores["core2"]
    core.replicants.clear()
    sender = publisher(core, "again")
    cores.pass_time(3)
    sender.publish("a", b"after", qos=1)
    node = EdgeNode(core, "edge", 5)
    node.say(joining(client_id, 7, is_stored=True))

    assert node.take() == [b"before", b"after"]


def test_a_restarted_core_keeps_the_row_of_a_group_until_the_other_cores_were_heard(cores: CoresWorld, core: CoreWorld) -> None:
    absent_member(cores)
    cores.crash("core2")
    for _ in range(5):
        cores.wait(61.0)
    assert group_rows(cores["core2"]), "core1 was not heard: the group may have members there"

    cores.crash("core1")  # and has forgotten the session
    (session,) = cores["core1"].broker.sessions
    cores["core1"].broker.lifecycle.end(session)
    cores.settle()
    cores.link_all()
    for _ in range(3):
        cores.wait(61.0)

    assert not group_rows(cores["core2"])
