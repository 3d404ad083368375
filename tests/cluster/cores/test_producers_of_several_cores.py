"""Producers with several cores: the core of a name knows its batch and parts, that of a client id the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.mqtt.packets import Connack
from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink.producer_part import ROWS_BITS
from tests.support.simulator.many_cores import HOME_WAIT_S, ManyCores, SimCore, SimNode
from tests.support.simulator.peer import Peer
from tests.support.simulator.producers import answers, publishes, request, sequence, told

BATCH = 1 << ROWS_BITS


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        cluster.node("n1")
        cluster.node("n2")
        yield cluster


def ask(node: SimNode, client_id: str, name: str, part: int, batch: int = 1, **more: Any) -> Peer:
    peer = node.open()
    request(peer, client_id, batch * BATCH, producer_name=name, producer_part=str(part), producer_refusals="stop", **more)
    return peer


def join(node: SimNode, client_id: str, name: str, part: int, batch: int = 1) -> Peer:
    peer = ask(node, client_id, name, part, batch)
    node.cluster.settle()
    peer.connack = peer.expect(Connack)
    assert peer.connack.reason == 0, peer.connack
    return peer


def everywhere(cluster: ManyCores, prefix: str = "p") -> dict[str, str]:
    """A client id for each core."""
    return {core.name: cluster.client_of(core, prefix) for core in cluster.cores.values()}


def payloads(cluster: ManyCores) -> list[bytes]:
    return sorted(payload for core in cluster.cores.values() for payload in core.records())


def test_parts_of_one_producer_are_counted_wherever_their_client_ids_are_at_home(cluster: ManyCores) -> None:
    ids = everywhere(cluster)

    peers = [join(cluster.nodes[part % 2], client_id, "job", part) for part, client_id in enumerate(ids.values())]

    assert [told(peer)["producer-parts"] for peer in peers] == ["1", "2", "3"]
    assert [sequence(peer) for peer in peers] == [BATCH] * 3
    assert all(set(told(peer)) >= {"shards", "producer-sequence"} for peer in peers)


def test_each_part_continues_where_it_was_on_another_node(cluster: ManyCores) -> None:
    ids = everywhere(cluster)
    for part, client_id in enumerate(ids.values()):
        peer = join(cluster.nodes[0], client_id, "job", part)
        peer.send(*publishes([b"%d-1" % part, b"%d-2" % part]))
        assert answers(peer.receive()) == [0, 0]

    again = [join(cluster.nodes[1], client_id, "job", part) for part, client_id in enumerate(ids.values())]

    assert [sequence(peer) - BATCH for peer in again] == [2, 2, 2]
    assert all("producer-check" in told(peer) for peer in again)
    for peer in again:
        peer.send(*publishes([peer.client_id.encode()]))
        assert answers(peer.receive()) == [0]
    expected = [b"%d-%d" % (part, row) for part in range(3) for row in (1, 2)]
    assert payloads(cluster) == sorted([*expected, *map(str.encode, ids.values())])


def test_an_earlier_batch_is_rejected_for_every_part_and_told_which_one_is_open(cluster: ManyCores) -> None:
    ids = list(everywhere(cluster).values())
    join(cluster.nodes[0], ids[0], "job", 0, batch=2)

    for part, client_id in enumerate(ids):
        peer = ask(cluster.nodes[1], client_id, "job", part, batch=1)
        cluster.settle()
        connack = peer.expect(Connack)
        assert connack.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
        assert dict(connack.properties.user_properties)["producer-sequence"] == str(2 * BATCH)


def test_a_higher_batch_begins_to_count_its_parts_anew(cluster: ManyCores) -> None:
    ids = list(everywhere(cluster).values())
    for part, client_id in enumerate(ids):
        join(cluster.nodes[0], client_id, "job", part)

    assert told(join(cluster.nodes[0], ids[1], "job", 0, batch=2))["producer-parts"] == "1"


def test_the_batch_is_known_after_its_core_has_restarted(cluster: ManyCores) -> None:
    ids = list(everywhere(cluster).values())
    for part, client_id in enumerate(ids):
        join(cluster.nodes[0], client_id, "job", part, batch=3)
    home = cluster.core_of("job")
    home.die()

    cluster.restart(home)

    other = next(client_id for client_id in ids if cluster.core_of(client_id) is not home)
    assert told(join(cluster.nodes[1], other, "job", 0, batch=3))["producer-parts"] == "3"
    late = ask(cluster.nodes[1], other, "job", 0, batch=2)
    cluster.settle()
    assert late.expect(Connack).reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR


def away(cluster: ManyCores, name: str) -> tuple[SimCore, str]:
    """The core of a name goes away; a client id of another core."""
    home = cluster.core_of(name)
    client_id = next(each for each in everywhere(cluster).values() if cluster.core_of(each) is not home)
    home.die()
    cluster.settle()
    return home, client_id


def test_a_part_waits_for_the_core_of_its_name(cluster: ManyCores) -> None:
    home, client_id = away(cluster, "job")
    peer = ask(cluster.nodes[0], client_id, "job", 0)
    cluster.wait(1)
    assert peer.receive() == []

    cluster.restart(home)
    cluster.wait(1)

    connack = peer.expect(Connack)
    assert connack.reason == 0
    assert dict(connack.properties.user_properties)["producer-parts"] == "1"


def test_a_part_is_refused_when_the_core_of_its_name_stays_away(cluster: ManyCores) -> None:
    _, client_id = away(cluster, "job")
    peer = ask(cluster.nodes[0], client_id, "job", 0)

    cluster.wait(HOME_WAIT_S + 1)

    assert peer.expect(Connack).reason == Reason.SERVER_UNAVAILABLE


def test_keys_need_a_client_id_in_the_shard_of_their_name(cluster: ManyCores) -> None:
    shard_of = cluster.nodes[0].link.shard_of
    wrong = next(f"k{number}" for number in range(100) if cluster.core_of(f"k{number}") is not cluster.core_of("keys"))
    right = next(f"k{number}" for number in range(100) if shard_of(f"k{number}") == shard_of("keys"))
    refused, accepted = cluster.nodes[0].open(), cluster.nodes[0].open()

    request(refused, wrong, BATCH, producer_keys="keys")
    request(accepted, right, BATCH, producer_keys="keys")
    cluster.settle()

    connack = refused.expect(Connack)
    assert connack.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
    assert dict(connack.properties.user_properties)["shards"] == "6"
    assert accepted.expect(Connack).reason == 0
