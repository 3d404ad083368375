"""Timers of judgements are late after a pause, and never act before the loop has read what arrived."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest
import uvloop

from braidmq.base.deadline_clock import BEAT_S, DeadlineClock
from braidmq.broker.timers import Timers


class Source:
    """Time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_timer_whose_time_passed_in_a_pause_waits_for_the_grace() -> None:
    source, fired = Source(), list[float]()

    async def run() -> None:
        timers = Timers(asyncio.get_running_loop(), DeadlineClock(source))
        timer = timers.after(0.001, lambda: fired.append(source.now))
        source.now += 4.0
        timer.wait()
        await turns()
        assert fired == []
        while source.now < 1009.0 and not fired:
            source.now += BEAT_S
            timers.beat()
            timer.wait()
            await turns()
        timer.cancel()

    asyncio.run(run())

    assert len(fired) == 1
    assert fired[0] >= 1007.0


def test_a_pause_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()

    async def run() -> Timers:
        timers = Timers(asyncio.get_running_loop(), DeadlineClock(source))
        timers.beat()
        source.now += 12.5
        timers.beat()
        timers.beat()
        return timers

    timers = asyncio.run(run())

    assert (timers.pauses, timers.paused_s) == (1, 12.5)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["the node did not run for 12.5 s"]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_data_that_has_arrived_when_a_timer_is_due_is_read_before_it_fires(make_loop: object) -> None:
    happened: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            timers = Timers(loop, DeadlineClock())
            loop.add_reader(ours, lambda: happened.append(f"read {ours.recv(100).decode()}"))
            over = asyncio.Event()
            timers.after(0.0, partial(happened.append, "judged"))
            timers.after(0.0, over.set)
            theirs.send(b"in time")
            await over.wait()
            loop.remove_reader(ours)

    with asyncio.Runner(loop_factory=make_loop) as runner:  # type: ignore[arg-type]
        runner.run(run())

    assert happened == ["read in time", "judged"]


def test_a_timer_can_be_cancelled_until_it_fires() -> None:
    fired: list[str] = []

    async def run() -> None:
        timers = Timers(asyncio.get_running_loop(), DeadlineClock())
        early, late = timers.after(0.0, partial(fired.append, "early")), timers.after(0.01, partial(fired.append, "late"))
        await turns(3)  # the first one is on its way
        early.cancel()
        late.cancel()
        await asyncio.sleep(0.05)

    asyncio.run(run())

    assert fired == []
