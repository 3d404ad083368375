"""The ceiling of the timestamps (C36): with durability "os", no timestamp is used twice, whatever a power cut takes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import Unavailable
from braidmq.storage.engine.ceiling import CeilingFile, ceiling_path
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.upkeep import stamps
from tests.storage.log import Hands
from tests.storage.message_log import DEADLINE_S, unexpected
from tests.support.appending import append as record

OS = HistorySettings(shards=2, durability="os")


def open_log(data_dir: Path, hands: Hands, settings: HistorySettings = OS) -> DurableLog:
    return DurableLog.open(data_dir, settings, clock=hands.clock())


async def start_log(data_dir: Path, hands: Hands) -> DurableLog:
    log = open_log(data_dir, hands)
    log.start(asyncio.get_running_loop().call_soon_threadsafe)
    return log


async def append(log: DurableLog) -> int:
    """Record a message; its timestamp."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    record(log, "a", b"t", b"x", on_commit=lambda shard, timestamp: done.set_result(timestamp), on_refused=unexpected)
    log.flush()
    async with asyncio.timeout(DEADLINE_S):
        return await done


async def refusal(log: DurableLog) -> str:
    done: asyncio.Future[WriteRefusal] = asyncio.get_running_loop().create_future()

    def committed(_shard: int, _timestamp: int) -> None:
        done.cancel()

    record(log, "a", b"t", b"x", on_commit=committed, on_refused=done.set_result)
    log.flush()
    async with asyncio.timeout(DEADLINE_S):
        return (await done).reason


def on_disk(data_dir: Path) -> int:
    return CeilingFile(ceiling_path(data_dir / "log")).value


def take_back(data_dir: Path, copy: Path) -> None:
    """What a power cut does: the log is as it was at the last sync, while the ceiling, which is synced, remains."""
    shutil.rmtree(data_dir / "log")
    shutil.copytree(copy, data_dir / "log")
    (data_dir / "log.mark").unlink()


def renew(log: DurableLog) -> None:
    """Let a new ceiling be written and used."""
    log.check()
    wait_for_renewal(log)
    log.check()


def wait_for_renewal(log: DurableLog) -> None:
    thread = log._ceiling._renewal
    if thread is not None:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_c36_no_timestamp_is_used_twice_after_a_power_cut(tmp_path: Path) -> None:
    data_dir, hands = tmp_path / "data", Hands()
    open_log(data_dir, hands).close()
    synced = tmp_path / "synced"
    shutil.copytree(data_dir / "log", synced)

    async def run() -> None:
        log = await start_log(data_dir, hands)
        hands.move(3_000_000)
        last = await append(log)
        log.close()
        # As if the machine had lost its power instead of closing the log.
        take_back(data_dir, synced)
        hands.move(-2_000_000)  # and the clock comes up behind
        log = await start_log(data_dir, hands)
        assert await append(log) > last
        log.close()

    asyncio.run(run())


def test_the_ceiling_is_on_disk_before_a_record_is_stamped_and_stays_ahead(tmp_path: Path) -> None:
    hands = Hands()

    async def run() -> None:
        log = await start_log(tmp_path, hands)
        for _ in range(10):
            assert on_disk(tmp_path) >= await append(log)
            hands.move(1_000_000)
            renew(log)
        assert on_disk(tmp_path) - log.now() > stamps.AHEAD_US - 3_000_000
        log.close()

    asyncio.run(run())


def test_a_pause_longer_than_the_ceiling_refuses_nothing(tmp_path: Path) -> None:
    hands = Hands()

    async def run() -> None:
        log = await start_log(tmp_path, hands)
        hands.move(60_000_000)
        first, second = await append(log), await append(log)
        assert first < second <= on_disk(tmp_path) < log.now()
        renew(log)
        assert await append(log) == log.now()
        log.close()

    asyncio.run(run())


def test_without_stamps_below_the_ceiling_messages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stamps, "ROOM_US", 0)
    hands = Hands()

    async def run() -> None:
        log = await start_log(tmp_path, hands)

        def broken(_file: CeilingFile, _value: int) -> None:
            raise OSError("no space")

        with monkeypatch.context() as broken_disk:
            broken_disk.setattr(CeilingFile, "put", broken)
            hands.move(stamps.AHEAD_US)
            assert await append(log) == on_disk(tmp_path)
            assert "could not be raised in time" in await refusal(log)
            log.check()
            wait_for_renewal(log)
            log.check()
            wait_for_renewal(log)
        assert caplog.text.count("cannot write the ceiling for timestamps") == 1
        hands.move(1_000_000)
        renew(log)
        assert await append(log) == log.now()
        log.close()

    asyncio.run(run())


def test_after_an_orderly_stop_stamps_follow_the_clock_again(tmp_path: Path) -> None:
    hands = Hands()

    async def run() -> None:
        log = await start_log(tmp_path, hands)
        last = await append(log)
        log.close()
        assert on_disk(tmp_path) == last
        hands.move(1)
        log = await start_log(tmp_path, hands)
        assert await append(log) == last + 1 == log.now()
        log.close()

    asyncio.run(run())


def test_a_log_that_is_synced_has_no_ceiling_but_begins_above_an_old_one(tmp_path: Path) -> None:
    fsync = HistorySettings(shards=2)
    open_log(tmp_path / "new", Hands(), fsync).close()
    assert not ceiling_path(tmp_path / "new" / "log").exists()

    hands = Hands()
    CeilingFile(ceiling_path(tmp_path / "log")).put(hands.wall + 1_000)

    async def run() -> None:
        log = open_log(tmp_path, hands, fsync)
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        assert await append(log) == hands.wall + 1_001
        log.close()

    asyncio.run(run())


def test_a_slot_that_was_half_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "log.ceiling"
    file = CeilingFile(path)
    file.put(1_000)
    file.put(2_000)
    data = bytearray(path.read_bytes())
    torn = data.rindex((2_000).to_bytes(8, "big"))
    data[torn] ^= 1
    path.write_bytes(data)
    assert CeilingFile(path).value == 1_000


def test_a_ceiling_that_cannot_be_written_at_the_start_is_told(tmp_path: Path) -> None:
    ceiling_path(tmp_path / "log").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"cannot read .*log\.ceiling"):
        open_log(tmp_path, Hands())
