"""The composition root: builds every part of a node from its configuration, starts and stops them in order.

The only module that knows all of them. A node belongs to the event loop that called ``start``.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import stat
from pathlib import Path

from braidmq.access.local import LocalAccess
from braidmq.api.server import ApiServer
from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import DEFAULT, Config, describe_changes, from_settings
from braidmq.base.errors import ConfigError
from braidmq.base.room import FilePlan, Room, plan_files
from braidmq.broker.bounds.loop_watch import LoopWatch
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.broker.messages import hooks
from braidmq.broker.ports import Storage
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.lane import is_compiled
from braidmq.operations import NodeOperations
from braidmq.storage.engine.health import HEALTHY, Health
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.reading.positions import parse_start
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from braidmq.storage.upkeep.backup import remove_leftovers
from braidmq.storage.upkeep.watchdog import Watchdog

log = logging.getLogger("braidmq.node")


class Node:
    """One broker process. ``start`` returns when it serves; ``stop`` when everything is closed."""

    def __init__(self, config: Config | Settings) -> None:
        self.config = config if isinstance(config, Config) else from_settings(config)
        self.settings = self.config.settings
        self._broker: Broker | None = None
        self._access: LocalAccess | None = None
        self._listeners: ListenerSet | None = None
        self._api: ApiServer | None = None
        self._log: DurableLog | None = None
        self._care: Watchdog | None = None
        self._history: HistoryService | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watch: LoopWatch | None = None
        self.client_room, self.api_room, self.control_room = Room(), Room(), Room()

    @property
    def broker(self) -> Broker:
        """The broker, once started."""
        assert self._broker is not None, "the node is not started"
        return self._broker

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The address of each listener, by a name such as ``"tcp:default"``."""
        return self._listeners.addresses() if self._listeners is not None else {}

    @property
    def api_address(self) -> Address | None:
        """The address of status and metrics."""
        return self._api.address if self._api is not None else None

    async def start(self) -> None:
        """Start everything, or raise ``ConfigError`` and leave nothing behind."""
        settings = self.settings
        data_dir = Path(settings.node.data_dir)
        await asyncio.to_thread(_make_data_dir, data_dir)
        if not is_compiled():
            log.warning("the fast lane is not compiled, so the node is slow; install a C compiler and reinstall braidmq")
        for note in self.config.notes:
            log.info("%s", note)
        files = self._make_room(_raise_file_limit())
        try:
            await self._start(settings, data_dir, files)
        except BaseException:
            await self.stop()
            raise

    def _make_room(self, files_max: int) -> FilePlan:
        files = plan_files(files_max)
        self.client_room.connections_max = files.clients
        self.api_room.connections_max = files.api
        self.control_room.connections_max = files.control
        log.info("room for %d client and %d API connections (RLIMIT_NOFILE %d)", files.clients, files.api, files_max)
        return files

    async def _start(self, settings: Settings, data_dir: Path, files: FilePlan) -> None:
        self._access = access = await asyncio.to_thread(LocalAccess, settings)
        options = LogOptions(tuning=Tuning(open_files_max=files.tables))
        self._log = message_log = await asyncio.to_thread(DurableLog.open, data_dir, settings.history, options=options)
        await asyncio.to_thread(remove_leftovers, data_dir)
        message_log.start(asyncio.get_running_loop().call_soon_threadsafe)
        storage = Storage(
            message_log,
            LogSessions(message_log),
            LogRetained(message_log),
            LogDelayed(message_log),
            LogGroups(message_log),
            parse_start,
            LogProducers(message_log),
        )
        loaded = hooks.load(settings.hooks.load, settings.limits.connect_timeout)
        self._broker = broker = Broker(settings, access, loaded, storage)
        broker.restore()
        self._watch = LoopWatch(broker.timers)
        self._watch.start()
        found = message_log.stats()
        log.info("the log in %s has %d records and %d durable sessions", data_dir / "log", found.records, broker.sessions.durable)
        self._care = Watchdog(message_log, relearns=settings.history.relearn, on_slow=broker.turn_writer.note_slow)
        self._care.start()
        access.on_change = broker.enforce_access
        self._watcher = asyncio.get_running_loop().create_task(access.watch())
        self._watcher.add_done_callback(_report_death)
        self._listeners = ListenerSet(
            settings,
            broker.make_connection,
            admit=broker.admit,
            on_refused=broker.statistics.on_refused,
            room=self.client_room,
        )
        # The API comes first: its socket in the data directory keeps a second node out.
        self._api = ApiServer(
            NodeOperations(self),
            bind=settings.api.bind,
            data_dir=data_dir,
            hosts=settings.api.hosts,
            room=self.api_room,
            control_room=self.control_room,
        )
        await self._api.start()
        await self._listeners.start()
        self._start_history(settings, data_dir, message_log, access)
        broker.sys_topics.start()
        for name, (host, port) in self.addresses.items():
            log.info("%s listens on %s", name, Address(host, port))

    def _start_history(self, settings: Settings, data_dir: Path, message_log: DurableLog, access: LocalAccess) -> None:
        if not settings.history.bind:
            return
        if not HistoryService.is_possible():
            if self.config.origins.get("history.bind", DEFAULT) != DEFAULT:
                raise ConfigError("history.bind", "the history service needs pyarrow", "pip install 'braidmq[history]'")
            log.info("the history service is disabled: it needs pyarrow (pip install 'braidmq[history]')")
            return
        self._history = HistoryService(settings, data_dir, message_log, access)
        self._history.start()

    async def stop(self) -> None:
        """Stop accepting, disconnect the clients, close everything."""
        if self._watch is not None:
            self._watch.stop()
        if self._listeners is not None:
            self._listeners.stop_accepting()
        if self._broker is not None:
            self._broker.sys_topics.stop()
        if self._history is not None:
            await self._history.stop()
        if self._broker is not None:
            await self._broker.stop()
        if self._api is not None:
            await self._api.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._care is not None:
            self._care.stop()
        if self._log is not None:
            self._log.close()  # on this thread, which is the log's
            self._log = None
        if self._access is not None:
            await self._access.close()

    async def reload(self, config: Config) -> list[str]:
        """Apply a changed configuration and changed files; clients still allowed stay. Returns the keys that need a restart."""
        changes = describe_changes(self.settings, config.settings)
        self.config = config
        self.settings = config.settings
        if self._access is not None:
            await self._access.reload(config.settings)
        if self._listeners is not None:
            await self._listeners.reconfigure(config.settings)
        if self._history is not None:
            await self._history.reload(config.settings.history)
        self.broker.reconfigure(config.settings)
        self.broker.sys_topics.reconfigure()
        return changes.restart

    @property
    def log(self) -> DurableLog:
        """The durable log, once started."""
        assert self._log is not None, "the node is not started"
        return self._log

    @property
    def history(self) -> HistoryService | None:
        """The history service, if there is one."""
        return self._history

    @property
    def log_health(self) -> Health:
        """The health of the log at its last check."""
        return self._care.health if self._care is not None else HEALTHY

    @property
    def listeners(self) -> ListenerSet:
        """The listeners, once started."""
        assert self._listeners is not None, "the node is not started"
        return self._listeners

    @property
    def access(self) -> LocalAccess:
        """Access control, once started."""
        assert self._access is not None, "the node is not started"
        return self._access


def _make_data_dir(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("node.data_dir", f"cannot create {data_dir}: {error.strerror}", "choose another directory") from None
    for folder in (data_dir, data_dir / "log"):
        mode = stat.S_IMODE(folder.stat().st_mode) if folder.exists() else 0
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            others = "every user of this machine" if mode & stat.S_IWOTH else "its group"
            log.warning("node.data_dir: %s (mode %04o) is writable by %s; run chmod 700 on it", folder, mode, others)


def _report_death(task: asyncio.Task[None]) -> None:
    """Report a background task that died: the loop's handler logs it as an error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the watcher of access files died", "exception": error, "task": task})


def _raise_file_limit() -> int:
    """Raise the limit of open files, since every connection is a file, as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return soft
