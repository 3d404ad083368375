"""The store against real faults: kill -9, torn and flipped bytes, a second process, directories that cannot be used."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError, Corruption, UsageError
from braidmq.storage.engine.store import Cursor, Store
from tests.support.started import SOURCES

FAMILY = "shard-00"
END = b"\xff"
DEADLINE_S = 30.0

WRITER = r"""
import os, sys, time
from braidmq.storage.engine.store import Store

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


def test_a_second_process_is_rejected_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with Writer(tmp_path / "log", 1) as writer:
        writer.wait_done()

        with pytest.raises(UsageError, match=f"in use by process {writer.process.pid}"):
            Store.open(tmp_path / "log", [FAMILY])

    Store.open(tmp_path / "log", [FAMILY]).close()


def test_opening_twice_in_one_process_is_rejected_with_a_clear_message(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]), pytest.raises(UsageError, match="already open in this process"):
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


def test_a_flipped_bit_in_the_write_ahead_log_is_rejected_and_salvage_keeps_the_data_before_it(killed: Path) -> None:
    file = write_ahead_log(killed)
    flip_bit(file, file.stat().st_size // 2)

    with pytest.raises(Corruption, match=r"is damaged and was not changed: .*checksum mismatch"):
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


def test_a_missing_table_is_corruption(damaged: Path) -> None:
    max(damaged.glob("*.sst"), key=lambda file: file.stat().st_size).unlink()

    with pytest.raises(Corruption, match="is damaged"):
        Store.open(damaged, [FAMILY])


def test_a_path_that_is_a_file_is_rejected_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(ConfigError, match=r"node.data_dir: .* is not a directory"):
            Store.open(path, [FAMILY])


def test_a_directory_without_write_permission_is_rejected_with_a_clear_message(tmp_path: Path) -> None:
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

    with pytest.raises(Corruption, match="has no format version"):
        Store.open(tmp_path / "log", [FAMILY])
