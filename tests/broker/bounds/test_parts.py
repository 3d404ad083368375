"""Packets that have come in part: whose are let go when they are too much together."""

from __future__ import annotations

import asyncio
from typing import Any

from braidmq.broker.bounds.parts import Parts
from braidmq.lane.path.channel_reader import PART_BYTES
from braidmq.mqtt.reasons import Reason

LARGE = 4 * PART_BYTES


class Sender:
    """A connection as it is seen here."""

    client_id = "c"

    def __init__(self, part_bytes: int = LARGE, hold_bits: int = 0) -> None:
        self.part_bytes = part_bytes
        self.hold_bits = hold_bits
        self.closed_with: int | None = None

    def peer(self) -> str:
        return "-"

    def close(self, reason: int, detail: str) -> None:
        self.closed_with = reason


def note_all(parts: Parts, *senders: Sender) -> list[int | None]:
    """Tell of each of them, let the loop run, and give what they were closed with."""

    async def run() -> None:
        parts._loop = asyncio.get_running_loop()
        for sender in senders:
            given: Any = sender
            parts.note(given, sender.part_bytes)
        await asyncio.sleep(0)

    asyncio.run(run())
    return [sender.closed_with for sender in senders]


def new_parts(bytes_max: int) -> Parts:
    loop: Any = None  # the one that is running when something is noted
    return Parts(loop, bytes_max)


def test_the_oldest_unfinished_packets_are_closed_until_there_is_room() -> None:
    parts = new_parts(2 * LARGE)

    assert note_all(parts, Sender(), Sender(), Sender(), Sender()) == [Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED, None, None]
    assert (parts.size_bytes, parts.closed) == (2 * LARGE, 2)


def test_no_client_is_closed_within_the_bound() -> None:
    assert note_all(new_parts(2 * LARGE), Sender(), Sender()) == [None, None]


def test_packets_completed_meanwhile_do_not_count() -> None:
    parts, done = new_parts(2 * LARGE), Sender()
    note_all(parts, done)
    done.part_bytes = 0

    assert note_all(parts, Sender(), Sender()) == [None, None]
    assert (done.closed_with, parts.size_bytes) == (None, 2 * LARGE)


def test_a_client_that_the_broker_does_not_read_from_is_not_closed() -> None:
    held = Sender(hold_bits=1)

    assert note_all(new_parts(2 * LARGE), held, Sender(), Sender(), Sender()) == [None, Reason.QUOTA_EXCEEDED, None, None]


def test_a_client_that_has_begun_another_packet_is_no_longer_the_first() -> None:
    parts, busy, slow = new_parts(2 * LARGE), Sender(), Sender()
    note_all(parts, busy, slow)
    busy.part_bytes -= 1

    assert note_all(parts, busy, Sender()) == [None, None]
    assert slow.closed_with == Reason.QUOTA_EXCEEDED


def test_a_client_that_is_gone_takes_nothing() -> None:
    parts, gone = new_parts(2 * LARGE), Sender()
    note_all(parts, gone)
    given: Any = gone

    parts.forget(given)

    assert parts.size_bytes == 0
