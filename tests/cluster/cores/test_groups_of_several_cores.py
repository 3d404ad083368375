"""Shared groups with several cores: each core chooses the members for the messages of its own shards."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from braidmq.cluster.protocol.operations import ReleaseGuest, decode
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.entries import CROWDED
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from braidmq.mqtt.reasons import Reason
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AnswerBody, BlockBody, RowsEntry
from tests.support.simulator.many_cores import ManyCores, SimCore, SimNode, Wire
from tests.support.simulator.peer import Peer, payloads


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def test_each_message_of_any_core_reaches_one_member(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    members = [node.client(f"m{number}", expiry=0) for number, node in enumerate((one, two, two))]
    for member in members:
        member.subscribe("$share/g/a", qos=1)
    sent: list[bytes] = []
    for core in cluster.cores.values():
        publisher = one.client(cluster.client_of(core, "p"), expiry=0)
        for number in range(6):
            sent.append(b"%s %d" % (core.name.encode(), number))
            publisher.publish("a", sent[-1], qos=1)

    got = [payloads(member.acknowledge_all()) for member in members]

    assert sorted(payload for each in got for payload in each) == sorted(sent)
    assert all(got)


def test_qos_2_is_granted_as_qos_1(cluster: ManyCores) -> None:
    member = cluster.node("one").client("m", expiry=0)

    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 2)]))

    assert member.expect(Suback).reasons == [1]


def test_what_a_member_did_not_acknowledge_goes_to_another_one(cluster: ManyCores) -> None:
    node = cluster.node("one")
    leaving, staying = node.client("m1", expiry=0), node.client("m2", expiry=0)
    leaving.subscribe("$share/g/a", qos=1)
    sent: list[bytes] = []
    for core in cluster.cores.values():
        sent.append(core.name.encode())
        node.client(cluster.client_of(core, "p"), expiry=0).publish("a", sent[-1], qos=1)
    assert sorted(payloads(leaving.receive())) == sorted(sent)
    staying.subscribe("$share/g/a", qos=1)

    leaving.disconnect()
    cluster.settle()

    assert sorted(payloads(staying.acknowledge_all())) == sorted(sent)


def test_a_dead_core_stops_its_own_messages_alone(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core1"], cluster.cores["core2"]
    publishers = {core.name: node.client(cluster.client_of(core, "p"), expiry=0) for core in (dead, other)}
    first = node.client(cluster.client_of(other, "m"), expiry=0)
    first.subscribe("$share/g/a", qos=1)
    dead.die()
    cluster.settle()

    late = node.client(cluster.client_of(other, "n"), expiry=0)
    late.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.wait(2)
    assert isinstance(late.receive()[0], Suback)
    for number in range(4):
        publishers[other.name].publish("a", b"%d" % number, qos=1)
    got = payloads(first.acknowledge_all()) + payloads(late.acknowledge_all())
    assert sorted(got) == [b"0", b"1", b"2", b"3"]

    cluster.restart(dead)
    for number in range(4, 8):
        publishers[dead.name].publish("a", b"%d" % number, qos=1)
    got = payloads(first.acknowledge_all()) + payloads(late.acknowledge_all())
    assert sorted(got) == [b"4", b"5", b"6", b"7"]


# What the cores are told, and when


def is_stored(core: SimCore, client_id: str) -> bool:
    """Whether the core has a row of a subscription of this session."""
    stored = core.broker.turn_writer.storage.sessions.load_one(client_id)
    return stored is not None and bool(stored.subscriptions)


def waiting_subscriber(cluster: ManyCores) -> tuple[SimNode, SimCore, SimCore, Peer, str]:
    """A durable session at home at core1 has asked for a membership, and core2 says nothing."""
    node = cluster.node("one")
    home, silent = cluster.cores["core1"], cluster.cores["core2"]
    client_id = cluster.client_of(home, "m")
    member = node.client(client_id)
    node.freeze(silent)
    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.settle()
    return node, home, silent, member, client_id


def test_the_row_of_a_membership_waits_until_all_cores_know_of_it(cluster: ManyCores) -> None:
    node, home, silent, member, client_id = waiting_subscriber(cluster)
    assert not is_stored(home, client_id)
    assert not member.take()

    node.thaw(silent)
    cluster.settle()

    assert is_stored(home, client_id)
    assert [type(packet) for packet in member.take()] == [Suback]


def test_the_row_of_a_membership_waits_for_a_silent_core_for_a_second(cluster: ManyCores) -> None:
    _, home, _, member, client_id = waiting_subscriber(cluster)
    cluster.wait(0.5)
    assert not is_stored(home, client_id)

    cluster.wait(1)

    assert is_stored(home, client_id)
    assert [type(packet) for packet in member.take()] == [Suback]


def test_a_core_that_was_just_lost_is_waited_for_as_a_silent_one(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home = cluster.cores["core1"]
    client_id = cluster.client_of(home, "m")
    member = node.client(client_id)
    node.cut(cluster.cores["core2"])

    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.settle()
    assert not is_stored(home, client_id)
    cluster.wait(1.5)
    assert is_stored(home, client_id)

    member.send(Subscribe(2, [SubscribeOption("$share/h/a", 1)]))
    cluster.settle()
    assert [packet.packet_id for packet in member.take() if isinstance(packet, Suback)] == [1, 2], "it is not waited for again"


def test_a_client_that_comes_again_meanwhile_does_not_get_the_row_of_before(cluster: ManyCores) -> None:
    node, home, silent, member, client_id = waiting_subscriber(cluster)
    member.cut()
    cluster.settle()
    again = node.client(client_id)
    assert not again.take()

    cluster.wait(2)
    assert not is_stored(home, client_id)
    node.thaw(silent)
    cluster.wait(2)

    assert not is_stored(home, client_id)
    assert not any(len(core.broker.groups) for core in cluster.cores.values())


def test_what_a_core_has_to_be_told_while_it_is_away_does_not_grow(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, away = cluster.cores["core1"], cluster.cores["core2"]
    known = node.client(cluster.client_of(home, "known"), expiry=0)
    known.subscribe("$share/g/a", qos=1)
    staying = node.client(cluster.client_of(home, "staying"), expiry=0)
    node.cut(away)
    cluster.wait(2)
    staying.subscribe("$share/g/a", qos=1)
    known.disconnect()
    for number in range(20):
        member = node.client(cluster.client_of(home, f"x{number}-"), expiry=0)
        member.subscribe("$share/g/a", qos=1)
        member.unsubscribe("$share/g/a")
        member.subscribe("$share/g/b", qos=1)
        member.disconnect()
    cluster.settle()
    assert node.link.log.guests.kept == 2, "one member, and the end of another one"
    assert not node.link.home(away.name).blocks.size

    cluster.connect(node)
    publisher = node.client(cluster.client_of(away, "p"), expiry=0)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=1)

    assert payloads(staying.acknowledge_all()) == [b"0", b"1", b"2"]
    assert len(away.broker.groups) == 1
    assert not node.link.log.guests.kept


# Probes


def frames_to(node: SimNode, core: SimCore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[FrameKind, int, bytes]]:
    """What the node sends to a core from now on; it arrives as well."""
    sent: list[tuple[FrameKind, int, bytes]] = []
    link = node.link.home(core.name)
    wire = link._messages
    assert isinstance(wire, Wire)
    send = wire.send

    def note(kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        sent.append((kind, destination, bytes(body)))
        send(kind, destination, body, flags)

    monkeypatch.setattr(wire, "send", note)
    return sent


def probe(node: SimNode, core: SimCore) -> None:
    node.link.home(core.name).receive(FrameKind.PROBE, 0, 1, memoryview(b""))


def test_a_probe_is_answered_behind_the_memberships_so_far(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, other = cluster.cores["core1"], cluster.cores["core2"]
    member = node.client(cluster.client_of(home, "m"), expiry=0)
    sent = frames_to(node, other, monkeypatch)

    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    assert not sent, "the turn goes on"
    probe(node, other)

    assert [kind for kind, _, _ in sent] == [FrameKind.BLOCK, FrameKind.PROBE_ANSWER]


def test_no_probe_is_answered_while_a_membership_is_kept(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, other = cluster.cores["core1"], cluster.cores["core2"]
    member = node.client(cluster.client_of(home, "m"), expiry=0)
    with monkeypatch.context() as full:
        full.setattr(CoreBlocks, "full", CROWDED)
        member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    sent = frames_to(node, other, monkeypatch)

    probe(node, other)
    assert not sent

    node.link.home(other.name).blocks.note_relief()
    probe(node, other)
    assert [kind for kind, _, _ in sent] == [FrameKind.BLOCK, FrameKind.PROBE_ANSWER]


def test_no_probe_is_answered_while_the_core_refuses_blocks(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, other = cluster.cores["core1"], cluster.cores["core2"]
    client_id = cluster.client_of(home, "m")
    member = node.client(client_id, expiry=0)
    sent = frames_to(node, other, monkeypatch)
    node.freeze(other)
    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.settle()
    ((_, shard, body),) = [each for each in sent if each[0] is FrameKind.BLOCK]
    number = msgspec.msgpack.decode(body, type=BlockBody).number
    refused = msgspec.msgpack.encode(AnswerBody(number, {-1: int(Reason.QUOTA_EXCEEDED)}))
    blocks = node.link.home(other.name).blocks

    node.link.log.on_answer(blocks, shard, 0, refused)
    sent.clear()
    probe(node, other)
    assert not sent

    cluster.wait(0.5)
    assert [kind for kind, _, _ in sent] == [FrameKind.BLOCK], "the same membership once more"
    probe(node, other)
    assert [kind for kind, _, _ in sent] == [FrameKind.BLOCK, FrameKind.PROBE_ANSWER]


def test_a_membership_that_another_core_refuses_by_itself_ends_the_connection_and_is_not_sent_again(
    cluster: ManyCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.node("one")
    home, other = cluster.cores["core1"], cluster.cores["core2"]
    client_id = cluster.client_of(home, "m")
    member = node.client(client_id)
    sent = frames_to(node, other, monkeypatch)
    node.freeze(other)
    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.settle()
    ((_, shard, body),) = [each for each in sent if each[0] is FrameKind.BLOCK]
    number = msgspec.msgpack.decode(body, type=BlockBody).number
    refused = msgspec.msgpack.encode(AnswerBody(number, {0: int(Reason.QUOTA_EXCEEDED)}))
    blocks = node.link.home(other.name).blocks

    sent.clear()
    node.link.log.on_answer(blocks, shard, 0, refused)
    cluster.wait(1.5)

    assert member.is_closed
    assert not is_stored(home, client_id)
    bodies = [body for kind, _, body in sent if kind is FrameKind.BLOCK]
    entries = [entry for body in bodies for entry in msgspec.msgpack.decode(body, type=BlockBody).entries]
    assert [type(each) for entry in entries if isinstance(entry, RowsEntry) for each in decode(entry.operations)] == [
        ReleaseGuest
    ]
