"""A node that is spoken for by hand: it says what a test tells it to say, and notes what its core says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.lease_frames import STATEMENT, LeaseResult, LentMessage, decode_leases, encode_result
from braidmq.cluster.protocol.operations import JoinGroup, Operation
from braidmq.cluster.protocol.parts import BodyParts
from braidmq.cluster.remote.leases import message_of
from braidmq.cluster.routes import origin_of
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AnswerBody, BlockBody, HeldLeases, LeaseStatement, Position, ProbeAnswer, RowsEntry
from braidmq.net.proto_v1_claims import Declare
from tests.support.simulator.cluster_world import wires
from tests.support.simulator.cores_world import CoreWorld

_encode = msgspec.msgpack.encode


class EdgeNode:
    """A node without clients of its own, connected to one core."""

    def __init__(self, core: CoreWorld, name: str, number: int = 1) -> None:
        self.core = core
        self.member = Member(name, number)
        self.number = 1000 + number
        self.lent: list[LentMessage] = []
        self.answers: list[AnswerBody] = []
        self._blocks = 0
        self.connect()

    def connect(self, held: Sequence[HeldLeases] = ()) -> None:
        """New connections; says which leases it has."""
        core, home = self.core, self.core.home
        self._parts = BodyParts()
        self._peer = peer = home.join(self.member, self.number)
        self._calls, there = wires(core)
        peer.calls.open(there)
        peer.calls.declare(Declare([], [], 0, [], core.home.registry.term))
        self._wire, there_too = wires(core)
        there_too.on_frame = peer.receive
        self._wire.on_frame = self._receive
        peer.open_messages(there_too)
        self._wire.send(FrameKind.LEASE_RESULTS, 0, _encode(LeaseStatement(list(held))), STATEMENT)
        core.settle()

    def lose(self) -> None:
        """The connections are gone."""
        self._wire.other = self._wire.on_frame = None
        self._peer.calls.lose()
        self._peer.lose_messages()
        self.core.settle()

    def die(self) -> None:
        """The process has ended, and everybody knows."""
        self._wire.other = self._wire.on_frame = None
        self.core.home.bury(self.member)
        self.core.settle()

    def _receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        if kind is FrameKind.PROBE:
            answer = ProbeAnswer({origin_of(self.member.name): Position(self.member.incarnation, 0)})
            self._wire.send(FrameKind.PROBE_ANSWER, destination, _encode(answer))
        elif kind is FrameKind.BLOCK_ANSWERS and len(body):
            self.answers.append(msgspec.msgpack.decode(bytes(body), type=AnswerBody))
        elif kind is FrameKind.LEASES:
            whole = self._parts.add(0, flags, body)
            if whole is not None:
                self.lent += decode_leases(bytes(whole))

    # What it says

    def say(self, *rows: Operation) -> None:
        """Operations in an entry of the node's own; they are carried out when this returns."""
        self.send(*rows)
        self.core.settle()

    def send(self, *rows: Operation) -> None:
        """The same, and nothing else happens."""
        self._blocks += 1
        shard = min(self.core.home.led)
        entry = RowsEntry(0, operations.encode(rows))
        body = BlockBody(self._blocks, self._blocks - 1, 1 if self._blocks == 1 else 0, [entry])
        self._wire.send(FrameKind.BLOCK, shard, _encode(body))

    def join(self, client_id: str, channel: int, *, qos: int = 1, window: int = 10, start: list[int] | None = None) -> None:
        """A client of the node becomes a member of the group g over a."""
        self.say(joining(client_id, channel, qos=qos, window=window, start=start))

    def settle(self, lent: LentMessage, outcome: int = 0) -> None:
        """Answer a lease."""
        self._wire.send(FrameKind.LEASE_RESULTS, 0, encode_result(LeaseResult(lent.channel, lent.lease, outcome)))
        self.core.settle()

    def take(self) -> list[bytes]:
        """The payloads of what was lent since the last call; all of it is answered."""
        lent, self.lent = self.lent, []
        for each in lent:
            self.settle(each)
        return [message_of(each).payload for each in lent]


def joining(
    client_id: str, channel: int, *, qos: int = 1, window: int = 10, start: list[int] | None = None, is_stored: bool = False
) -> JoinGroup:
    """A guest's membership in the group g over a."""
    return JoinGroup(client_id, channel, "g", "a", qos, False, window, start, is_stored, channel)
