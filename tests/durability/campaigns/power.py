"""A node whose power can be cut: ``python power.py [--lie] start -c FILE``, and what to do to its files afterwards.

``kill -9`` leaves everything in the page cache that was ever written, synced or not. So the node notes after each fsync how much
of the write-ahead log was written before it; when the node is dead, ``cut`` takes from the file what was not synced, as losing
power would. A node that acknowledges before it has synced loses acknowledged messages this way, and only this way.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

LIE = "--lie"
NOTES = "synced.notes"  # beside the data directory of the log

Damage = Literal["none", "cut", "zeros"]
DAMAGES: tuple[Damage, ...] = ("none", "cut", "zeros")


def note_syncs(flush: Callable[..., None]) -> Callable[..., None]:
    """The flush of the store's disk, with a note after it of how long each log file was before it."""

    @functools.wraps(flush)
    def flush_and_note(disk: object, db: object) -> None:
        place = Path(db.path())  # type: ignore[attr-defined]
        lengths = {file.name: file.stat().st_size for file in place.glob("*.log")}
        flush(disk, db)
        # One write: a kill leaves it whole or not there at all.
        notes = os.open(place.parent / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(notes, json.dumps(lengths).encode() + b"\n")
        os.close(notes)

    return flush_and_note


def newest_log(place: Path) -> Path:
    """The file of the write-ahead log that was written last."""
    return max(place.glob("*.log"), key=lambda file: int(file.stem))


def synced_bytes(file: Path) -> int:
    """How much of the log file is known to be on disk."""
    notes = file.parent.parent / NOTES
    lines = notes.read_text().splitlines() if notes.exists() else []
    lengths = json.loads(lines[-1]) if lines else {}
    return int(lengths.get(file.name, 0))


def cut(place: Path, damage: Damage, chance: random.Random) -> int:
    """Do to the log of a dead node what losing power may do; gives the number of bytes that were lost.

    ``cut``: the file ends somewhere behind what was synced. ``zeros``: its length is there, of the rest only what was synced.
    """
    file = newest_log(place)
    length = file.stat().st_size
    synced = min(synced_bytes(file), length)
    kept = {"none": length, "cut": chance.randint(synced, length), "zeros": synced}[damage]
    os.truncate(file, kept)
    if damage == "zeros":
        os.truncate(file, length)
    return length - kept


def main() -> None:
    """Run the command with a disk that takes notes, or with one that says it has synced and has not."""
    from braidmq.cli.main import main as run
    from braidmq.storage.engine import store
    from braidmq.storage.engine.rocksdb import Disk

    if sys.argv[1] == LIE:
        del sys.argv[1]
        Disk.flush = lambda disk, db: None  # type: ignore[assignment, method-assign]
        mock.patch.object(store, "read_mark", return_value=None).start()  # it would find the lie out before anybody else does
    else:
        Disk.flush = note_syncs(Disk.flush)  # type: ignore[method-assign]
    sys.argv[0] = "braidmq"
    run()


if __name__ == "__main__":
    main()
