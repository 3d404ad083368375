"""Group commit: what a flush covers, what a failed one means, and what the loop is told."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from rocksdict import Rdict

from braidmq.base.errors import Unavailable, UsageError
from braidmq.storage.engine import committer
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.rocksdb import Disk
from braidmq.storage.engine.store import Store

FAMILY = "shard-00"
DEADLINE_S = 10.0


class SteppedDisk(Disk):
    """A disk whose flushes begin and end when the test says so, and fail when it says so."""

    def __init__(self) -> None:
        self.began: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Exception | None] = SimpleQueue()

    def flush(self, db: Rdict) -> None:
        self.began.put(None)
        answer = self._answers.get(timeout=DEADLINE_S)
        if answer is not None:
            raise answer
        super().flush(db)

    def finish(self, problem: Exception | None = None) -> None:
        """End the flush under way, or the next one."""
        self._answers.put(problem)

    def wait_begun(self) -> None:
        """Until a flush has begun."""
        self.began.get(timeout=DEADLINE_S)


class Stage:
    """A started store on a stepped disk; ``told`` is what ``on_commit`` was given."""

    def __init__(self, path: Path) -> None:
        self.disk = SteppedDisk()
        self.store = Store.open(path, [FAMILY], disk=self.disk)
        self.told: SimpleQueue[int] = SimpleQueue()
        self.store.start(lambda call: call(), self.told.put)

    def put(self, key: bytes) -> int:
        batch = self.store.batch()
        batch.put(FAMILY, key, b"value")
        return self.store.write(batch)

    def next_told(self) -> int:
        return self.told.get(timeout=DEADLINE_S)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "log")
    yield stage
    for _ in range(5):  # more answers than flushes can be outstanding
        stage.disk.finish()
    stage.store.close()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_flush_commits_only_writes_made_before_it_began(stage: Stage) -> None:
    stage.put(b"1")
    stage.disk.wait_begun()
    stage.put(b"2")
    stage.put(b"3")
    assert stage.store.committed == 0

    stage.disk.finish()
    assert stage.next_told() == 1
    stage.disk.wait_begun()
    assert stage.store.committed == 1

    stage.disk.finish()
    assert stage.next_told() == 3
    assert stage.store.committed == 3
    assert stage.store.stats()["commits"] == 2


def test_nothing_is_flushed_while_nothing_is_written(stage: Stage) -> None:
    stage.put(b"1")
    stage.disk.finish()
    stage.next_told()

    assert stage.disk.began.qsize() == 1


def test_after_a_flush_that_found_damage_nothing_is_committed_or_written(stage: Stage) -> None:
    stage.put(b"1")
    stage.disk.finish()
    stage.next_told()

    stage.put(b"2")
    stage.disk.finish(Exception("Corruption: bad record"))
    wait_until(lambda: stage.store.health.state is HealthState.STOPPED)

    assert stage.store.health.needs_restart
    assert "bad record" in stage.store.health.reason
    with pytest.raises(Unavailable, match="read-only until a restart"):
        stage.put(b"3")
    assert stage.store.check().needs_restart
    assert stage.store.committed == 1
    assert stage.disk.began.qsize() == 2  # not tried again
    assert stage.told.empty()


def test_after_a_failed_flush_rows_can_still_be_read(stage: Stage) -> None:
    stage.put(b"1")
    stage.disk.finish(OSError(5, "Input/output error"))
    wait_until(lambda: stage.store.health.state is HealthState.STOPPED)

    assert stage.store.get(FAMILY, b"1") == b"value"
    assert [key for key, _ in stage.store.items(FAMILY, b"", b"\xff")] == [b"1"]


def test_a_store_with_a_failed_flush_works_after_reopening(stage: Stage) -> None:
    stage.put(b"1")
    stage.disk.finish(OSError(5, "Input/output error"))
    wait_until(lambda: stage.store.health.state is HealthState.STOPPED)
    stage.store.close()

    with Store.open(stage.store.path, [FAMILY]) as store:
        batch = store.batch()
        batch.put(FAMILY, b"2", b"value")
        assert store.write(batch) == store.sync() == 1


@pytest.mark.parametrize(
    "problem",
    [
        OSError(5, "Input/output error"),
        Exception("IO error: No space left on device: While fdatasync: 000004.log: No space left on device"),
    ],
)
def test_after_a_failed_flush_the_database_is_reopened_and_pending_writes_are_committed(stage: Stage, problem: Exception) -> None:
    stage.put(b"1")
    stage.disk.finish(problem)
    wait_until(lambda: stage.store.health.state is HealthState.STOPPED)
    assert not stage.store.health.needs_restart
    with pytest.raises(Unavailable, match="reopens it as soon as possible"):
        stage.put(b"2")
    assert stage.told.empty()

    for _ in range(2):  # opening it ends with a flush of its own; the first of them fails, too
        stage.disk.finish(problem)
    stage.disk.finish()
    wait_until(lambda: stage.store.check().state is HealthState.OK)

    assert stage.next_told() == 1
    assert stage.put(b"3") == 2
    stage.disk.finish()
    assert stage.next_told() == 2
    assert [key for key, _ in stage.store.items(FAMILY, b"", b"\xff")] == [b"1", b"3"]
    assert stage.store.stats()["recoveries"] == 1


def test_a_failing_sync_stops_the_store_too(tmp_path: Path) -> None:
    disk = SteppedDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    store.write(store.batch())
    disk.finish(OSError(5, "Input/output error"))

    with pytest.raises(Unavailable, match="read-only until a restart"):
        store.sync()
    assert (store.committed, store.health.needs_restart) == (0, True)
    with pytest.raises(Unavailable):
        store.write(store.batch())
    store.close()


def test_a_flush_that_does_not_end_makes_the_store_slow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.put(b"1")
    stage.disk.wait_begun()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)

    health = stage.store.check()
    monkeypatch.undo()
    stage.disk.finish()
    stage.next_told()

    assert health.state is HealthState.SLOW
    assert "not finished a commit" in health.reason
    assert stage.store.check().state is HealthState.OK


def test_closing_commits_all_writes(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "log")
    stage.put(b"1")
    stage.disk.wait_begun()
    stage.put(b"2")
    stage.disk.finish()
    stage.disk.finish()

    stage.store.close()

    assert [stage.next_told(), stage.next_told()] == [1, 2]
    assert stage.store.committed == 2


def test_closing_gives_up_on_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "CLOSE_TIMEOUT_S", 0.05)
    stage = Stage(tmp_path / "log")
    stage.put(b"1")
    stage.disk.wait_begun()

    with pytest.raises(Unavailable, match="does not answer"):
        stage.store.close()
    stage.disk.finish()
    stage.next_told()


def test_a_store_starts_once_and_rejects_sync_afterwards(stage: Stage) -> None:
    with pytest.raises(UsageError, match="already been started"):
        stage.store.start(lambda call: call(), stage.told.put)
    with pytest.raises(UsageError, match="commits by itself"):
        stage.store.sync()


def test_writes_from_before_the_start_are_committed_by_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        store.write(store.batch())
        told: SimpleQueue[int] = SimpleQueue()

        store.start(lambda call: call(), told.put)

        assert told.get(timeout=DEADLINE_S) == 1


def test_the_commit_thread_gets_to_run_beside_a_busy_loop(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with Store.open(tmp_path / "log", [FAMILY]) as store:
            store.start(lambda call: call(), lambda number: None)
            assert sys.getswitchinterval() == pytest.approx(committer.SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before)


def test_a_closed_event_loop_does_not_end_committing(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        store.start(loop.call_soon_threadsafe, lambda number: None)

        store.write(store.batch())
        wait_until(lambda: store.committed == 1)
        store.write(store.batch())
        wait_until(lambda: store.committed == 2)


def test_on_commit_runs_on_the_loop_with_rising_numbers_and_every_write_is_covered(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        told: list[int] = []
        threads: set[threading.Thread] = set()
        done = asyncio.Event()

        def on_commit(number: int) -> None:
            told.append(number)
            threads.add(threading.current_thread())
            if number == 200:
                done.set()

        with Store.open(tmp_path / "log", [FAMILY]) as store:
            store.start(loop.call_soon_threadsafe, on_commit)
            for number in range(200):
                batch = store.batch()
                batch.put(FAMILY, b"%d" % number, b"value")
                store.write(batch)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            await asyncio.wait_for(done.wait(), DEADLINE_S)

        assert told == sorted(set(told))
        assert threads == {threading.current_thread()}

    asyncio.run(scenario())
