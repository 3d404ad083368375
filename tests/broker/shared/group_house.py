"""A shared group on a lane of its own, with a log in memory and members that a test moves."""

from __future__ import annotations

from braidmq.broker.ports import Positions
from braidmq.broker.shared.group import Group, Groups
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import from_record
from braidmq.lane.records.records import Record, encode_record
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.packets import MQTT5, Publish
from tests.support.fakes.group_services import FakeGroupServices
from tests.support.simulator.lane import Bench, FakeChannel

TOPIC = b"t/1"


class House:
    """A group ``g`` over ``t/+`` whose members are durable unless said otherwise, and a log with two shards."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.services = FakeGroupServices(self.bench)
        self.groups = Groups(self.bench.routes, "round_robin", self.services)
        self.flows: dict[str, LogFlow] = {}
        self.channels: dict[str, FakeChannel] = {}
        self.clock = 1000

    @property
    def group(self) -> Group:
        (group,) = self.groups
        return group

    def join(self, name: str, qos: int = 1, window: int = 10, *, is_durable: bool = True, start: Positions | None = None) -> None:
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = LogFlow(name, self.bench.state, 100, 100_000, False, is_durable)
            self.connect(name, window)
        self.groups.join("g", flow, b"t/+", qos, False, b"", start)

    def connect(self, name: str, window: int = 10) -> None:
        self.channels[name] = self.bench.channel(self.flows[name], MQTT5, window)
        if len(self.groups):
            self.groups.relieve_all([self.group])
            self.services.turn()

    def lose(self, name: str) -> None:
        """Lose the connection, as the broker does that."""
        self.flows[name].detach()
        del self.channels[name]
        self.groups.redispatch(self.flows[name], is_over=False)
        self.services.turn()

    def record(self, payload: bytes, qos: int = 1, shard: int = 0, expires_at: int = 0) -> Record:
        """Put a message into the log, and show it to nobody."""
        self.clock += 1
        properties = b"\x02\x00\x00\x00\x64" if expires_at else b""
        value = encode_record(TOPIC, payload, qos, False, "p", properties, expires_at, 1 if expires_at else -1)
        record = Record(self.clock, value)
        self.services.log.records.append((shard, record))
        return record

    def publish(self, payload: bytes, qos: int = 1, shard: int = 0) -> None:
        """Record a message and offer it at its commit, as the recorder does."""
        record = self.record(payload, qos, shard)
        marks = self.bench.state.marks
        marks[shard] = record.timestamp - 1
        route = self.bench.routes.resolve(TOPIC)
        assert route is not None
        assert self.bench.lane.publish(from_record(shard, record), route, None) == 1
        marks[shard] = record.timestamp
        self.settle()

    def settle(self) -> None:
        """Commit the steps that wait for the disk, and let everything be written out."""
        for flow in self.flows.values():
            flow.make_ready(flow.take_unready())
        self.bench.lane.flush()

    def received(self, name: str) -> list[bytes]:
        return [packet.payload for packet in self.channels[name].sent() if isinstance(packet, Publish)]

    def acknowledge(self, name: str, packet_id: int, reason: int = 0) -> None:
        self.channels[name].acknowledged(PacketType.PUBACK, packet_id, reason)
        self.group.log.wake()  # as the connection does: somebody waits for its room
        self.services.turn()

    def places(self, *payloads: bytes) -> tuple[tuple[int, int], ...]:
        """Where these messages are in the log, in order of time."""
        return tuple((shard, record.timestamp) for shard, record in self.services.log.records if record.payload in payloads)
