"""A broker over its real log, without sockets: the test decides when the disk has synced, when time passes and when all is lost.

The log is opened with durability "os", where a write is told as committed in a call of its own. That call waits here until the
test takes it (``sync``), so a write can be on its way for as long as a test likes. What was synced by then is noted: a process
that dies (``crash``) leaves what was written, a machine that loses power leaves what was synced.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from braidmq.access.local import LocalAccess
from braidmq.base.config import sources as config
from braidmq.base.config.settings import Settings
from braidmq.base.deadline_clock import READING_TURNS
from braidmq.broker.broker import Broker
from braidmq.broker.connection.deadlines import TICK_S
from braidmq.broker.messages import hooks
from braidmq.broker.ports import Storage
from braidmq.broker.session.ports import NodePorts
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.reading.positions import parse_start
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from tests.storage.message_log import BrokenDisk
from tests.support.simulator.peer import Peer

MIB = 1024 * 1024
TUNING = Tuning(memtables_bytes=4 * MIB, block_cache_bytes=4 * MIB, reserve_bytes=MIB)
_MEMORY_DISK = Path("/dev/shm")
_QUIET_TURNS = READING_TURNS + 2
_TURNS_MAX = 5000


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by hand: no timer fires by itself."""

    now = 0.0

    def time(self) -> float:
        return self.now


class World:
    """One data directory and the node that runs on it; after a crash another node, on what the first one has left."""

    def __init__(
        self,
        options: LogOptions | None = None,
        *,
        work_max: int | None = None,
        ports: NodePorts | None = None,
        **tables: Any,
    ) -> None:
        """``work_max``: deliveries in a turn of the loop, if they are to be so few that messages are delivered in parts."""
        self._ports = ports or NodePorts()
        self._work_max = work_max
        self._folder = tempfile.TemporaryDirectory(prefix="braidmq-", dir=_MEMORY_DISK if _MEMORY_DISK.is_dir() else None)
        self.disk = BrokenDisk()
        self._options = (options or LogOptions())._replace(tuning=TUNING, disk=self.disk)
        self._lives = 0
        self._synced: dict[str, int] = {}  # bytes of each write-ahead log that would survive a loss of power
        self.tables = tables
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the node without a goodbye to its clients, and remove its files."""
        self._end()
        self._folder.cleanup()

    # Lives

    @property
    def data_dir(self) -> Path:
        """Where the node that runs now keeps its data."""
        return Path(self._folder.name) / str(self._lives)

    def _start(self) -> None:
        self.settings = self._read_settings()
        self.loop = self._make_loop()
        self._commits: deque[Callable[[], None]] = deque()
        self._problems: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self._problems.append(context))
        self.log = DurableLog.open(self.data_dir, self.settings.history, options=self._options)
        self.log.start(self._commits.append)
        self._note_synced()
        self.broker: Broker = self.loop.run_until_complete(self._make_broker(self._ports))
        self._restore()
        self._nodes = [self.broker]

    def _make_loop(self) -> StillLoop:
        return StillLoop()

    def _restore(self) -> None:
        self.broker.restore()

    def _read_settings(self) -> Settings:
        history = {"durability": "os", "shards": 2, **self.tables.get("history", {})}
        tables = {**self.tables, "history": history, "node": {"data_dir": str(self.data_dir)}}
        return config.from_tables(tables).settings

    def add_node(self, ports: NodePorts | None = None) -> Broker:
        """Another broker over the same log, without sessions; it sees what is recorded by now, and has no feed of the rest."""
        node: Broker = self.loop.run_until_complete(self._make_broker(ports or NodePorts()))
        self._nodes.append(node)
        return node

    def _led_shards(self) -> Iterable[int] | None:
        """Those whose rows this node has; None: all."""
        return None

    async def _make_broker(self, ports: NodePorts) -> Broker:
        log = self.log
        led = self._led_shards()
        kept = LogSessions(log), LogRetained(log, led), LogDelayed(log), LogGroups(log, led)
        storage = Storage(log, *kept, parse_start, LogProducers(log))
        access = LocalAccess(self.settings)
        broker = Broker(self.settings, access, hooks.load((), 1.0), storage, self.loop.time, ports)
        if self._work_max is not None:
            broker.state.work_max = broker.routes.weight_max = self._work_max
        return broker

    def _end(self) -> None:
        self.log.close()
        # What a closed log tells its waiters is nobody's business any more.
        self._problems.clear()
        self._close_loop()

    def _close_loop(self) -> None:
        self.loop.close()

    def crash(self, *, loses_power: bool = False, **tables: Any) -> None:
        """The node ends here and now; start another, perhaps with other settings, on what is on disk."""
        left = self.data_dir
        self._lives += 1
        self._copy(left)
        if loses_power:
            self._forget_unsynced()
        self._end()
        shutil.rmtree(left)
        self.disk.is_full = False
        self.tables = {**self.tables, **tables}
        self._start()

    def restart(self, **tables: Any) -> None:
        """Stop the node as an operator does, and start it again, perhaps with other settings."""
        stopping = self.loop.create_task(self.broker.stop())
        self.settle()
        assert stopping.done(), "the broker does not stop"
        stopping.result()
        self.settle()
        self.crash(loses_power=False, **tables)

    def move(self) -> None:
        """All sessions go to another node: this one hands them over, and the next one makes them of their rows."""
        self.free_disk()
        for session in list(self.broker.sessions):
            self.broker.lifecycle.hand_over(session)
        self.broker.lane.flush()
        self.tick()
        left, self._nodes = self.broker, []
        assert not len(left.sessions)
        self.broker = node = self.add_node(self._ports)
        storage = node.turn_writer.storage
        for message in storage.retained.load():
            node.retained.put(message.message, message.user_name, message.stored_at, is_on_disk=True)
        for stored in list(storage.sessions.load()):
            node.restoration.restore(stored, waits=True)
        self.settle()

    def _copy(self, left: Path) -> None:
        # The engine's threads make and remove files during the copy: a manifest is copied with every table it names only if
        # the names are the same afterwards. A file that vanishes is a newer state to be copied.
        deadline = time.monotonic() + 5
        while True:
            names = self._names(left)
            try:
                shutil.copytree(left, self.data_dir)
            except shutil.Error:
                is_whole = False
            else:
                is_whole = self._names(left) == names
            if is_whole:
                return
            assert time.monotonic() < deadline, "the data directory does not come to rest"
            shutil.rmtree(self.data_dir)

    @staticmethod
    def _names(folder: Path) -> set[Path]:
        return set(folder.rglob("*"))

    def fill_disk(self) -> None:
        """From now on nothing can be stored, and the log says so."""
        self.disk.is_full = True
        self.log.check()

    def free_disk(self) -> None:
        """There is space again."""
        self.disk.is_full = False
        self.log.check()

    def _note_synced(self) -> None:
        self._synced = {}
        for file in (self.data_dir / "log").glob("*.log"):
            with suppress(FileNotFoundError):  # one that the engine no longer needs goes when it likes
                self._synced[file.name] = file.stat().st_size

    def _forget_unsynced(self) -> None:
        for file in (self.data_dir / "log").glob("*.log"):
            with file.open("r+b") as opened:
                opened.truncate(min(self._synced.get(file.name, 0), file.stat().st_size))

    # Time

    def turn(self, count: int = 1) -> None:
        """Let the loop run so many turns, without the disk."""
        for _ in range(count):
            self.loop.run_until_complete(asyncio.sleep(0))
        assert not self._problems, repr(self._problems)

    @property
    def is_writing(self) -> bool:
        """Whether something was written that is not synced."""
        return bool(self._commits)

    def sync(self) -> None:
        """Everything written by now is on disk: tell who waits for it."""
        if self._commits:
            self._note_synced()
            self._commits.popleft()()
        assert not self._problems, repr(self._problems)

    def settle(self) -> None:
        """Let the loop run and the disk sync until nothing happens any more."""
        quiet = 0
        for _ in range(_TURNS_MAX):
            before = self._activity()
            self.sync()
            self.turn()
            quiet = quiet + 1 if before == self._activity() else 0
            if quiet == _QUIET_TURNS:
                return
        raise AssertionError("the broker does not come to rest")

    def _activity(self) -> tuple[int, ...]:
        states = [node.state for node in self._nodes]
        traffic = sum(state.counters.bytes_sent + state.counters.bytes_received for state in states)
        return (self.log.pending_bytes, len(self._commits), traffic, sum(state.turn for state in states))

    def tick(self, count: int = 1) -> None:
        """Half a second passes, ``count`` times."""
        for _ in range(count):
            self.loop.now += TICK_S
            self.settle()

    def wait(self, seconds: float) -> None:
        """Time passes at once: every timer that is due by then fires, once."""
        self.loop.now += seconds
        self.settle()

    # Clients

    def open(self, version: int = 5, *, node: Broker | None = None) -> Peer:
        """A connection on which nothing was sent yet, to this node or to the first one."""
        return Peer(node or self.broker, version, self.loop, settle=self.settle)

    def connect(self, client_id: str, version: int = 5, *, node: Broker | None = None, **fields: Any) -> Peer:
        """A connected client; arguments as for ``Peer.connect``."""
        return self.open(version, node=node).connect(client_id, **fields)
