"""Two nodes without sockets: what waits for a peer is handed over body by body."""

from __future__ import annotations

from braidmq.lane.path.message import Message
from braidmq.lane.peers.peer import V5, Body, PeerFlow, PeerOutlet
from braidmq.lane.peers.peer_receiver import PeerReceiver
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import FrameSplitter, decode
from braidmq.mqtt.packets import MQTT5, MQTT311, Publish
from tests.lane.recording.published import RecordingBench
from tests.support.simulator.lane import Bench, FakeChannel

BODY_BYTES_MAX = 1 << 20
ITEM_BYTES_MAX = 1 << 27
NO_BOUND = 1 << 40


class Node(RecordingBench):
    """A lane with one peer, which wants everything unless told otherwise."""

    def __init__(
        self, wanted: tuple[bytes, ...] = (b"#",), bytes_max: int = NO_BOUND, body_bytes_max: int = BODY_BYTES_MAX
    ) -> None:
        super().__init__()
        self.routes.inspector = None
        self.asked = 0
        self.behind = 0
        self.peer = PeerFlow("peer", self.state)
        self.outlet = PeerOutlet("peer", self.state, bytes_max, body_bytes_max)
        self.outlet.on_work = self._note_work
        self.peer.on_behind = self._note_behind
        self.peer.attach(self.outlet, 0)
        self.peer.follow()
        self.routes.apply_remote(wanted, (), Subscription(self.peer, b"#", 2, retain_as_published=True))
        self.receiver = PeerReceiver(self.lane, self.recorder.outcomes, self.peer, ITEM_BYTES_MAX)

    def _note_work(self) -> None:
        self.asked += 1

    def _note_behind(self) -> None:
        self.behind += 1

    def publish(self, message: Message, timestamp: int = 0, shard: int = 0) -> int:
        """Deliver a message; one with a timestamp as if it were being shown after its commit."""
        if timestamp:
            message.set_position(shard, timestamp)
            self.state.marks[shard] = timestamp - 1
        route = self.routes.resolve(message.topic)
        assert route is not None
        reached = self.lane.publish(message, route, None)
        if timestamp:
            self.state.marks[shard] = timestamp
        self.lane.flush()
        return reached

    def receive(self, bodies: list[Body]) -> None:
        """Process bodies of the peer, in several turns if necessary."""
        for kind, flags, destination, body in bodies:
            is_done = self.receiver.take(kind, flags, destination, body)
            while not is_done:
                self.recorder.outcomes.go_on()
                is_done = self.receiver.go_on()

    def hand_over(self, other: Node) -> list[Body]:
        """Give the other node what waits for it."""
        bodies = self.outlet.take_frames()
        other.receive(bodies)
        return bodies


def subscribe(bench: Bench, client_id: str = "s", topic_filter: bytes = b"#", qos: int = 2, version: int = MQTT5) -> FakeChannel:
    """A connected client that sees RETAIN as published."""
    flow = bench.flow(client_id, 100_000, 1 << 30)
    bench.routes.add(Subscription(flow, topic_filter, qos, retain_as_published=True))
    return bench.channel(flow, version, 60_000)


def received(channel: FakeChannel) -> list[Publish]:
    """What the client got since the last call."""
    return [packet for packet in channel.sent() if isinstance(packet, Publish)]


def payloads(channel: FakeChannel) -> list[bytes]:
    """The payloads of what the client got since the last call."""
    return [packet.payload for packet in received(channel)]


def packets_of(body: Body) -> list[Publish]:
    version = MQTT5 if body[1] & V5 else MQTT311
    packets = [decode(first, rest, version) for first, rest in FrameSplitter(1 << 28).feed(body[3])]
    return [packet for packet in packets if isinstance(packet, Publish)]
