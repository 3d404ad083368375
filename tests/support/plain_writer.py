"""A plain process that writes and syncs files: what a disk costs without a broker.

It writes the way a log does: appends, each synced, to files that are removed when later ones have replaced them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

STEP_BYTES = 1024 * 1024
_STEPS_PER_FILE = 32
_FILES_KEPT = 2


def written_bytes(pid: int) -> int:
    """The bytes that a process has caused to be written to disks; files in memory do not count."""
    found = re.search(r"^write_bytes: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def _write(folder: Path, steps: int, seconds: float, result: Connection) -> None:
    payload = os.urandom(STEP_BYTES)
    taken_s: list[float] = []
    began = time.monotonic()
    for first in range(0, steps, _STEPS_PER_FILE):
        with (folder / f"plain-{first}").open("wb", buffering=0) as file:
            for step in range(first, min(first + _STEPS_PER_FILE, steps)):
                time.sleep(max(0.0, began + step * seconds / steps - time.monotonic()))
                file.write(payload)
                before = time.monotonic()
                os.fdatasync(file.fileno())
                taken_s.append(time.monotonic() - before)
        (folder / f"plain-{first - _FILES_KEPT * _STEPS_PER_FILE}").unlink(missing_ok=True)
    result.send(taken_s)


@contextlib.contextmanager
def plain_writer(folder: Path, total_bytes: int, seconds: float) -> Iterator[Callable[[], list[float]]]:
    """Write about so many bytes evenly in so many seconds beside the block; the yielded call waits for the end, and gives the
    seconds that each sync took.
    """
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)
    steps = max(1, total_bytes // STEP_BYTES)
    process = forking.Process(target=_write, args=(folder, steps, seconds, sending), daemon=True)
    process.start()

    def ended() -> list[float]:
        assert receiving.poll(seconds * 5), "the disk is too slow for the bytes that the node wrote"
        found: list[float] = receiving.recv()
        return found

    try:
        yield ended
    finally:
        process.kill()
        process.join()
        for file in folder.glob("plain-*"):
            file.unlink()
