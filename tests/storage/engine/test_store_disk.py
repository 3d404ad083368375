"""The store on a disk that is full, or gone, and on an engine that cannot keep up."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.errors import BraidError, Unavailable
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.rocksdb import MIB, Disk, Fault, Tuning, classify
from braidmq.storage.engine.store import Store

FAMILY = "shard-00"
END = b"\xff"
DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Result incomplete: Write stall", Fault.STALL),
        ("IO error: No space left on device: While appending to file: /log/000004.log: No space left on device", Fault.FULL),
        ("IO error: No space left on device: While fdatasync: /log/000004.log: No space left on device", Fault.LASTING),
        ("IO error: Writer has previous error.", Fault.LASTING),
        ("Corruption: block checksum mismatch: stored = 1, computed = 2 in /log/000009.sst offset 1 size 2", Fault.LASTING),
    ],
)
def test_only_a_stall_and_a_disk_found_full_before_fsync_are_expected_to_pass(said: str, fault: Fault) -> None:
    assert classify(Exception(said)) is fault


class ShrinkingDisk(Disk):
    """A disk with as much free space as the test says."""

    def __init__(self, free_bytes: int) -> None:
        self.free = free_bytes

    def free_bytes(self, path: Path) -> int:
        return self.free


def test_a_reached_reserve_rejects_writes_until_there_is_space(tmp_path: Path) -> None:
    disk = ShrinkingDisk(100 * MIB)
    with Store.open(tmp_path / "log", [FAMILY], tuning=Tuning(reserve_bytes=64 * MIB), disk=disk) as store:
        assert store.check().state is HealthState.OK
        store.write(store.batch())

        disk.free = 63 * MIB
        assert store.check().state is HealthState.STOPPED
        assert not store.health.needs_restart
        with pytest.raises(Unavailable, match="only 63 MiB left, 64 MiB are reserved"):
            store.write(store.batch())

        disk.free = 65 * MIB  # above the reserve, but not enough above it
        assert store.check().state is HealthState.STOPPED

        disk.free = 80 * MIB
        assert store.check().state is HealthState.OK
        assert store.write(store.batch()) == 2


def test_writes_that_free_space_may_use_the_reserve(tmp_path: Path) -> None:
    disk = ShrinkingDisk(0)
    with Store.open(tmp_path / "log", [FAMILY], disk=disk) as store:
        batch = store.batch()
        batch.put(FAMILY, b"a", b"1")
        store.write(batch)
        assert store.check().state is HealthState.STOPPED

        removal = store.batch()
        removal.delete_range(FAMILY, b"", END)
        store.write(removal, frees_space=True)

        assert store.get(FAMILY, b"a") is None
        with pytest.raises(Unavailable):
            store.write(store.batch())


def test_closing_waits_for_a_compaction_in_a_thread(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "log", [FAMILY])
    for number in range(200):
        append(store, number)
    compaction = threading.Thread(target=store.compact, args=(FAMILY, b"", END))
    compaction.start()

    store.close()
    compaction.join(DEADLINE_S)

    assert not compaction.is_alive()
    assert batches_after_reopening(tmp_path / "log") == set(range(200))


def test_writes_made_before_the_reserve_was_reached_are_committed(tmp_path: Path) -> None:
    disk = ShrinkingDisk(100 * MIB)
    with Store.open(tmp_path / "log", [FAMILY], tuning=Tuning(reserve_bytes=64 * MIB), disk=disk) as store:
        store.write(store.batch())
        disk.free = 0
        store.check()

        store.start(lambda call: call(), lambda number: None)

        wait_committed(store, 1)


def wait_committed(store: Store, number: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while store.committed < number:
        assert time.monotonic() < deadline, store.health
        time.sleep(0.005)


def test_a_disk_that_is_gone_stops_the_store(tmp_path: Path) -> None:
    class GoneDisk(Disk):
        def free_bytes(self, path: Path) -> int:
            raise OSError(5, "Input/output error")

    with Store.open(tmp_path / "log", [FAMILY], disk=GoneDisk()) as store:
        assert store.check().needs_restart
        with pytest.raises(Unavailable, match="is unavailable"):
            store.write(store.batch())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB; its tests need the mark ``tmpfs``."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # a test that failed may have left files open


def append(store: Store, number: int) -> None:
    noise = random.Random(number)
    batch = store.batch()
    batch.put_all(FAMILY, [(b"%08d-%02d" % (number, row), noise.randbytes(1000)) for row in range(10)])
    store.write(batch)


# On the small disk: memtables that never fill up, so that it is the write-ahead log that runs into the end of the disk.
SMALL = Tuning(memtables_bytes=16 * MIB, block_cache_bytes=MIB, reserve_bytes=MIB)
BALLAST_BYTES = 8 * MIB


def append_until_refused(store: Store, *, commit: bool) -> int:
    """How many batches were accepted."""
    for number in range(2000):
        try:
            append(store, number)
        except Unavailable:
            return number
        if commit:
            wait_committed(store, store.written)
    raise AssertionError("the disk did not fill up")


def check_until_resumed(store: Store) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while store.check().state is HealthState.STOPPED:
        assert not store.health.needs_restart, store.health
        assert time.monotonic() < deadline, store.health
        time.sleep(0.05)


def batches_after_reopening(path: Path) -> set[int]:
    with Store.open(path, [FAMILY], tuning=SMALL) as store:
        return {int(key[:8]) for key, _ in store.items(FAMILY, b"", END)}


@pytest.mark.needs("tmpfs")
def test_a_disk_that_fills_up_below_the_reserve_stops_the_store_and_nothing_is_lost(small_disk: Path) -> None:
    """Somebody else fills the disk between two checks: the engine itself runs into its end, and goes on when there is space."""
    (small_disk / "ballast").write_bytes(bytes(BALLAST_BYTES))
    store = Store.open(small_disk / "log", [FAMILY], tuning=SMALL)
    store.start(lambda call: call(), lambda number: None)
    accepted = append_until_refused(store, commit=True)

    assert store.health.state is HealthState.STOPPED
    assert "is full" in store.health.reason
    assert store.check().state is HealthState.STOPPED
    with pytest.raises(Unavailable):
        append(store, accepted)

    (small_disk / "ballast").unlink()
    check_until_resumed(store)
    append(store, accepted)
    wait_committed(store, store.written)
    store.close()

    assert batches_after_reopening(small_disk / "log") == set(range(accepted + 1))


@pytest.mark.needs("tmpfs")
def test_writes_pending_when_the_disk_fills_up_are_committed_when_there_is_space(small_disk: Path) -> None:
    """A flush of the unfinished log file would be taken for the end by RocksDB: it has to be held back until then."""
    (small_disk / "ballast").write_bytes(bytes(BALLAST_BYTES))
    store = Store.open(small_disk / "log", [FAMILY], tuning=SMALL)
    accepted = append_until_refused(store, commit=False)
    with pytest.raises(Unavailable, match="is full"):
        store.sync()
    store.start(lambda call: call(), lambda number: None)

    (small_disk / "ballast").unlink()
    check_until_resumed(store)
    wait_committed(store, accepted)
    store.close()

    assert batches_after_reopening(small_disk / "log") == set(range(accepted))


@pytest.mark.needs("tmpfs")
def test_opening_a_log_on_a_full_disk_fails_with_a_clear_message(small_disk: Path) -> None:
    Store.open(small_disk / "log", [FAMILY]).close()
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(12 * MIB))

    with pytest.raises(Unavailable, match="is full"):
        Store.open(small_disk / "log", [FAMILY, "shard-01"])


def test_a_stalled_engine_refuses_writes_instead_of_freezing_the_caller(tmp_path: Path) -> None:
    """Memtables so small that they cannot be written out as fast as they fill up."""
    tuning = Tuning(memtables_bytes=256 * 1024)
    value = random.Random(0).randbytes(1000)
    with Store.open(tmp_path / "log", [FAMILY], tuning=tuning) as store:
        longest_s = 0.0
        refused: BraidError | None = None
        number = accepted = 0
        while refused is None and number < 5_000:
            batch = store.batch()
            batch.put_all(FAMILY, [(b"%08d-%03d" % (number, row), value) for row in range(200)])
            number += 1
            began = time.monotonic()
            try:
                store.write(batch)
                accepted += 1
            except Unavailable as problem:
                refused = problem
            longest_s = max(longest_s, time.monotonic() - began)

        assert refused is not None, "the engine kept up; the test needs smaller memtables"
        assert "stalled" in str(refused)
        assert longest_s < 1.0
        assert store.get(FAMILY, b"%08d-000" % (number - 1)) is None

        deadline = time.monotonic() + DEADLINE_S
        while store.check().state is not HealthState.OK:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert store.write(store.batch()) == accepted + 1
