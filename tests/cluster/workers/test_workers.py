"""The supervisor of workers, with processes that only pretend to be workers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cluster.workers import workers as module
from braidmq.cluster.workers.workers import Workers

PRELUDE = """
import os, socket, sys
from braidmq.cluster.workers import worker_messages as m

core = socket.socket(fileno=0)
stream = core.makefile("rb")
setup = m.to_worker(stream.read(m.length_of(stream.read(4))))
def say(message):
    core.sendall(m.frame(message))
"""
READY = PRELUDE + "say(m.WorkerReady()); stream.read(1)"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PRELUDE
FAILS = PRELUDE + "say(m.WorkerFailed('listeners.tcp.default.bind', 'address 127.0.0.1:1 is in use', 'stop it'))"
GARBAGE = PRELUDE + "core.sendall(bytes([255, 255, 255, 255]))"


@contextmanager
def workers_run(script: str) -> Iterator[None]:
    with mock.patch.object(module, "COMMAND", (sys.executable, "-c", script)):
        yield


def make(count: int = 1) -> Workers:
    return Workers(count, lambda number: b"config %d" % number, "/run/core.sock", b"secret")


def test_workers_are_ready_when_they_all_say_so() -> None:
    async def scenario() -> None:
        workers = make(2)
        await workers.start()

        assert workers.running == 2
        assert sorted(workers.process_ids) == [1, 2]
        await workers.stop()

        assert workers.running == 0
        assert workers.process_ids == {}
        assert workers.restarts == 0

    with workers_run(READY):
        asyncio.run(scenario())


def test_an_invalid_configuration_of_a_worker_ends_the_start() -> None:
    async def scenario() -> None:
        workers = make(2)

        with pytest.raises(ConfigError) as caught:
            await workers.start()
        await workers.stop()

        assert str(caught.value) == "listeners.tcp.default.bind: address 127.0.0.1:1 is in use; stop it"

    with workers_run(FAILS):
        asyncio.run(scenario())


def test_a_worker_that_does_not_stop_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        workers = make()
        await workers.start()

        await workers.stop()

        assert workers.process_ids == {}

    stubborn = IGNORES_SIGTERM + "say(m.WorkerReady())\nwhile True: signal.pause()"
    with workers_run(stubborn), mock.patch.object(module, "_STOP_S", 0.1), caplog.at_level("WARNING", "braidmq"):
        asyncio.run(scenario())

    assert "worker 1 did not stop within 0.1 s and is killed" in caplog.text


def test_a_worker_that_speaks_garbage_is_started_again() -> None:
    async def scenario() -> None:
        workers = make()
        lines: asyncio.Queue[str] = asyncio.Queue()
        with mock.patch.object(module.log, "error", lambda text, *values: lines.put_nowait(text % values)):
            starting = asyncio.ensure_future(workers.start())

            said = [await lines.get(), await lines.get()]

            starting.cancel()
            await workers.stop()
        assert "worker 1 is down: a message of 4294967295 bytes between a core and its worker" in said[0]
        assert [line.rpartition("; ")[2] for line in said] == ["restarting it in 0.01 s", "restarting it in 0.02 s"]

    with workers_run(GARBAGE), mock.patch.object(module, "_FIRST_PAUSE_S", 0.01):
        asyncio.run(scenario())


def test_auto_leaves_a_processor_to_the_core() -> None:
    for processors, count in ((1, 1), (2, 1), (3, 2), (8, 7)):
        with mock.patch.object(os, "sched_getaffinity", return_value=set(range(processors))):
            assert module.automatic_count() == count
