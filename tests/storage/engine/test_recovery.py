"""A store that goes on by itself after a fault that has passed: no descriptors, a failed write, a full disk."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from rocksdict import Rdict

from braidmq.base.errors import Corruption, Unavailable
from braidmq.storage.engine import recovery
from braidmq.storage.engine.database import Database
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.rocksdb import MIB, Disk, Tuning
from braidmq.storage.engine.store import Store
from braidmq.storage.log import LogOptions
from tests.storage.message_log import Stage

FAMILY = "shard-00"
END = b"\xff"
DEADLINE_S = 30.0
# Memtables that are soon full, so that the engine has to open files.
SMALL = Tuning(memtables_bytes=2 * MIB, block_cache_bytes=MIB, reserve_bytes=MIB)


class FaultyDisk(Disk):
    """A disk on which fsync fails while it is told so; `failed` is set when one has."""

    def __init__(self) -> None:
        self.is_faulty = False
        self.failed = threading.Event()

    def flush(self, db: Rdict) -> None:
        if self.is_faulty:
            self.failed.set()
            raise OSError(errno.EIO, "Input/output error")
        super().flush(db)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


class Loop:
    """A store, and the calls that its threads want to be made here."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        store.start(self.calls.put, lambda number: None)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Make calls and look after the store until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, self.store.health
            self.store.check()
            with suppress(Empty):
                self.calls.get(timeout=0.02)()


def append(store: Store, number: int) -> None:
    noise = random.Random(number)
    batch = store.batch()
    batch.put_all(FAMILY, [(b"%08d-%02d" % (number, row), noise.randbytes(1000)) for row in range(10)])
    store.write(batch)


def append_until_refused(store: Store, why: str) -> int:
    """How many batches were accepted until a write was refused for this reason; a stall is waited for."""
    number = 0
    while number < 5000:
        try:
            append(store, number)
            number += 1
        except Unavailable as problem:
            if why in str(problem):
                return number
            time.sleep(0.001)
    raise AssertionError("nothing was refused")


def batches_in(store: Store) -> set[int]:
    return {int(key[:8]) for key, _ in store.items(FAMILY, b"", END)}


def test_a_store_without_descriptors_rejects_writes_until_there_are_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(tmp_path / "log", [FAMILY], tuning=SMALL)
    loop = Loop(store)
    with no_descriptors():
        accepted = append_until_refused(store, "Too many open files")
        store.check()
        assert store.health.state is HealthState.STOPPED
        assert not store.health.needs_restart
        assert store.get(FAMILY, b"%08d-00" % (accepted - 1)) is not None

    loop.until(lambda: store.health.state is HealthState.OK)

    assert batches_in(store) == set(range(accepted))
    assert store.committed == store.written
    append(store, accepted)
    loop.until(lambda: store.committed == store.written)
    store.close()
    with Store.open(tmp_path / "log", [FAMILY]) as again:
        assert batches_in(again) == set(range(accepted + 1))
    assert "was reopened after a fault and accepts writes" in caplog.text


def test_writes_accepted_without_descriptors_are_committed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "log", [FAMILY], tuning=SMALL)
    told: SimpleQueue[int] = SimpleQueue()
    store.start(lambda call: call(), told.put)
    with no_descriptors():
        accepted = append_until_refused(store, "Too many open files")

        while told.get(timeout=DEADLINE_S) < accepted:
            pass
    store.close()


def test_reads_continue_while_a_database_is_reopened(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)
    append(store, 1)
    loop.until(lambda: store.committed == 1)
    disk.is_faulty = True
    append(store, 2)
    loop.until(lambda: store.health.state is HealthState.STOPPED)
    disk.failed.clear()
    failed = store._database

    loop.until(disk.failed.is_set)  # it is open again, and cannot be synced

    assert store._database is not failed
    assert batches_in(store) == {1, 2}
    assert store.get(FAMILY, b"%08d-00" % 2) is not None
    with pytest.raises(Unavailable, match="reopens it as soon as possible"):
        append(store, 3)
    disk.is_faulty = False
    loop.until(lambda: store.health.state is HealthState.OK)
    assert store.committed == 2
    store.close()


def test_a_store_closed_while_it_is_reopened_releases_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)
    append(store, 1)
    loop.until(lambda: store.committed == 1)
    disk.is_faulty = True
    append(store, 2)
    loop.until(lambda: store.health.state is HealthState.STOPPED)
    disk.failed.clear()
    loop.until(disk.failed.is_set)

    store.close()

    with Store.open(tmp_path / "log", [FAMILY]) as again:
        assert batches_in(again) == {1, 2}


def test_a_reopened_directory_without_the_written_data_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)
    append(store, 1)
    loop.until(lambda: store.committed == 1)

    def open_another(path: Path, *arguments: object) -> Database:
        disk.is_faulty = False
        database = Database.open(path, *arguments)  # type: ignore[arg-type]
        database.db.put(b"strange", b"row")
        return database

    monkeypatch.setattr(recovery, "Database", type("Another", (Database,), {"open": staticmethod(open_another)}))
    disk.is_faulty = True
    append(store, 2)
    loop.until(lambda: store.health.needs_restart)

    assert "differs by +1 rows from the rows written" in store.health.reason
    assert store.committed == 1
    with pytest.raises(Unavailable, match="until a restart"):
        append(store, 3)
    assert batches_in(store) == {1, 2}
    store.close()


def test_files_deleted_while_the_view_is_opened_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed database compacts and deletes what the view has just found in the manifest."""
    disk = FaultyDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)
    refused: list[Path] = []

    def open_read_only(path: Path, tuning: Tuning) -> Database:
        if len(refused) < 2:
            refused.append(path)
            raise Corruption("Can't access /000024.sst: No such file or directory")
        disk.is_faulty = False
        return Database.open_read_only(path, tuning)

    monkeypatch.setattr(recovery, "Database", type("Another", (Database,), {"open_read_only": staticmethod(open_read_only)}))
    disk.is_faulty = True
    append(store, 1)
    loop.until(disk.failed.is_set)

    loop.until(lambda: store.committed == 1)

    assert len(refused) == 2
    assert store.health.state is HealthState.OK
    store.close()


def test_a_view_that_stays_damaged_ends_the_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)

    def open_read_only(path: Path, tuning: Tuning) -> Database:
        raise Corruption("it is damaged")

    monkeypatch.setattr(recovery, "Database", type("Another", (Database,), {"open_read_only": staticmethod(open_read_only)}))
    monkeypatch.setattr(recovery, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(recovery, "_PAUSE_MAX_S", 0.001)
    disk.is_faulty = True
    append(store, 1)

    loop.until(lambda: store.health.needs_restart)

    assert "it is damaged" in store.health.reason
    store.close()


def test_a_disk_that_was_unavailable_for_a_while_is_used_again(tmp_path: Path) -> None:
    class GoneDisk(Disk):
        is_gone = False

        def free_bytes(self, path: Path) -> int:
            if self.is_gone:
                raise OSError(errno.EIO, "Input/output error")
            return super().free_bytes(path)

    disk = GoneDisk()
    store = Store.open(tmp_path / "log", [FAMILY], disk=disk)
    loop = Loop(store)
    disk.is_gone = True
    assert store.check().state is HealthState.STOPPED
    assert "is unavailable" in store.health.reason

    disk.is_gone = False
    loop.until(lambda: store.health.state is HealthState.OK)

    append(store, 1)
    loop.until(lambda: store.committed == 1)
    store.close()


def test_appends_in_doubt_are_acknowledged_once_on_disk_and_later_ones_rejected(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        stage.publish("a", "t", b"1")
        disk.is_faulty = True
        stage.append("a", "t", b"2")
        stage.log.flush()
        assert disk.failed.wait(DEADLINE_S)
        while stage.log.check().state is not HealthState.STOPPED:
            pass
        stage.append("a", "t", b"3")
        stage.log.flush()
        assert [(payload, refusal.is_in_doubt) for payload, refusal in stage.refusals] == [(b"3", False)]
        assert [payload for payload, _, _ in stage.acks] == [b"1"]
        assert stage.payloads("#") == [b"1"]

        disk.is_faulty = False
        deadline = time.monotonic() + DEADLINE_S
        while stage.log.check().state is HealthState.STOPPED:
            assert time.monotonic() < deadline
            with suppress(Empty):
                stage.calls.get(timeout=0.02)()
        stage.publish("a", "t", b"4")

        assert [payload for payload, _, _ in stage.acks] == [b"1", b"2", b"4"]
        assert len(stage.refusals) == 1
        assert stage.payloads("#") == [b"1", b"2", b"4"]
    with Stage(tmp_path) as again:
        assert again.payloads("#") == [b"1", b"2", b"4"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB; its tests need the mark ``tmpfs``."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # a test that failed may have left files open


@pytest.mark.needs("tmpfs")
def test_a_disk_that_fills_up_during_a_memtable_flush_is_used_again_when_it_has_space(small_disk: Path) -> None:
    """The engine runs into the end of the disk in the background, with tables, and with the write-ahead log."""
    (small_disk / "ballast").write_bytes(bytes(12 * MIB))
    store = Store.open(small_disk / "log", [FAMILY], tuning=SMALL)
    loop = Loop(store)
    accepted = append_until_refused(store, "full")
    assert store.health.state is HealthState.STOPPED
    assert not store.health.needs_restart

    (small_disk / "ballast").unlink()
    loop.until(lambda: store.health.state is HealthState.OK)

    append(store, accepted)
    loop.until(lambda: store.committed == store.written)
    assert batches_in(store) == set(range(accepted + 1))
    store.close()
    with Store.open(small_disk / "log", [FAMILY]) as again:
        assert batches_in(again) == set(range(accepted + 1))
