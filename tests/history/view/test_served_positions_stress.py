"""The rules of H2 on a real primary in another process that flushes as often as it can: no holes below what is served."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

from braidmq.history.view.served_positions import ServedPositions
from braidmq.storage.engine.secondary import Secondary

SECONDS = 4.0
# Prints the number of the last committed row after each flush of the engine, with a new log file every time.
PRIMARY = """
import sys
from pathlib import Path
from braidmq.storage.engine.store import Store

store = Store.open(Path(sys.argv[1]), ["rows"], durability="os")
number = 0
while True:
    for _ in range(5):
        batch = store.batch()
        for _ in range(10):
            number += 1
            batch.put("rows", number.to_bytes(8, "big"), bytes(100))
        store.write(batch)
        print(number, flush=True)
    for family in store._families.values():
        family.flush(True)
"""


def missing(store: Secondary, upto: int) -> list[int]:
    """Rows that are not there, of those up to a number."""
    found = {int.from_bytes(key, "big") for key, _ in store.items("rows", bytes(8), (upto + 1).to_bytes(8, "big"))}
    return [number for number in range(1, upto + 1) if number not in found]


def test_a_primary_that_flushes_without_end_leaves_no_holes_below_what_is_served(tmp_path: Path) -> None:
    primary = subprocess.Popen([sys.executable, "-c", PRIMARY, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    following = ServedPositions()
    lock = threading.Lock()
    assert primary.stdout is not None

    def listen() -> None:
        assert primary.stdout is not None
        for line in primary.stdout:
            with lock:
                following.hear({0: int(line)})

    first = int(primary.stdout.readline())
    ear = threading.Thread(target=listen)
    ear.start()
    try:
        store = Secondary.open(tmp_path / "log", tmp_path / "scratch")
        counted = uncounted = 0
        deadline = monotonic() + SECONDS
        while monotonic() < deadline:
            with lock:
                following.begin(store.log_files())
            store.catch_up()
            with lock:
                counts = following.end(store.log_files())
                served = following.served.get(0, 0)
            counted += counts
            uncounted += not counts

            # Also after a catch-up that does not count, which may have holes above it.
            assert missing(store, served) == []
    finally:
        primary.kill()
        primary.wait()
        ear.join()
    store.close()
    assert counted
    assert served > first
    print(f"{counted} catch-ups counted, {uncounted} did not; {served} rows were served")
