"""QoS 0 messages of a node with several cores: each goes to the core at which its publisher is at home."""

from __future__ import annotations

import pytest

from braidmq.base.shards import shard_of
from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.lane.path.message import Message
from braidmq.lane.peers.peer import PeerOutlet, UplinkFlow, UplinkOutlet
from braidmq.lane.peers.peer_receiver import PeerReceiver
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Publish
from tests.lane.peers.nodes import ITEM_BYTES_MAX, NO_BOUND, packets_of, received, subscribe
from tests.lane.recording.published import RecordingBench

SHARDS = 4


class EdgeNode(RecordingBench):
    """A lane between clients and two cores, which lead every second shard; other nodes want everything."""

    def __init__(self) -> None:
        super().__init__()
        self.routes.inspector = None
        self.cores = [PeerOutlet(f"core{number}", self.state, NO_BOUND, 1 << 20) for number in range(2)]
        self.ways = UplinkOutlet(self.state)
        self.lead(0, 1)
        self.uplink = UplinkFlow("core", self.state)
        self.uplink.attach(self.ways, 0)
        self.routes.apply_remote([b"#"], (), Subscription(self.uplink, b"#", 0, retain_as_published=True))

    def lead(self, even: int, odd: int) -> None:
        self.ways.lead([self.cores[odd if shard % 2 else even] for shard in range(SHARDS)])

    def sent(self) -> list[list[bytes]]:
        """The payloads that each core is sent, since the last call."""
        return [[packet.payload for body in core.take_frames() for packet in packets_of(body)] for core in self.cores]


@pytest.fixture
def node() -> EdgeNode:
    return EdgeNode()


def ids() -> tuple[str, str]:
    """A client id that is at home at the first core, and one at the second."""
    names = [f"c{number}" for number in range(100)]
    return tuple(next(name for name in names if shard_of(name, SHARDS) % 2 == core) for core in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_frames_go_to_the_home_of_their_publisher(node: EdgeNode, version: int) -> None:
    for core, name in enumerate(ids()):
        publisher = node.client(name, shard_of(name, SHARDS), version)
        publisher.read(encode(Publish("a", b"%d" % core, 0), version))

    assert node.sent() == [[b"0"], [b"1"]]


def test_messages_that_are_encoded_again_go_there_too(node: EdgeNode) -> None:
    for core, name in enumerate(ids()):
        route = node.routes.resolve(b"a")
        assert route is not None
        node.lane.publish(Message(b"a", b"%d" % core, 0, True, name), route, None)

    assert node.sent() == [[b"0"], [b"1"]]


def test_another_core_gets_them_while_the_home_is_away(node: EdgeNode) -> None:
    first, _ = ids()
    publisher = node.client(first, shard_of(first, SHARDS), MQTT5)
    node.lead(1, 1)
    publisher.read(encode(Publish("a", b"1", 0), MQTT5))
    node.lead(0, 1)
    publisher.read(encode(Publish("a", b"2", 0), MQTT5))

    assert node.sent() == [[b"2"], [b"1"]]


def test_what_came_from_a_core_goes_to_none(node: EdgeNode) -> None:
    subscriber = subscribe(node)
    receiver = PeerReceiver(node.lane, node.recorder.outcomes, node.uplink, ITEM_BYTES_MAX)

    receiver.take(8, 1, 0, encode(Publish("a", b"1", 0), MQTT5))

    assert [packet.payload for packet in received(subscriber)] == [b"1"]
    assert node.sent() == [[], []]
    assert node.state.counters.publish_qos0_sent == 1


def test_only_publishers_of_stalled_shards_are_held(node: EdgeNode) -> None:
    node.routes.keep_all = True
    node.routes.refresh()
    node.recorder.stalled = frozenset({1, 3})
    first, second = (node.client(name, shard_of(name, SHARDS), MQTT5) for name in ids())

    for publisher in (first, second):
        publisher.read(encode(Publish("a", b"1", 1, packet_id=1), MQTT5))

    assert (first.holds, second.holds) == ([], [HOLD_LOG])
