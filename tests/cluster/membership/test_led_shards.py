"""A core that leads some of the shards takes nothing of the others', and says nothing of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from braidmq.cluster.home.confidence import SILENT_S
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.blocks import FENCED
from braidmq.cluster.protocol.operations import RemoveRetained
from braidmq.mqtt.packets import Publish
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import AnswerBody, BlockBody, FeedStart, Marks, RowsEntry, ScanOpen, ScanRecords
from tests.support.simulator.cluster_world import Replicant
from tests.support.simulator.cores_world import SHARDS, CoresWorld, CoreWorld

encode = msgspec.msgpack.encode


@pytest.fixture
def cores() -> Iterator[CoresWorld]:
    with CoresWorld() as cores:
        cores.wait(SILENT_S)  # the other cores are away: they are not waited for
        yield cores


@pytest.fixture
def core(cores: CoresWorld) -> CoreWorld:
    return cores["core1"]


def foreign_shard(core: CoreWorld) -> int:
    return next(shard for shard in range(SHARDS) if shard not in core.home.led)


class Frames:
    """What the core sends a node over its connection for messages."""

    def __init__(self, node: Replicant) -> None:
        self.all: list[tuple[FrameKind, int, bytes]] = []
        wire = node.messages_wire
        receive = wire.on_frame
        assert receive is not None

        def note(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            self.all.append((kind, destination, bytes(body)))
            receive(kind, flags, destination, body)

        wire.on_frame = note

    def of(self, kind: FrameKind) -> list[bytes]:
        return [body for each, _, body in self.all if each is kind]


def test_a_vector_for_others_has_zeros_for_shards_that_are_not_led() -> None:
    led = LedShards("b", ["a", "b", "a", "b"], {1: 7, 3: 9})

    assert led.told([10, 11, 12, 13]) == [0, 11, 0, 13]
    assert led.own([10, 11, 12, 13], [1, 2, 3, 4]) == [1, 11, 3, 13]
    assert led.others == {"a": [0, 2]}


def test_a_client_of_a_led_shard_is_served(core: CoreWorld) -> None:
    node = core.replicant("one")
    client = node.client(core.client_id(), expiry=60)
    client.subscribe("t", qos=1)

    node.client(core.client_id("p")).publish("t", b"x", qos=1)

    assert [each.payload for each in client.take() if isinstance(each, Publish)] == [b"x"]


def test_a_claim_of_another_cores_client_id_is_refused_and_counted(cores: CoresWorld, core: CoreWorld) -> None:
    node = core.replicant("one")

    with pytest.raises(AssertionError, match="CONNECT refused with 0x88"):
        node.client(cores["core2"].client_id())

    assert core.home.misdirected.counts == {"claims": 1}


def test_a_block_of_another_cores_shard_closes_the_connection(core: CoreWorld) -> None:
    node = core.replicant("one")
    peer = core.home.find(node.name)
    assert peer is not None
    body = encode(BlockBody(1, 0, 1, []))

    with pytest.raises(BadFrame, match="another core leads"):
        peer.receive(FrameKind.BLOCK, 0, foreign_shard(core), memoryview(body))

    assert core.home.misdirected.counts == {"blocks": 1}


def test_a_row_of_another_cores_shard_is_refused_and_leaves_no_trace(core: CoreWorld) -> None:
    node = core.replicant("one")
    frames = Frames(node)
    peer = core.home.find(node.name)
    assert peer is not None
    led = core.home.led
    topic = next(f"t{number}" for number in range(100) if not led.has(f"t{number}"))
    shard = led.shard_of(core.client_id())
    rows = RowsEntry(0, operations.encode([RemoveRetained(topic.encode())]))

    peer.receive(FrameKind.BLOCK, 0, shard, memoryview(encode(BlockBody(1, 0, 1, [rows]))))
    core.settle()

    answers = [msgspec.msgpack.decode(body, type=AnswerBody) for body in frames.of(FrameKind.BLOCK_ANSWERS)]
    assert answers == [AnswerBody(1, {0: FENCED})]
    assert core.home.misdirected.counts == {"rows": 1}
    assert not list(core.log.rows(led.shard_of(topic), b"", b"\xff"))


def test_marks_and_floors_say_nothing_of_other_cores_shards(core: CoreWorld) -> None:
    node = core.replicant("one")
    frames = Frames(node)
    client = core.client_id("p")

    node.client(client).publish("t", b"x", qos=1)
    node.cut()
    node.connect()
    frames = Frames(node)
    node.client(client).publish("t", b"y", qos=1)

    marks = [msgspec.msgpack.decode(body, type=Marks) for body in frames.of(FrameKind.MARKS)]
    assert marks
    for each in marks:
        told = {shard for shard, position in enumerate(each.positions) if position}
        assert told <= set(core.home.led)
    assert marks[-1].positions[core.home.led.shard_of(client)] > 0


def test_a_feed_resumes_by_the_led_shards_whatever_the_node_has_of_others(core: CoreWorld) -> None:
    node = core.replicant("one")
    subscriber = node.client(core.client_id("s"), expiry=60)
    subscriber.subscribe("t", qos=1)
    publisher = core.replicant("two").client(core.client_id("p"))
    publisher.publish("t", b"1", qos=1)
    assert len(subscriber.take()) == 1
    marks = list(node.broker.state.marks)
    marks[foreign_shard(core)] = 10**15
    node.cut()
    publisher.publish("t", b"2", qos=1)
    node.connect()
    frames = Frames(node)
    peer = core.home.find(node.name)
    assert peer is not None

    peer.receive(FrameKind.MARKS, 0, 0, memoryview(encode(FeedStart(marks, 0))))
    core.settle()

    assert frames.of(FrameKind.FEED), "what was published meanwhile"
    assert peer.view().is_feeding, "it has caught up"


def test_a_scan_covers_the_led_shards_alone(core: CoreWorld) -> None:
    node = core.replicant("one")
    node.client(core.client_id("p")).publish("t", b"x", qos=1)
    frames = Frames(node)
    peer = core.home.find(node.name)
    assert peer is not None
    positions = dict.fromkeys(core.home.led, 1)

    peer.receive(FrameKind.SCAN, 0, 900, memoryview(encode(ScanOpen(["#"], positions, False, 1 << 20))))
    core.settle()

    found = [msgspec.msgpack.decode(body, type=ScanRecords) for body in frames.of(FrameKind.SCAN)]
    assert sum(len(each.values) for each in found) == 1
    assert found[-1].is_caught_up
    assert all(set(each.positions) <= set(core.home.led) for each in found)
    assert all(not each.gaps for each in found)
