"""The mark of a log: when it is written, what it notices, and that it never refuses a log that is whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from rocksdict import Rdict

from braidmq.base.errors import Corruption
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.manifest import oldest_journal
from braidmq.storage.engine.mark import Mark, MarkFile, journals_in, mark_path, read_mark
from braidmq.storage.engine.rocksdb import Disk
from braidmq.storage.engine.store import Durability, Store

FAMILY = "shard-00"
OTHER = "shard-01"
DEADLINE_S = 10.0
ID = bytes(range(16))


def newest_journal(path: Path) -> Path:
    """The newest file of a write-ahead log."""
    return path / f"{journals_in(path)[-1]:06}.log"


def put(store: Store, number: int) -> None:
    batch = store.batch()
    batch.put(FAMILY, b"%06d" % number, b"value" * 20)
    store.write(batch)


def wait_marked(path: Path, sequence: int) -> None:
    """Until the mark has come so far."""
    deadline = time.monotonic() + DEADLINE_S
    while (mark := read_mark(mark_path(path))) is None or mark.sequence < sequence:
        assert time.monotonic() < deadline, mark
        time.sleep(0.001)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The log of a process that was killed: 50 rows in the write-ahead log alone; its mark has followed."""
    path = tmp_path / "log"
    Store.open(path, [FAMILY]).close()
    child = os.fork()
    if child == 0:
        store = Store.open(path, [FAMILY], is_marked=True)
        store.start(lambda call: call(), lambda number: None)
        for number in range(50):
            put(store, number)
            while store.committed < store.written:
                time.sleep(0.0001)
        wait_marked(path, store._database.sequence)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return path


def keys_in(store: Store) -> list[int]:
    return [int(key) for key, _ in store.items(FAMILY, b"", b"\xff")]


def test_a_killed_log_has_everything_its_mark_names(killed: Path) -> None:
    with Store.open(killed, [FAMILY], is_marked=True) as store:
        assert keys_in(store) == list(range(50))


def test_rows_that_were_never_synced_may_be_missing(tmp_path: Path) -> None:
    """As after a power cut: the mark tells of what was synced, and of nothing else."""
    path = tmp_path / "log"

    class LazyDisk(Disk):
        is_lazy = False

        def flush(self, db: Rdict) -> None:
            while self.is_lazy:
                time.sleep(0.001)
            super().flush(db)

    child = os.fork()
    if child == 0:
        disk = LazyDisk()
        store = Store.open(path, [FAMILY], is_marked=True, disk=disk)
        store.start(lambda call: call(), lambda number: None)
        put(store, 0)
        wait_marked(path, store._database.sequence)
        disk.is_lazy = True
        length = newest_journal(path).stat().st_size
        for number in range(1, 50):
            put(store, number)
        (tmp_path / "length").write_text(str(length))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.truncate(newest_journal(path), int((tmp_path / "length").read_text()))

    with Store.open(path, [FAMILY], is_marked=True) as store:
        assert keys_in(store) == [0]


def test_a_journal_whose_end_is_zeros_is_refused_at_every_start(killed: Path) -> None:
    """Its length is right, so that it is opened before anything is noticed."""
    journal = newest_journal(killed)
    length = journal.stat().st_size
    os.truncate(journal, 0)
    os.truncate(journal, length)

    for _ in range(2):
        with pytest.raises(Corruption, match=r"at least \d+ committed rows are missing"):
            Store.open(killed, [FAMILY], is_marked=True)


def test_a_salvaged_log_has_a_mark_for_the_remaining_data(killed: Path) -> None:
    journal = newest_journal(killed)
    os.truncate(journal, journal.stat().st_size // 2)
    with pytest.raises(Corruption, match="has lost acknowledged data"):
        Store.open(killed, [FAMILY], is_marked=True)

    Store.open(killed, [FAMILY], is_marked=True, salvage=True).close()

    with Store.open(killed, [FAMILY], is_marked=True) as store:
        assert 10 < len(keys_in(store)) < 40


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_an_orderly_end_leaves_an_exact_mark(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "log"
    store = Store.open(path, [FAMILY], durability=durability, is_marked=True)
    store.start(lambda call: call(), lambda number: None)
    for number in range(10):
        put(store, number)
    sequence = store._database.sequence
    store.close()

    mark = read_mark(mark_path(path))
    assert mark is not None
    assert mark.sequence == sequence
    with Store.open(path, [FAMILY], durability=durability, is_marked=True) as again:
        assert keys_in(again) == list(range(10))


def test_without_fsync_the_mark_names_no_data_that_a_power_cut_could_lose(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Store.open(path, [FAMILY], durability="os", is_marked=True) as store:
        store.start(lambda call: call(), lambda number: None)
        opened = store._database.sequence
        for number in range(10):
            put(store, number)

        mark = read_mark(mark_path(path))
        assert mark is not None
        assert mark.sequence == opened


_FLUSHING = """
import os, sys, time
from pathlib import Path
from braidmq.storage.engine.store import Store

path = Path(sys.argv[1])
store = Store.open(path, ["shard-00", "shard-01"], is_marked=True)
store.start(lambda call: call(), lambda number: None)
for number in range(60):
    batch = store.batch()
    batch.put("shard-00", b"%06d" % number, b"value")
    if number < 20:
        batch.put("shard-01", b"%06d" % number, b"value")
    store.write(batch)
    while store.committed < store.written:
        time.sleep(0.0001)
    if number == 30:
        store._database.family("shard-00").flush()
    if number in (30, 40):
        time.sleep(1.1)  # so that the names of the log files are looked at
time.sleep(0.1)
os._exit(0)
"""


@pytest.fixture
def flushed(tmp_path: Path) -> Path:
    """The log of a process that was killed: rows of the second family are in an older log file, those of the first in tables."""
    path = tmp_path / "log"
    Store.open(path, [FAMILY, OTHER]).close()
    # No fork: RocksDB's threads, which flush, do not survive one.
    subprocess.run([sys.executable, "-c", _FLUSHING, str(path)], check=True, timeout=DEADLINE_S * 3)
    return path


def test_an_older_file_of_the_write_ahead_log_that_is_missing_is_noticed(flushed: Path) -> None:
    older, newest = journals_in(flushed)[-2:]
    assert os.path.getsize(flushed / f"{newest:06}.log") > 0
    os.rename(flushed / f"{older:06}.log", flushed.parent / "kept")

    for _ in range(2):
        with pytest.raises(Corruption, match=rf"{older:06}\.log, a file of its write-ahead log, is missing"):
            Store.open(flushed, [FAMILY, OTHER], is_marked=True)
    os.rename(flushed.parent / "kept", flushed / f"{older:06}.log")

    with Store.open(flushed, [FAMILY, OTHER], is_marked=True) as store:
        assert keys_in(store) == list(range(60))
        assert len(list(store.items(OTHER, b"", b"\xff"))) == 20


def test_a_log_that_lost_an_older_file_can_be_salvaged(flushed: Path) -> None:
    (flushed / f"{journals_in(flushed)[-2]:06}.log").unlink()

    Store.open(flushed, [FAMILY, OTHER], is_marked=True, salvage=True).close()

    with Store.open(flushed, [FAMILY, OTHER], is_marked=True) as store:
        assert keys_in(store)[:31] == list(range(31)), "what was in tables"


@pytest.mark.parametrize("seed", range(3))
def test_obsolete_log_files_may_be_deleted_at_any_time(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log"
    chance = random.Random(seed)
    Store.open(path, [FAMILY, OTHER]).close()
    store = Store.open(path, [FAMILY, OTHER])
    seen: set[int] = set()
    removed = 0
    for number in range(400):
        batch = store.batch()
        batch.put(chance.choice((FAMILY, OTHER)), b"%06d" % number, b"value" * 100)
        store.write(batch)
        if chance.random() < 0.3:
            store._database.family(chance.choice((FAMILY, OTHER, "default"))).flush()
        here = set(journals_in(path))
        seen |= here
        needed = oldest_journal(path)

        assert needed is None or not [each for each in seen - here if each >= needed]
        removed = len(seen - here)
    assert removed > 10
    store.close()


def test_a_mark_that_could_not_be_written_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    file = MarkFile(tmp_path / "log", ID, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for sequence in (6, 7, 8):
            now += 10
            file.synced(sequence)
            file.catch_up(is_idle=True)
    assert read_mark(mark_path(tmp_path / "log")) == Mark(ID, 5)
    assert caplog.text.count("the next start may not notice lost log files") == 1

    now += 10
    file.synced(9)
    file.catch_up(is_idle=True)

    assert read_mark(mark_path(tmp_path / "log")) == Mark(ID, 9)
    assert "is written again" in caplog.text


def test_a_torn_mark_keeps_its_previous_value(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "log", ID, 5)
    path = mark_path(tmp_path / "log")
    before = path.read_bytes()
    file.synced(6)
    file.catch_up(is_idle=True)
    after = path.read_bytes()
    assert read_mark(path) == Mark(ID, 6)

    for place in (each for each, (old, new) in enumerate(zip(before, after, strict=True)) if old != new):
        path.write_bytes(after[:place] + before[place:])

        assert read_mark(path) == Mark(ID, 5)


def test_an_unreadable_mark_is_logged_and_does_not_prevent_the_start(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark_path(killed).write_bytes(b"rubbish")

    with Store.open(killed, [FAMILY], is_marked=True) as store:
        assert keys_in(store) == list(range(50))
    assert "log.mark is damaged" in caplog.text


def test_frequent_commits_do_not_each_write_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    pwrite = os.pwrite

    def count(fd: int, data: bytes, offset: int) -> int:
        writes.append(1)
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", count)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    file = MarkFile(tmp_path / "log", ID, 0)
    writes.clear()

    for sequence in range(1, 100):
        file.synced(sequence)
        file.catch_up(is_idle=False)
    assert len(writes) == 0

    file.catch_up(is_idle=True)
    file.catch_up(is_idle=True)
    assert len(writes) == 1
    assert read_mark(mark_path(tmp_path / "log")) == Mark(ID, 99)


def test_an_unwritable_mark_does_not_stop_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark_path(tmp_path / "log").mkdir()

    with Store.open(tmp_path / "log", [FAMILY], is_marked=True) as store:
        store.start(lambda call: call(), lambda number: None)
        put(store, 1)

    assert "the next start may not notice lost log files" in caplog.text


def test_an_unreadable_directory_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptors(path: Path, pattern: str) -> list[Path]:
        raise OSError(24, "Too many open files")

    with Store.open(tmp_path / "log", [FAMILY], is_marked=True) as store:
        monkeypatch.setattr(Path, "glob", no_descriptors)
        told: SimpleQueue[int] = SimpleQueue()
        store.start(lambda call: call(), told.put)
        put(store, 1)

        assert told.get(timeout=DEADLINE_S) == 1
    assert store.health.state is HealthState.OK
