"""A lane with channels whose transports are lists of bytes, for tests without sockets or an event loop."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.channel import Channel
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from braidmq.lane.routing.routes import Route, RouteTable
from braidmq.mqtt.codec import FrameSplitter, decode
from braidmq.mqtt.packets import MQTT5, MQTT311, Packet

FRAME_MAX = 268_435_460


class FakeTransport:
    """Takes what is written, and remembers whether it may be read from; pausing twice is once, as with asyncio's."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written to after close"
        self.written += data

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed


class FakeChannel(Channel):
    """A channel that notes what the broker above it would be told."""

    def __init__(self, lane: Lane, version: int = MQTT5, frame_max: int = FRAME_MAX) -> None:
        super().__init__(lane, frame_max)
        self.version = version
        self.is_v5 = version == MQTT5
        self.transport = FakeTransport()
        self.packets: list[tuple[int, int, bytes]] = []
        self.published: list[Message] = []
        self.publish_code = 0
        self.bad_topics: list[bytes] = []
        self.denied: list[bytes] = []
        self.allowed: Callable[[bytes], bool] = lambda topic: True
        self.asked: list[bytes] = []
        self.violations: list[int] = []
        self.holds: list[int] = []
        self.metered: list[tuple[int, int]] = []
        self.parts: list[int] = []
        self.rooms = 0
        self.releases = 0
        self.traced: list[tuple[bool, bytes]] = []
        self.hold_on_packet = 0

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        self.packets.append((kind, flags, body))
        if self.hold_on_packet:
            self.hold(self.hold_on_packet)

    def on_publish(self, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        self.published.append(message)
        return self.publish_code

    def on_bad_topic(self, topic: bytes) -> None:
        self.bad_topics.append(topic)
        self.on_violation(0x90, "bad topic")

    def on_denied(self, topic: bytes) -> bool:
        self.denied.append(topic)
        return True

    def may_publish(self, topic: bytes) -> bool:
        self.asked.append(topic)
        return self.allowed(topic)

    def on_violation(self, reason: int, detail: str) -> None:
        self.violations.append(reason)
        self.hold(16)  # HOLD_CLOSED

    def on_hold(self, bit: int) -> None:
        self.holds.append(bit)

    def on_metered(self, messages: int, size: int) -> None:
        self.metered.append((messages, size))

    def on_part(self, size: int) -> None:
        self.parts.append(size)

    def on_room(self) -> None:
        self.rooms += 1

    def on_trace(self, inbound: bool, frame: bytes) -> None:
        self.traced.append((inbound, frame))

    def schedule_release(self) -> None:
        self.releases += 1

    def read(self, data: bytes) -> None:
        """Receive bytes the way an asyncio transport hands them over."""
        view = self.get_buffer(-1)
        assert len(view) >= len(data), "the test sends more than one read takes"
        view[: len(data)] = data
        self.buffer_updated(len(data))

    def sent(self) -> list[Packet]:
        """The packets written since the last call, decoded."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return [decode(first, body, self.version) for first, body in FrameSplitter(FRAME_MAX).feed(data)] if data else []


class Bench:
    """A lane and its connections."""

    def __init__(self, outbox_bytes_max: int = 1_000_000, work_max: int = 1_000_000, levels_max: int = 128) -> None:
        self.state = State(outbox_bytes_max, work_max)
        self.routes = RouteTable(levels_max)
        self.lane = Lane(self.state, self.routes)
        self.drops: list[tuple[str, str, bytes]] = []
        self.state.on_drop = lambda reason, client_id, topic: self.drops.append((reason, client_id, topic))

    def flow(self, client_id: str = "c", messages_max: int = 1000, bytes_max: int = 1_000_000, qos0: bool = False) -> Flow:
        """The flow of a new session."""
        return Flow(client_id, self.state, messages_max, bytes_max, qos0)

    def channel(self, flow: Flow | None = None, version: int = MQTT311, window: int = 100) -> FakeChannel:
        """An open connection of a client; its session is new unless given."""
        channel = FakeChannel(self.lane, version)
        flow = self.flow() if flow is None else flow
        channel.flow = flow
        channel.is_greeted = channel.is_open = True
        flow.attach(channel, window)
        self.lane.flush()
        return channel
