"""Looking after a log while the node runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.base.units import Seconds
from braidmq.storage.engine.health import Health, HealthState
from braidmq.storage.engine.rocksdb import MIB, Tuning
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.shard.clock import ShardClock
from braidmq.storage.upkeep import watchdog as care
from tests.storage.log import Hands
from tests.storage.message_log import DEADLINE_S, BrokenDisk, tables_bytes, unexpected
from tests.support.appending import append as record


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care, "_CHECK_S", 0.002)
    monkeypatch.setattr(care, "_RETAIN_CHECKS", 2)
    monkeypatch.setattr(care, "_LEARN_CHECKS", 2)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        # What a check finds has no event of its own.
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def append(log: DurableLog, *topics: str) -> None:
    for topic in topics:
        record(log, "a", topic.encode(), os.urandom(2000), on_commit=lambda shard, timestamp: None, on_refused=unexpected)
    log.flush()
    await until(lambda: log.pending_bytes == 0)


def count_checks(log: DurableLog) -> list[Health]:
    """What the checks from now on have found."""
    found: list[Health] = []
    check = log.check

    def counting() -> Health:
        found.append(check())
        return found[-1]

    log.check = counting  # type: ignore[method-assign]
    return found


def test_a_full_disk_is_logged_once_and_recovers_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class SizedDisk(BrokenDisk):
        """Full until the tables are small."""

        def free_bytes(self, path: Path) -> int:
            return 0 if self.is_full and tables_bytes(path) > MIB // 2 else 10 * MIB

    async def run() -> None:
        disk = SizedDisk()
        hands = Hands()
        log = DurableLog.open(
            tmp_path,
            HistorySettings(shards=1, retention=Seconds(10)),
            clock=ShardClock(lambda: hands.boot, lambda: hands.wall),
            options=LogOptions(
                limits=EpochLimits(count_max=100), tuning=Tuning(memtables_bytes=MIB, reserve_bytes=MIB), disk=disk
            ),
        )
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        await append(log, *["t"] * 1000)
        await asyncio.to_thread(log.checkpoint, tmp_path / "copy")  # brings everything into tables
        watchdog = care.Watchdog(log)
        watchdog.start()
        disk.is_full = True
        await until(lambda: watchdog.health.state is HealthState.STOPPED)
        hands.move(20_000_000)

        await until(lambda: watchdog.health.state is HealthState.OK)

        watchdog.stop()
        log.close()

    with caplog.at_level(logging.WARNING, "braidmq.storage"):
        asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if record.name == "braidmq.storage"]
    assert [line.startswith("ALARM: the log accepts no messages") for line in said] == [True, False]
    assert said[1].startswith("the log accepts messages again")


@pytest.mark.parametrize("relearns", [True, False])
def test_patterns_are_relearned_only_if_configured(tmp_path: Path, relearns: bool) -> None:
    async def run() -> set[int]:
        log = DurableLog.open(tmp_path, HistorySettings(shards=1))
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        await append(log, *(f"acme/site{site}/line{line}/speed" for site in range(15) for line in range(15)))
        watchdog = care.Watchdog(log, relearns=relearns)
        checks = count_checks(log)
        watchdog.start()
        if relearns:
            await until(lambda: len(log.generations()) > 1)
        await until(lambda: len(checks) > 10)
        watchdog.stop()
        found = {each.number for each in log.generations()}
        log.close()
        return found

    assert asyncio.run(run()) == ({1, 2} if relearns else {1})


def test_a_log_can_be_closed_while_a_thread_uses_it(tmp_path: Path) -> None:
    async def run() -> None:
        log = DurableLog.open(tmp_path, HistorySettings(shards=4))
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        await append(log, *["t"] * 100)
        watchdog = care.Watchdog(log, relearns=True)
        checks = count_checks(log)
        watchdog.start()
        await until(lambda: len(checks) == 2)  # the second one has begun to learn, in a thread
        watchdog.stop()
        log.close()

    for _ in range(5):
        asyncio.run(run())
