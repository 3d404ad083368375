"""Blocks are gathered while enough of them are on their way to a core."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from braidmq.cluster.protocol.blocks import BlockAnswer
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.entries import CollectedMessages, CollectedNotice
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import BlockBody, ReleaseEntry

SHARDS = 2
AT_LATEST_S = 0.001


class Timer:
    """A timer that a test lets fire."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds = seconds
        self.act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Core:
    """A core that answers when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []  # shard and number of each block
        self.timers: list[Timer] = []
        self.blocks = CoreBlocks(range(SHARDS), self._send, self._later, 15.0, 1 << 20)
        self.blocks.connected()

    def _send(self, kind: FrameKind, shard: int, body: bytes, flags: int) -> None:
        self.sent.append((shard, msgspec.msgpack.decode(body, type=BlockBody).number))

    def _later(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def round(self, *shards: int) -> list[tuple[int, int]]:
        """A turn has collected something small for these shards; what is sent at its end."""
        for shard in shards:
            self.blocks.shards[shard].add((CollectedNotice(ReleaseEntry(1, "closed"), lambda: None),))
        return self.flush()

    def flush(self) -> list[tuple[int, int]]:
        before = len(self.sent)
        self.blocks.flush()
        return self.sent[before:]

    def answer(self, shard: int, number: int) -> list[tuple[int, int]]:
        """The core answers a block; what is sent then."""
        before = len(self.sent)
        assert self.blocks.shards[shard].on_answer(BlockAnswer(number, {})) is not None
        self.blocks.note_answer(shard, number)
        return self.sent[before:]

    @property
    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]


@pytest.fixture
def core() -> Core:
    return Core()


def test_two_rounds_are_on_their_way_and_the_next_waits_until_one_is_answered(core: Core) -> None:
    assert core.round(0, 1) == [(0, 1), (1, 1)]
    assert core.round(0) == [(0, 2)]
    assert core.round(1) == []
    assert core.round(0) == []

    assert core.answer(0, 1) == core.flush() == [], "half of a round"
    assert core.answer(1, 1) == [(0, 3), (1, 2)], "all that was gathered, in one round"
    assert core.pending == []


def test_what_was_gathered_is_sent_after_a_millisecond_if_no_round_is_answered(core: Core) -> None:
    for _ in range(4):
        core.round(0)
    [timer] = core.pending
    assert timer.seconds <= AT_LATEST_S

    timer.act()

    assert core.sent == [(0, 1), (0, 2), (0, 3)]


def test_much_is_not_gathered(core: Core) -> None:
    core.round(0)
    core.round(0)
    value = bytes(5000)
    core.blocks.shards[1].add((CollectedMessages(1, [value], len(value), [], lambda pendings, refusal: None),))

    assert core.flush() == [(1, 1)]


def test_bytes_on_their_way_do_not_count_as_gathered(core: Core) -> None:
    value = bytes(5000)
    for shard in range(SHARDS):
        core.blocks.shards[shard].add((CollectedMessages(1, [value], len(value), [], lambda pendings, refusal: None),))
        core.flush()

    assert core.round(0) == []
    assert core.answer(0, 1) == [(0, 2)]


def test_nothing_is_gathered_when_all_must_be_sent(core: Core) -> None:
    for _ in range(3):
        core.round(0)

    core.blocks.flush_all()

    assert core.sent == [(0, 1), (0, 2), (0, 3)]
    assert core.pending == []


def test_rounds_of_a_lost_connection_hold_nothing_up(core: Core) -> None:
    for _ in range(3):
        core.round(0)
    core.blocks.lost()
    gathering, home_wait = core.timers
    assert gathering.is_cancelled
    assert not home_wait.is_cancelled
    core.sent.clear()

    core.blocks.connected()

    assert core.sent == [(0, 1), (0, 2), (0, 3)], "what was not answered, then what waited"
    assert core.round(1) == [(1, 1)]
    assert core.round(1) == [(1, 2)]
    assert core.round(1) == []
