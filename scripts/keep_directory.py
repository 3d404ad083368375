"""Stores a small data directory of the current format in tests/golden: ``python scripts/keep_directory.py``.

Every release must read what earlier ones have written. So each format has a directory, ``data_N.txt``: the versions of all
formats it was written with, followed by an archive (tar, xz, base64). ``tests/storage/test_kept_directories.py`` opens each of
them, checks its contents, and fails if a version was raised and there is no directory for it. Then this script adds one. The
others stay unchanged; only one that no release has written may be replaced (``--replace``).
"""

from __future__ import annotations

import base64
import importlib
import io
import lzma
import pkgutil
import shutil
import sys
import tarfile
import tempfile
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from braidmq import __version__, storage
from braidmq.base.config.settings import HistoryClassSettings, HistorySettings
from braidmq.base.units import Seconds
from braidmq.broker.ports import RELEASED, SENT, CursorRow, GroupRow, InFlight, SessionRow, SubscriptionRow
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import encode_record
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.rows.changes import Change, WriteRefusal
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from braidmq.storage.shard.clock import ShardClock

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"

SHARDS = 2
BEGIN_US = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z
NEVER_S = 4_102_444_800.0  # 2100-01-01T00:00:00Z
EXPIRY = bytes.fromhex("0200015180")  # Message Expiry Interval of a day
EPOCH_RECORDS = 6  # few, so that there are many epochs
# The engine's logs, its lock, and files that it creates again.
NOT_KEPT = ("LOG", "LOCK")
_FORMATS = ("format", "layouts")  # directories whose names are part of the name of a format


def versions() -> dict[str, int]:
    """The version of every format in the storage layer, by module and name; a module may move between folders."""
    found: dict[str, int] = {}
    for module in pkgutil.walk_packages(storage.__path__, f"{storage.__name__}."):
        folder, _, file = module.name.removeprefix(f"{storage.__name__}.").rpartition(".")
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.endswith("VERSION") and isinstance(value, int):
                found[f"{folder}.{file}.{name}" if folder in _FORMATS else f"{file}.{name}"] = value
    return dict(sorted(found.items()))


def kept_versions(file: Path) -> dict[str, int]:
    """The versions that a kept directory was written with."""
    head = file.read_text().partition("\n\n")[0].splitlines()
    return {name: int(version) for name, version in (line.split() for line in head if not line.startswith("#"))}


def kept_files() -> list[Path]:
    """The kept directories, oldest first."""
    return sorted(GOLDEN.glob("data_*.txt"), key=lambda file: int(file.stem.removeprefix("data_")))


def unpack(file: Path, target: Path) -> None:
    """Unpack the data directory of a kept file."""
    packed = base64.b64decode(file.read_text().partition("\n\n")[2])
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is None:
                (target / entry.name).mkdir(mode=0o700)
            else:
                (target / entry.name).write_bytes(content.read())


class OneRecord:
    """A block of one record."""

    def __init__(self, shard: int, topic: bytes, value: bytes) -> None:
        self.entries = {shard: [(topic, value)]}
        self.changes: tuple[Change, ...] = ()
        self.size_bytes = len(value)
        self._marks: list[tuple[int, bytes, int, int]] = []

    def mark(self, producer: bytes, sequence: int, check: int) -> None:
        """Mark the record as that of a producer."""
        [shard] = self.entries
        self._marks.append((shard, producer, sequence, check))

    def marks(self) -> list[tuple[int, bytes, int, int]]:
        """See ``append_queue.Block``."""
        return self._marks

    def committed(self, stamps: dict[int, list[int]]) -> None:
        """Do nothing: the script does not wait for it."""

    def refused(self, refusal: WriteRefusal) -> None:
        """End the script."""
        _refused(refusal)


class Writing:
    """A log whose clock advances only between steps: step n is n seconds after the beginning."""

    def __init__(self, data_dir: Path, layout: str) -> None:
        self._step = 0
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        classes = {"slow": HistoryClassSettings(("slow/#",), Seconds(86_400 * 3650), "1GiB")}
        settings = HistorySettings(shards=SHARDS, layout=layout, classes=classes)  # type: ignore[arg-type]
        clock = ShardClock(lambda: BEGIN_US + self._step * 1_000_000, lambda: BEGIN_US)
        self.log = DurableLog.open(
            data_dir, settings, clock=clock, options=LogOptions(limits=EpochLimits(count_max=EPOCH_RECORDS))
        )
        self.log.start(self._calls.put)

    def at(self, step: int) -> int:
        """The timestamp of the record of a step."""
        return BEGIN_US + step * 1_000_000

    def record(
        self,
        step: int,
        publisher: str,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        producer: bytes = b"",
        sequence: int = 0,
        **more: Any,
    ) -> None:
        """Record a message at a step, and wait until it is on disk; ``more`` as for ``encode_record``."""
        self._step = step
        value = encode_record(topic.encode(), payload, qos, retain, publisher, **more)
        record = OneRecord(self.log.shard_of(publisher), topic.encode(), value)
        if producer:
            record.mark(producer, sequence, zlib.crc32(payload, zlib.crc32(topic.encode())))
        self.log.append_block(record)
        self._settle()

    def change(self, *changes: Change) -> None:
        """Write rows, and wait until they are on disk."""
        self.log.change(changes, on_commit=lambda: None, on_refused=_refused)
        self._settle()

    def save_reader(
        self, name: str, positions: dict[int, int], pins: bool, owner: str | None = None, filters: tuple[str, ...] = ()
    ) -> None:
        """Store the position of a named reader."""
        readers = self.log.readers
        readers.save(name, positions, owner=owner, filters=filters, pins=pins, on_saved=lambda: None, on_refused=_refused)
        self._settle()

    def _settle(self) -> None:
        self.log.flush()
        while self.log.pending_bytes:
            self._calls.get(timeout=30)()


def _refused(refusal: WriteRefusal) -> None:
    raise SystemExit(f"the log rejected a write: {refusal.reason}")


def write_directory(data_dir: Path) -> None:
    """Write data of every kind, half in tables of the engine, half in the write-ahead log, as after a crash."""
    with tempfile.TemporaryDirectory() as folder:
        first = Writing(Path(folder), "hashed")
        _write_hashed(first)
        first.log.close()
        second = Writing(Path(folder), "learned")
        _write_learned(second)
        _write_rows(second)
        # Before the log is closed, because closing moves everything into tables. Nothing is being written.
        shutil.copytree(folder, data_dir, dirs_exist_ok=True)
        second.log.close()


def _write_hashed(log: Writing) -> None:
    """The first generation: a record of every kind."""
    log.record(1, "anna", "plain", b"", 0)
    log.record(2, "bob", "plain/ü/\U0001f600", b"\x00\xff" * 8, 1)
    log.record(3, "anna", "kept", b"retained", 2, retain=True)
    log.record(4, "bob", "kept", b"for sessions", 1, session_only=True)
    log.record(5, "anna", "expires", b"in 2100", 1, properties=EXPIRY, expires_at=round(NEVER_S * 1e6), expiry_offset=1)
    log.record(6, "bob", "elsewhere", b"published before", 1, published_at=log.at(0))
    log.record(7, "anna", "slow/a", b"of a class", 1)
    log.record(8, "bob", "$own/x", b"dollar", 1)
    log.record(9, "link", "linked", b"sequence 41", 1, producer=b"n1/3", sequence=41)
    for step in range(10, 24):
        log.record(step, "anna" if step % 2 else "bob", f"plant/{step % 3}/temp", b"%d" % step, 1)


def _write_learned(log: Writing) -> None:
    """The second generation: more names at a level than are kept separate."""
    for step in range(24, 54):
        log.record(step, "anna" if step % 2 else "bob", f"plant/{step}/temp", b"%d" % step, 1)
    log.record(54, "bob", "slow/b", b"of a class", 1)


def _write_rows(log: Writing) -> None:
    """Everything except the records; the very last write is a record again."""
    _write_sessions(log)
    retained = LogRetained(log.log, wall=lambda: log.at(54) / 1e6, now=lambda: 100.0)
    message = Message(b"state/a", b"on", 1, True, "anna")
    expiring = Message(b"state/b", b"off", 0, True, "bob")
    expiring.set_properties(EXPIRY, 100.0 + NEVER_S - log.at(54) / 1e6, 1)
    log.change(retained.put(message, "user a"), retained.put(expiring, None))
    log.change(retained.put(Message(b"state/gone", b"x", 1, True, "bob"), None))
    log.change(retained.remove(b"state/gone"))
    delayed = LogDelayed(log.log, wall=lambda: log.at(54) / 1e6, now=lambda: 100.0)
    for number, due in enumerate((NEVER_S + 1, NEVER_S)):
        log.change(delayed.put(Message(b"later", b"%d" % number, 2, False, "bob"), "user b", due)[1])
    groups = LogGroups(log.log)
    log.change(groups.put(GroupRow("g", "plant/#", (log.at(20), log.at(21)), ((1, log.at(19)), (0, log.at(18))))))
    log.change(groups.put(GroupRow("back", "plant/+/temp", (1, 1), (), (log.at(30), log.at(31)))))
    log.save_reader("query", {0: log.at(5), 1: log.at(6)}, pins=True, owner="ann", filters=("plant/#", "state/+"))
    log.save_reader("watch", {1: log.at(7)}, pins=False)
    producers = LogProducers(log.log)
    log.change(producers.put_batch("import", 7, 6, 3, "ann"))
    log.change(producers.put_batch("keys", 5, 5, 0, None), producers.put_key("keys", 5, b"k"))
    log.record(55, "anna", "plant/last", b"the end", 1, producer=producers.name_of("anna", "ann"), sequence=42)


def _write_sessions(log: Writing) -> None:
    sessions = LogSessions(log.log)
    start = (log.at(20), log.at(20))
    inflight = (
        InFlight(3, 1, SENT, False, log.log.shard_of("anna"), log.at(21)),
        InFlight(1, 2, SENT, True, value=encode_record(b"state/a", b"unrecorded", 2, True, "bob")),
        InFlight(65_535, 2, RELEASED, False),
    )
    log.change(
        sessions.put_session(SessionRow("reader", "user r", 0xFFFFFFFF, False, 1_700_000_000.5, 1_700_000_100.25, 7)),
        sessions.put_subscription("reader", SubscriptionRow("plant/+/temp", 2, True, False, b"\x0b\x05", start)),
        sessions.put_subscription("reader", SubscriptionRow("$share/g/plant/#", 1, False, True, b"", start)),
        sessions.put_subscription("reader", SubscriptionRow("$replay/-1h,end/slow/#", 1, False, False, b"", start, (1, 1), True)),
        sessions.put_cursor("reader", CursorRow((log.at(52), log.at(51)), inflight)),
        sessions.put_will("reader", Will("wills/reader", b"gone", 1, True, Properties(will_delay_interval=5))),
        sessions.put_received("reader", 7),
        sessions.put_received("reader", 65_535),
    )
    log.change(
        sessions.put_session(SessionRow("plain", None, 0xFFFFFFFF, True, 1.5, 0.0, 0)),
        sessions.put_cursor("plain", CursorRow(start, ())),
    )
    log.change(sessions.put_session(SessionRow("over", None, 60, True, 1.5, 0.0, 0)))
    log.change(*sessions.remove_session("over", (), ()))


def pack(data_dir: Path) -> str:
    """Pack the directory as text."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(data_dir.rglob("*")):
            if not file.name.startswith(NOT_KEPT):
                entry = tarfile.TarInfo(str(file.relative_to(data_dir)))
                entry.type, entry.mode = (tarfile.DIRTYPE, 0o700) if file.is_dir() else (tarfile.REGTYPE, 0o600)
                data = b"" if file.is_dir() else file.read_bytes()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    encoded = base64.b64encode(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME)).decode()
    head = f"# A data directory as braidmq {__version__} leaves it (scripts/keep_directory.py). Versions of its formats:\n"
    lines = "".join(f"{name} {version}\n" for name, version in versions().items())
    return f"{head}{lines}\n" + "\n".join(textwrap.wrap(encoded, 120)) + "\n"


def main() -> None:
    """Add a directory in the current format."""
    files = kept_files()
    newest = int(files[-1].stem.removeprefix("data_")) if files else 0
    is_replaced = "--replace" in sys.argv[1:] and files
    if files and not is_replaced and kept_versions(files[-1]) == versions():
        raise SystemExit(f"{files[-1].name} already has this format; if no release has written it, use --replace")
    target = files[-1] if is_replaced else GOLDEN / f"data_{newest + 1}.txt"
    with tempfile.TemporaryDirectory() as folder:
        write_directory(Path(folder))
        target.write_text(pack(Path(folder)))
    print(f"{target.relative_to(GOLDEN.parent.parent)}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
