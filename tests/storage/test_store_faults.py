"""The store against real faults: kill -9, torn and flipped bytes, a full disk, a stalled engine, a second process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.errors import BraidError, ConfigError, Corruption, Unavailable, UsageError
from braidmq.storage.engine import MIB, Disk, Tuning
from braidmq.storage.health import State
from braidmq.storage.store import Cursor, Store
from tests.support.started import SOURCES

FAMILY = "shard-00"
END = b"\xff"
DEADLINE_S = 30.0

WRITER = r"""
import os, sys, time
from braidmq.storage.store import Store

def say(word):
    os.write(1, b"%s\n" % str(word).encode())  # a line is one write, whichever thread it comes from

store = Store.open(sys.argv[1], ["shard-00"])
batches = int(sys.argv[2])
store.start(lambda call: call(), say)
for number in range(1, batches + 1):
    batch = store.batch()
    batch.put_all("shard-00", [(b"%08d-%02d" % (number, row), b"v" * 100) for row in range(10)])
    store.write(batch)
    if number % 5 == 0:
        time.sleep(0.0005)
say("done")
sys.stdin.read()
"""


class Writer:
    """A process that writes numbered batches of ten rows, and prints every number that is committed."""

    def __init__(self, path: Path, batches: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(batches)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_first_commit(self) -> int:
        """The number of the first commit."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def wait_done(self) -> None:
        """Until everything is written; the process then lives on."""
        assert self.process.stdout is not None
        assert "done\n" in iter(self.process.stdout.readline, "")

    def kill(self) -> int:
        """End it with SIGKILL; the highest number of a commit that it has told of since it was last read from."""
        self.process.kill()
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return max((int(line) for line in output.splitlines() if line.isdigit()), default=0)


def batches_in(store: Store) -> list[int]:
    """The numbers of the batches that are there; each must be whole."""
    rows: dict[int, int] = {}
    for key, value in store.items(FAMILY, b"", END):
        assert value == b"v" * 100
        number = int(key[:8])
        rows[number] = rows.get(number, 0) + 1
    assert set(rows.values()) <= {10}
    return list(rows)


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_loses_no_committed_batch_and_tears_none(tmp_path: Path, seed: int) -> None:
    with Writer(tmp_path / "log", 1_000_000) as writer:
        first = writer.wait_first_commit()
        time.sleep(random.Random(seed).uniform(0.0, 0.3))  # the moment of the kill is what is tried out
        committed = max(writer.kill(), first)

    with Store.open(tmp_path / "log", [FAMILY]) as store:
        found = batches_in(store)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= committed


def test_a_second_process_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    with Writer(tmp_path / "log", 1) as writer:
        writer.wait_done()

        with pytest.raises(UsageError, match=f"in use by process {writer.process.pid}"):
            Store.open(tmp_path / "log", [FAMILY])

    Store.open(tmp_path / "log", [FAMILY]).close()


def test_opening_twice_in_one_process_is_refused_in_words(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]), pytest.raises(UsageError, match="open in this process already"):
        Store.open(tmp_path / "log", [FAMILY])


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The log of a process that wrote 100 batches and was killed, so that all of them are in the write-ahead log alone."""
    with Writer(tmp_path / "log", 100) as writer:
        writer.wait_done()
    return tmp_path / "log"


def write_ahead_log(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda file: file.stat().st_size)


def flip_bit(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)


@pytest.mark.parametrize("cut", [1, 30, 1100, 5000])
def test_a_torn_tail_is_cut_to_the_last_whole_batch(killed: Path, cut: int) -> None:
    file = write_ahead_log(killed)
    os.truncate(file, file.stat().st_size - cut)
    batch_bytes = 10 * 100

    with Store.open(killed, [FAMILY]) as store:
        found = batches_in(store)

    assert found == list(range(1, len(found) + 1))
    assert 99 - cut // batch_bytes <= len(found) <= 99


def test_a_flipped_bit_in_the_write_ahead_log_is_refused_and_salvage_keeps_what_is_before_it(killed: Path) -> None:
    file = write_ahead_log(killed)
    flip_bit(file, file.stat().st_size // 2)

    with pytest.raises(Corruption, match=r"is damaged and was left as it is: .*checksum mismatch"):
        Store.open(killed, [FAMILY])

    with Store.open(killed, [FAMILY], salvage=True) as store:
        found = batches_in(store)
    assert found == list(range(1, len(found) + 1))
    assert 40 <= len(found) <= 60
    Store.open(killed, [FAMILY]).close()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log with 20 000 rows in one table file, with a bit flipped in the middle of it."""
    noise = random.Random(1)
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        batch = store.batch()
        batch.put_all(FAMILY, [(b"%06d" % number, noise.randbytes(100)) for number in range(20_000)])
        store.write(batch)
        store.compact(FAMILY, b"", END)
    table = max((tmp_path / "log").glob("*.sst"), key=lambda file: file.stat().st_size)
    flip_bit(table, table.stat().st_size // 2)
    return tmp_path / "log"


def walk(cursor: Cursor, start: bytes) -> None:
    cursor.seek(start)
    while cursor.valid:
        cursor.next()


def test_a_flipped_bit_in_a_table_is_found_by_every_way_of_reading(damaged: Path) -> None:
    """Bare rocksdict ends an iteration there as if the data had ended."""
    with Store.open(damaged, [FAMILY]) as store:
        found: list[bytes] = []
        with pytest.raises(Corruption, match="block checksum mismatch"):
            found.extend(key for key, _ in store.items(FAMILY, b"", END))
        damaged_key = b"%06d" % len(found)

        with pytest.raises(Corruption, match="block checksum mismatch"):
            walk(store.cursor(FAMILY, b"", END), b"")
        with pytest.raises(Corruption, match="block checksum mismatch"):
            walk(store.cursor(FAMILY, b"", END), damaged_key)
        with pytest.raises(Corruption, match="block checksum mismatch"):
            store.get(FAMILY, damaged_key)
        assert 5_000 < len(found) < 15_000
        assert store.get(FAMILY, found[-1]) is not None


def test_a_table_that_is_gone_is_corruption(damaged: Path) -> None:
    max(damaged.glob("*.sst"), key=lambda file: file.stat().st_size).unlink()

    with pytest.raises(Corruption, match="is damaged"):
        Store.open(damaged, [FAMILY])


def test_a_path_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(ConfigError, match=r"node.data_dir: .* is not a directory"):
            Store.open(path, [FAMILY])


def test_a_directory_that_may_not_be_written_is_refused_in_words(tmp_path: Path) -> None:
    """In a child without root's rights, which would be allowed everything."""
    Store.open(tmp_path / "log", [FAMILY]).close()
    (tmp_path / "log").chmod(0o500)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            Store.open(tmp_path / "log", [FAMILY])
        except ConfigError as problem:
            said = str(problem)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)

    with open(reading) as answer:
        assert "no permission to write" in answer.read()
    (tmp_path / "log").chmod(0o700)


def test_a_database_of_something_else_is_not_taken_over(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        batch = store.batch()
        batch.delete("default", b"format")
        store.write(batch)

    with pytest.raises(Corruption, match="says nothing about its format"):
        Store.open(tmp_path / "log", [FAMILY])


class ShrinkingDisk(Disk):
    """A disk with as much free space as the test says."""

    def __init__(self, free_bytes: int) -> None:
        self.free = free_bytes

    def free_bytes(self, path: Path) -> int:
        return self.free


def test_the_reserve_stops_writes_and_they_go_on_when_there_is_space_again(tmp_path: Path) -> None:
    disk = ShrinkingDisk(100 * MIB)
    with Store.open(tmp_path / "log", [FAMILY], tuning=Tuning(reserve_bytes=64 * MIB), disk=disk) as store:
        assert store.check().state is State.OK
        store.write(store.batch())

        disk.free = 63 * MIB
        assert store.check().state is State.STOPPED
        assert not store.health.needs_restart
        with pytest.raises(Unavailable, match="only 63 MiB left, 64 MiB are reserved"):
            store.write(store.batch())

        disk.free = 65 * MIB  # above the reserve, but not enough above it
        assert store.check().state is State.STOPPED

        disk.free = 80 * MIB
        assert store.check().state is State.OK
        assert store.write(store.batch()) == 2


def test_what_was_written_before_the_reserve_was_reached_is_still_committed(tmp_path: Path) -> None:
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
        with pytest.raises(Unavailable, match="is gone"):
            store.write(store.batch())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB; its tests need the mark ``tmpfs``."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


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
    while store.check().state is State.STOPPED:
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

    assert store.health.state is State.STOPPED
    assert "is full" in store.health.reason
    assert store.check().state is State.STOPPED
    with pytest.raises(Unavailable):
        append(store, accepted)

    (small_disk / "ballast").unlink()
    check_until_resumed(store)
    append(store, accepted)
    wait_committed(store, store.written)
    store.close()

    assert batches_after_reopening(small_disk / "log") == set(range(accepted + 1))


@pytest.mark.needs("tmpfs")
def test_what_waits_for_its_commit_when_the_disk_fills_up_is_committed_when_there_is_space(small_disk: Path) -> None:
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
def test_a_full_disk_cannot_be_opened_and_says_so(small_disk: Path) -> None:
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
        while store.check().state is not State.OK:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert store.write(store.batch()) == accepted + 1
