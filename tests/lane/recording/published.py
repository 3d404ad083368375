"""A lane whose messages are recorded, without a log."""

from __future__ import annotations

from msgspec import Struct

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.ports import Change
from braidmq.lane.recording.recorder import Block, Recorder
from braidmq.lane.routing.routes import HISTORY
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import MQTT5
from tests.support.simulator.lane import Bench, FakeChannel


class Row(Change, Struct, frozen=True):
    """What a store would write."""

    name: str
    packet_id: int = 0


class RecordingChannel(FakeChannel):
    """A channel whose messages are recorded."""

    def __init__(self, bench: RecordingBench, version: int) -> None:
        super().__init__(bench.lane, version)
        self.recorder = bench.recorder
        self.refused: list[tuple[int, int, bool]] = []

    def received_row(self, packet_id: int) -> Change:
        return Row("received", packet_id)

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        self.refused.append((qos, packet_id, is_in_doubt))


class RecordingBench(Bench):
    """A lane that records everything of QoS 1 and above."""

    def __init__(self) -> None:
        super().__init__()
        self.state.marks = [10, 20]
        self.routes.inspector = lambda topic: HISTORY
        self.routes.history_qos = 1
        self.begun = 0
        self.faults: list[Exception] = []
        self.recorder = Recorder(self.lane, self.begin)
        self.recorder.outcomes.on_fault = self.faults.append

    def begin(self) -> None:
        self.begun += 1

    def client(self, client_id: str = "p", home_shard: int = 0, version: int = MQTT5) -> RecordingChannel:
        """A connected publisher whose records go to this shard."""
        flow = self.flow(client_id)
        flow.home_shard = home_shard
        channel = RecordingChannel(self, version)
        channel.flow = flow
        channel.is_greeted = channel.is_open = True
        flow.attach(channel, 100)
        return channel

    def subscriber(self, client_id: str = "s", qos: int = 2) -> FakeChannel:
        """A connected client that gets everything."""
        flow = self.flow(client_id)
        self.routes.add(Subscription(flow, b"#", qos))
        return self.channel(flow, MQTT5)

    def take(self) -> Block:
        block = self.recorder.take()
        assert block is not None
        return block
