"""Prints nanoseconds per step. The uncompiled column comes from a separate process with ``BRAIDMQ_PURE=1``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

from benchmarks.lane import __doc__ as title
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.channel import Channel
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.outbox import Outbox
from braidmq.lane.path.parser import FRAME, Parser
from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import PeerFlow, PeerOutlet
from braidmq.lane.peers.peer_receiver import PeerReceiver
from braidmq.lane.recording.commit_outcomes import CommitOutcomes
from braidmq.lane.records.records import encode_record
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription

FRAMES = 1000
EXACT, WILDCARD = 100_000, 100_000
FRAME_MAX = 1 << 20


class StandInFlow:
    """A stand-in for a flow."""

    is_durable = False


def stand_in() -> Any:
    """A new stand-in for a flow."""
    return StandInFlow()


def publish_frame(topic: bytes, payload: bytes) -> bytes:
    """A QoS 0 PUBLISH of MQTT 3.1.1 with less than 128 bytes of body."""
    body = len(topic).to_bytes(2, "big") + topic + payload
    return bytes((0x30, len(body))) + body


class Sink:
    """A transport that drops what is written."""

    def write(self, data: bytes) -> None:
        """Drop it."""

    def is_closing(self) -> bool:
        """Never."""
        return False


def make_lane() -> Lane:
    """A lane without bounds."""
    state = State(1 << 40, 1 << 40)
    state.marks = [0]
    return Lane(state, RouteTable(128))


def connect(lane: Lane, client_id: str) -> Channel:
    """A client whose packets go nowhere."""
    channel = Channel(lane, FRAME_MAX)
    channel.transport = Sink()
    channel.flow = Flow(client_id, lane.state, 1000, 1 << 30, False)
    channel.is_greeted = channel.is_open = True
    channel.flow.attach(channel, 1000)
    return channel


def peer_steps(buffer: bytes) -> dict[str, tuple[Callable[[], object], int]]:
    """A QoS 0 frame from its publisher to a subscriber on the same node, and on another one."""
    direct, here, there = make_lane(), make_lane(), make_lane()
    for lane in (direct, there):
        subscriber = connect(lane, "subscriber").flow
        assert subscriber is not None
        lane.routes.add(Subscription(subscriber, b"bench/#", 0))
    publishers = [connect(lane, "publisher") for lane in (direct, here)]
    peer = PeerFlow("there", here.state)
    outlet = PeerOutlet("there", here.state, 1 << 40, 1 << 20)
    peer.attach(outlet, 0)
    here.routes.apply_remote([b"bench/#"], [], Subscription(peer, b"#", 2, retain_as_published=True))
    receiver = PeerReceiver(there, CommitOutcomes(there), PeerFlow("here", there.state), 1 << 27)
    bodies = [(8, 0, 0, buffer)]
    value = encode_record(b"bench/7/t", b"x" * 64, 1, False, "publisher")
    stamps = iter(range(1, 1 << 60))

    def collect() -> None:
        publishers[1].feed(buffer)
        outlet.take_frames()

    def receive() -> None:
        for body in bodies:
            receiver.take(*body)

    def feed() -> None:
        for _ in range(FRAMES):
            peer.take_record(0, next(stamps), value)
        for body in outlet.take_frames():
            outlet.note_unwritten(0)
            receiver.take(*body)

    return {
        "QoS 0 frame, publisher to subscriber": (lambda: publishers[0].feed(buffer), FRAMES),
        "QoS 0 frame, publisher to peer's outlet": (collect, FRAMES),
        "QoS 0 frame, peer to subscriber": (receive, FRAMES),
        "record into a feed, and to a subscriber": (feed, FRAMES),
    }


def steps() -> dict[str, tuple[Callable[[], object], int]]:
    """Each step as a function, and how often the function performs it."""
    buffer = publish_frame(b"bench/7/t", b"x" * 64) * FRAMES
    parser = Parser()

    def parse_frames() -> None:
        parser.load(buffer, len(buffer), FRAME_MAX)
        while parser.next() == FRAME:
            parser.parse_publish(False)

    outbox = Outbox()

    def fill_outbox() -> None:
        for number in range(FRAMES):
            outbox.push_publish(0x32, b"bench/7/t", 1 + number, False, b"", b"", b"x" * 64, 0, -1, -1, FRAME_MAX)
        outbox.take()

    small, large = RouteTable(128), RouteTable(128)
    for table in (small, large):
        table.add(Subscription(stand_in(), b"bench/7/t", 0))
    for number in range(EXACT):
        large.add(Subscription(stand_in(), b"table/%d/t" % number, 0))
    for number in range(WILDCARD):
        large.add(Subscription(stand_in(), b"bench/+/w%d" % number if number % 2 else b"w%d/+/#" % number, 0))
    topics = [b"bench/%d/t" % number for number in range(FRAMES)]

    def resolve_known(table: RouteTable) -> Callable[[], object]:
        return lambda: [table.resolve(b"bench/7/t") for _ in range(FRAMES)]

    def match_new(table: RouteTable) -> Callable[[], object]:
        return lambda: [table.match_wild(topic) for topic in topics]

    return {
        "find and parse a PUBLISH": (parse_frames, FRAMES),
        "encode a QoS 1 PUBLISH into an outbox": (fill_outbox, FRAMES),
        "route of a known topic, empty table": (resolve_known(small), FRAMES),
        "route of a known topic, full table": (resolve_known(large), FRAMES),
        "match a new topic, empty table": (match_new(small), FRAMES),
        "match a new topic, full table": (match_new(large), FRAMES),
        **peer_steps(buffer),
    }


def measure() -> dict[str, float]:
    """Nanoseconds per step, the best of several tries: interference only makes it slower."""
    found = {}
    for name, (function, count) in steps().items():
        timer = timeit.Timer(function)
        number, _ = timer.autorange()
        found[name] = min(timer.repeat(5, max(1, number // 4))) / max(1, number // 4) / count * 1e9
    return found


def main() -> None:
    """Print the table, or with ``--json`` only the measurements of this process."""
    if "--json" in sys.argv:
        print(json.dumps(measure()))
        return
    forms = {}
    for form, pure in (("compiled", "0"), ("uncompiled", "1")):
        command = [sys.executable, "-m", "benchmarks.lane", "--json"]
        done = subprocess.run(command, env={**os.environ, "BRAIDMQ_PURE": pure}, stdout=subprocess.PIPE, check=True)
        forms[form] = json.loads(done.stdout)
    print(f"{title}\n\n{'ns per step':40}{'compiled':>12}{'uncompiled':>12}")
    for name, compiled in forms["compiled"].items():
        print(f"{name:40}{compiled:12,.0f}{forms['uncompiled'][name]:12,.0f}")


if __name__ == "__main__":
    main()
