"""A session's flow beside a log of two shards, for the tests of this folder."""

from __future__ import annotations

from time import monotonic

from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Packet, Publish
from tests.support.simulator.lane import Bench, FakeChannel

SHARD = 1


def bench_of_a_log() -> Bench:
    """A bench with marks of the log."""
    bench = Bench()
    bench.state.marks = [50, 100]
    return bench


def flow_of(bench: Bench, *, is_durable: bool = True, qos0: bool = False) -> LogFlow:
    return LogFlow("c", bench.state, 1000, 1_000_000, qos0, is_durable)


def recorded(timestamp: int, qos: int = 1, payload: bytes = b"", expires_in: float | None = None) -> Message:
    made = Message(b"t/%d" % timestamp, payload, qos, False, "p")
    if expires_in is not None:
        made.set_properties(b"\x02\x00\x00\x03\xe8", monotonic() + expires_in, 1)
    made.set_position(SHARD, timestamp)
    return made


def commit(bench: Bench, flow: LogFlow, *messages: Message) -> None:
    """Offer messages as the recorder does: the mark is below the message while it is offered, and at it afterwards."""
    for each in messages:
        bench.state.marks[SHARD] = each.timestamp - 1
        flow.deliver(each, Subscription(flow, b"#", 2), each.qos, False)
        bench.state.marks[SHARD] = each.timestamp


def write_cursor(flow: LogFlow) -> None:
    """Bring everything that waits for the disk there."""
    flow.make_ready(flow.take_unready())


def received(bench: Bench, channel: FakeChannel) -> list[Packet]:
    bench.lane.flush()
    return channel.sent()


def stamps(packets: list[Packet]) -> list[int]:
    return [int(packet.topic[2:]) for packet in packets if isinstance(packet, Publish)]
