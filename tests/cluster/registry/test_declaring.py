"""Declarations in parts: a node may have more clients of a home than a frame has room for."""

from __future__ import annotations

import msgspec

from braidmq.cluster.registry.declaring import PART_BYTES, parts_of, whole
from braidmq.net.frames import BODY_BYTES_MAX
from braidmq.net.proto_v1_claims import ClaimId, ClaimTimes, Declare, DeclaredChannel, EndedChannel, VersionId

LARGE = (1 << 45) - 1
VERSION = VersionId(LARGE, LARGE, LARGE, LARGE, 1000)
TIMES = ClaimTimes(LARGE, 1000, LARGE, 1000)


def channel(number: int, will: bytes = b"") -> DeclaredChannel:
    return DeclaredChannel(f"sensor-{number}", number, LARGE, None, 0, will, VERSION, TIMES)


def test_a_small_declaration_is_one_call() -> None:
    declare = Declare([channel(1)], [], 1, [], 7)

    assert parts_of(declare) == ([], declare)


def test_a_large_declaration_is_put_together_again_and_each_part_fits_into_a_frame() -> None:
    channels = [channel(number) for number in range(20_000)]
    claims = [ClaimId(30_000, "c", 30_000, None, True, 0, b"")]
    ended = [EndedChannel("gone", 30_001, LARGE, VERSION, TIMES)]
    declare = Declare(channels, claims, 30_001, ended, 7)

    parts, call = parts_of(declare)

    assert len(parts) > 1
    assert all(len(msgspec.msgpack.encode([part])) < BODY_BYTES_MAX for part in parts)
    assert len(msgspec.msgpack.encode(call)) < 100
    assert whole(parts, call) == declare


def test_parts_are_cut_by_the_size_of_wills_too() -> None:
    declare = Declare([channel(number, bytes(PART_BYTES)) for number in range(3)], [], 3, [], 7)

    assert [len(part.channels) for part in parts_of(declare)[0]] == [1, 1, 1]
