"""Leases of shared groups and their results, as bodies of frames between a home and a node."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from braidmq.net.frames import BadFrame
from braidmq.net.proto_v1 import LeaseStatement

_HEAD: Final = Struct(">QIHBIQI")  # channel, member, lease, flags of the PUBLISH, shard, timestamp, length of the value
_RESULT: Final = Struct(">QHB")  # channel, lease, outcome
SETTLED: Final = 0
RETURNED: Final = 1
STATEMENT: Final = 1  # flag of LEASE_RESULTS: the body is a statement

_statement: Final = msgspec.msgpack.Decoder(LeaseStatement)


class LentMessage(NamedTuple):
    """A message that the home lends. ``lease`` is 0 for QoS 0; ``value``: the message as a record of the log."""

    channel: int
    member: int
    lease: int
    flags: int
    shard: int
    timestamp: int
    value: bytes

    @property
    def qos(self) -> int:
        """Of the member's copy."""
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        """Of the member's copy."""
        return bool(self.flags & 1)


class LeaseResult(NamedTuple):
    """What became of a lease."""

    channel: int
    lease: int
    outcome: int


def encode_lease(lent: LentMessage) -> bytes:
    """A part of a body of kind LEASES."""
    return _HEAD.pack(*lent[:6], len(lent.value)) + lent.value


def decode_leases(body: bytes) -> Iterator[LentMessage]:
    """The parts of a body. Raises BadFrame."""
    at = 0
    while at < len(body):
        if at + _HEAD.size > len(body):
            raise BadFrame("a lease is cut off")
        channel, member, lease, flags, shard, timestamp, length = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        value = body[at : at + length]
        if len(value) != length:
            raise BadFrame("the message of a lease is cut off")
        at += length
        yield LentMessage(channel, member, lease, flags, shard, timestamp, value)


def encode_result(result: LeaseResult) -> bytes:
    """A part of a body of kind LEASE_RESULTS."""
    return _RESULT.pack(*result)


def decode_results(body: bytes | memoryview) -> list[LeaseResult]:
    """The parts of a body. Raises BadFrame."""
    if len(body) % _RESULT.size:
        raise BadFrame("a result of a lease is cut off")
    return [LeaseResult(*fields) for fields in _RESULT.iter_unpack(body)]


def decode_statement(body: bytes | memoryview) -> LeaseStatement:
    """What a node still has. Raises BadFrame."""
    try:
        return _statement.decode(body)
    except msgspec.MsgspecError as problem:
        raise BadFrame(f"a statement about leases cannot be read: {problem}") from None
