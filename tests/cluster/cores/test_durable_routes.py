"""Durable sessions of one core's shards make the homes of all publishers record what matches, connected or not (C23)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.broker.ports import LogScan
from braidmq.cluster.membership.member import Member
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.lane.records.records import Record
from braidmq.mqtt.packets import Publish, Suback, Subscribe, SubscribeOption
from tests.support.simulator.cores_world import CoresWorld, CoreWorld
from tests.support.simulator.peer import Peer


@pytest.fixture
def cores() -> Iterator[CoresWorld]:
    with CoresWorld(history={"topics": ["kept/#"]}) as cores:
        cores.link_all()
        yield cores


def doubts(cores: CoresWorld) -> list[bool]:
    return [core.home.doubt.is_in_doubt for core in cores.cores.values() if core.home.doubt is not None]


def records(core: CoreWorld) -> list[Record]:
    scan: LogScan = core.log.replay(["#"], 0, with_session_only=True)
    found: list[Record] = []
    while not scan.is_caught_up:
        found += [record for _, record in scan.next(100, slice_s=1.0)]
    scan.close()
    return found


def publisher(core: CoreWorld) -> Peer:
    return core.replicant("p").client(core.client_id("p"), expiry=0)


def subscriber(core: CoreWorld, expiry: int = 1000) -> Peer:
    return core.replicant("s").client(core.client_id("s"), expiry=expiry)


def test_cores_that_know_each_other_are_sure(cores: CoresWorld) -> None:
    assert doubts(cores) == [False, False, False]


def test_a_durable_subscription_makes_the_other_cores_record(cores: CoresWorld) -> None:
    sender = publisher(cores["core2"])
    cores.pass_time(3)
    sender.publish("office/x", b"before", qos=1)
    subscriber(cores["core1"]).subscribe("office/+", qos=1)

    sender.publish("office/x", b"after", qos=1)
    sender.publish("elsewhere", b"no", qos=1)

    found = records(cores["core2"])
    assert [record.payload for record in found] == [b"after"]
    assert all(record.session_only for record in found), "history did not ask for it"


def test_a_session_that_is_not_durable_makes_no_durable_route(cores: CoresWorld) -> None:
    subscriber(cores["core1"], expiry=0).subscribe("office/x", qos=1)
    sender = publisher(cores["core2"])
    cores.pass_time(3)

    sender.publish("office/x", b"1", qos=1)

    assert not records(cores["core2"])


def test_the_route_stays_while_the_client_is_away_and_ends_with_the_subscription(cores: CoresWorld) -> None:
    node = cores["core1"].replicant("s")
    client_id = cores["core1"].client_id("s")
    client = node.client(client_id)
    client.subscribe("office/x", qos=1)
    client.cut()
    cores.settle()
    sender = publisher(cores["core2"])
    cores.pass_time(3)
    sender.publish("office/x", b"away", qos=1)

    client = node.client(client_id)
    client.unsubscribe("office/x")
    cores.pass_time(1)
    sender.publish("office/x", b"unsubscribed", qos=1)

    assert [record.payload for record in records(cores["core2"])] == [b"away"]


def test_two_sessions_of_different_shards_hold_the_same_route(cores: CoresWorld) -> None:
    nodes = [cores[name].replicant("s") for name in ("core1", "core3")]
    clients = [node.client(cores[name].client_id("s")) for node, name in zip(nodes, ("core1", "core3"), strict=True)]
    for client in clients:
        client.subscribe("office/x", "office/#", qos=1)
    sender = publisher(cores["core2"])
    cores.pass_time(3)

    clients[0].unsubscribe("office/x", "office/#")
    sender.publish("office/x", b"one left", qos=1)
    clients[1].unsubscribe("office/x", "office/#")
    sender.publish("office/x", b"none left", qos=1)

    assert [record.payload for record in records(cores["core2"])] == [b"one left"]


def test_a_dead_node_leaves_the_durable_routes_of_its_sessions(cores: CoresWorld) -> None:
    node = cores["core1"].replicant("s")
    node.client(cores["core1"].client_id("s")).subscribe("office/x", qos=1)
    node.die()
    sender = publisher(cores["core2"])
    cores.pass_time(3)

    sender.publish("office/x", b"1", qos=1)

    assert len(records(cores["core2"])) == 1


def test_while_a_core_is_away_the_others_record_everything(cores: CoresWorld) -> None:
    sender = publisher(cores["core2"])
    cores.pass_time(3)
    cores.crash("core1")
    sender.publish("a", b"still confirmed", qos=1)

    cores.pass_time(3)
    assert doubts(cores) == [True, True, True]
    sender.publish("a", b"in doubt", qos=1)
    sender.publish("a", b"qos 0 is not recorded", qos=0)

    cores.link("core1", "core2")
    cores.link("core1", "core3")
    cores.pass_time(3)
    assert doubts(cores) == [False, False, False]
    sender.publish("a", b"sure again", qos=1)

    found = records(cores["core2"])
    assert [record.payload for record in found] == [b"in doubt"]
    assert found[0].session_only


def test_a_core_that_returns_replaces_its_routes_by_those_of_its_next_term(cores: CoresWorld) -> None:
    node = cores["core1"].replicant("s")
    client_id = cores["core1"].client_id("s")
    client = node.client(client_id)
    client.subscribe("office/x", "office/y", qos=1)
    client.cut()
    cores.settle()
    shard = cores["core1"].home.led.shard_of(client_id)
    copy = cores["core2"].home.tables.get(durable_origin(shard))
    assert copy is not None
    assert copy.incarnation == 1

    cores.crash("core1")
    stale = next(iter(copy.rows))
    assert cores["core2"].home.tables.has_row(durable_origin(shard), stale), "they outlive their core"
    session = next(iter(cores["core1"].broker.sessions))
    cores["core1"].broker.lifecycle.end(session)
    cores.settle()
    cores.link("core1", "core2")
    cores.pass_time(3)

    copy = cores["core2"].home.tables.get(durable_origin(shard))
    assert copy is not None
    assert (copy.incarnation, copy.rows) == (2, {})


def test_a_restarted_core_announces_the_sessions_on_its_disk(cores: CoresWorld) -> None:
    client = subscriber(cores["core1"])
    client.subscribe("office/x", qos=1)
    client.cut()
    cores.settle()
    cores.crash("core1")
    cores.crash("core2")
    cores.link_all()
    sender = publisher(cores["core2"])
    cores.pass_time(3)
    assert doubts(cores) == [False, False, False]

    sender.publish("office/x", b"1", qos=1)

    assert [record.payload for record in records(cores["core2"])] == [b"1"]


def test_suback_waits_for_the_other_cores(cores: CoresWorld) -> None:
    client = subscriber(cores["core1"])
    cores.pass_time(1)
    cores.stall("core1", "core2")

    client.send(Subscribe(1, [SubscribeOption("office/x", 1)]))
    assert not client.receive(), "core2 was answered a moment ago: it may be sure for a while"

    cores.wait(1.01)
    assert [type(each) for each in client.receive()] == [Suback]
    cores.pass_time(1)
    assert doubts(cores)[1], "core2 has been in doubt for some time by then"


def test_suback_does_not_wait_for_a_core_that_has_been_away(cores: CoresWorld) -> None:
    client = subscriber(cores["core1"])
    cores.crash("core2")
    cores.wait(1.01)

    client.send(Subscribe(1, [SubscribeOption("office/x", 1)]))

    assert [type(each) for each in client.receive()] == [Suback]


def test_a_decision_after_a_pause_is_made_in_doubt(cores: CoresWorld) -> None:
    sender = publisher(cores["core2"])
    cores.pass_time(3)
    assert doubts(cores) == [False, False, False]
    cores.pause(1.0)
    doubt = cores["core2"].home.doubt
    assert doubt is not None

    doubt.check()
    sender.publish("a", b"1", qos=1)

    assert len(records(cores["core2"])) == 1


def test_a_member_that_has_not_connected_leaves_a_core_in_doubt(cores: CoresWorld) -> None:
    cores["core2"].home.expect(Member("elsewhere", 7))
    cores.pass_time(1)
    assert doubts(cores)[1]

    cores["core2"].home.bury(Member("elsewhere", 7))
    cores.pass_time(1)
    assert not doubts(cores)[1]


def test_what_a_session_gets_from_its_own_core_is_not_changed(cores: CoresWorld) -> None:
    core = cores["core1"]
    client = subscriber(core)
    client.subscribe("office/x", qos=1)
    publisher(core).publish("office/x", b"1", qos=1)

    assert [each.payload for each in client.take() if isinstance(each, Publish)] == [b"1"]


def test_a_single_core_neither_probes_nor_doubts() -> None:
    with CoresWorld("core1", history={"topics": ["kept/#"]}) as cores:
        core = cores["core1"]
        assert core.home.doubt is None
        assert core.home.cores is None
        sender = publisher(core)
        frames = core.frames

        cores.pass_time(10)
        sender.publish("a", b"1", qos=1)

        assert core.frames - frames < 10, "the message and its acknowledgement"
        assert not records(core)
