"""A cluster with several cores, as one of them opens it: before its log, whose shards and id the cluster decides.

opened = await SeveralCores.open(...)          the map of the shards, created by the first core that comes
(the log is opened with `opened.map`)
await opened.join(key, port)                   this core is a member, with new terms for its shards
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.config.cluster_settings import ClusterSettings
from braidmq.base.config.settings import Settings
from braidmq.base.errors import ConfigError, Unavailable
from braidmq.cluster.corestore.etcd.client import DEFAULT_TIMES, EtcdTimes, EtcdTls
from braidmq.cluster.corestore.etcd.failures import EtcdUser
from braidmq.cluster.corestore.etcd.identity import StoreMark
from braidmq.cluster.corestore.etcd.store import EtcdCoreStore
from braidmq.cluster.corestore.guarded import GuardedStore
from braidmq.cluster.membership.administration_rows import AdministrationTables
from braidmq.cluster.membership.cluster_tables import ClusterTables
from braidmq.cluster.membership.cluster_view import ClusterView
from braidmq.cluster.membership.core_memory import CoreMemory, read_memory, write_memory
from braidmq.cluster.membership.members import Members, RegistrationRequest
from braidmq.cluster.membership.own_membership import ClusterMembership, MembershipPort
from braidmq.cluster.membership.shard_map import SHARDS_OF_NEW_CLUSTER, MapRow, TermRow, check_map, deal
from braidmq.net.proto_v1 import VERSION, CoreEntry

log = logging.getLogger("braidmq.cluster")

_RETRY_S: Final = 0.5
_REMEMBER_S: Final = 30.0
_LOG_ID_BYTES: Final = 16


class SeveralCores:
    """One core's part of it; `open` makes it, `close` ends it."""

    def __init__(self, settings: Settings, data_dir: Path, store: GuardedStore, memory: CoreMemory, found: MapRow) -> None:
        """Use `open`."""
        self.map = found
        self.members = Members(store, lambda: int(time.time() * 1000), found.cores)
        self.terms: dict[int, TermRow] = {}  # of the shards that this core leads
        self._name = settings.node.name
        self._lease_s = settings.cluster.lease
        self._data_dir = data_dir
        self._store = store
        self._memory = memory
        self._tables = ClusterTables(store)
        self._membership: ClusterMembership | None = None
        self._remembering: asyncio.Task[None] | None = None
        self._cores_changed = asyncio.Event()

    @classmethod
    async def open(cls, settings: Settings, data_dir: Path, *, shards: int | None, has_log: bool) -> SeveralCores:
        """Read the cluster's map, or create the cluster; waits for etcd. Raises ConfigError.

        ``shards``: None if the configuration leaves the number to the cluster. ``has_log``: there is a database.
        """
        memory = await asyncio.to_thread(read_memory, data_dir)
        store = await make_store(settings, memory.mark)
        try:
            found = await _find_map(settings, store, shards, has_log)
        except BaseException:
            await store.close()
            raise
        check_map(found, settings.node.name, settings.cluster.initial_cores, shards)
        return cls(settings, data_dir, store, memory, found)

    def settings_for(self, settings: Settings) -> Settings:
        """The settings of a core of this cluster: with its number of shards."""
        return msgspec.structs.replace(settings, history=msgspec.structs.replace(settings.history, shards=self.map.shards))

    @property
    def store(self) -> GuardedStore:
        """The tables in etcd."""
        return self._store

    async def read_settings(self) -> dict[str, object]:
        """The settings of the cluster; waits until etcd answers. Raises ConfigError."""
        while True:
            try:
                return await AdministrationTables(self._store).settings()
            except Unavailable as problem:
                log.warning("this core waits for the settings of the cluster: %s", problem)
            await asyncio.sleep(_RETRY_S)

    @property
    def membership(self) -> ClusterMembership:
        """This core as a member, once it has joined."""
        assert self._membership is not None, "the core has not joined its cluster"
        return self._membership

    @property
    def view(self) -> ClusterView:
        """The tables, as far as this core knows."""
        return self.membership.view

    @property
    def others(self) -> list[str]:
        """The names of the other cores."""
        return [name for name in self.map.cores if name != self._name]

    @property
    def term_numbers(self) -> dict[int, int]:
        """The terms of the shards that this core leads."""
        return {shard: row.term for shard, row in self.terms.items()}

    async def join(self, request: RegistrationRequest, port: MembershipPort) -> int:
        """Become a member, and take the terms of this core's shards; its incarnation. Raises UsageError and Unavailable."""
        self._membership = membership = ClusterMembership(self._store, self.members, self._name, self._lease_s, port)
        admitted = await membership.join(request)
        membership.start()
        self.terms = await self._tables.take_terms(
            self.map.led_by(self._name), self._name, admitted.incarnation, self._memory.terms
        )
        await self._remember()
        self._remembering = asyncio.get_running_loop().create_task(self._remember_always())
        return admitted.incarnation

    async def publish(self, address: str) -> None:
        """Say where nodes reach this core. Raises Unavailable."""
        await self._tables.publish(self._name, address)

    def note_cores(self) -> None:
        """A core has another address."""
        self._cores_changed.set()

    async def wait_for_others(self, seconds: float) -> None:
        """Wait until all cores of the cluster were started once, so that nodes can be told where they are; but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not set(self.map.cores) <= set(self.view.addresses):
                    self._cores_changed.clear()
                    await self._cores_changed.wait()

    def entries(self) -> list[CoreEntry]:
        """All cores for a node that registers here."""
        addresses = self.view.addresses
        return [
            CoreEntry(name, "" if name == self._name else addresses.get(name, ""), self.map.led_by(name))
            for name in self.map.cores
        ]

    async def close(self) -> None:
        """End the connections to etcd. The lease is left to its end, so that a core that restarts soon is not missed."""
        if self._remembering is not None:
            self._remembering.cancel()
        if self._membership is not None:
            await self._membership.stop()
            await self._remember()
        await self._store.close()

    async def _remember_always(self) -> None:
        while True:
            await asyncio.sleep(_REMEMBER_S)
            await self._remember()

    async def _remember(self) -> None:
        memory = CoreMemory(self._store.mark, {shard: term.term for shard, term in self.terms.items()})
        try:
            await asyncio.to_thread(write_memory, self._data_dir, memory)
        except OSError as problem:
            log.warning("the core cannot note what it knows of etcd: %s", problem)


async def make_store(settings: Settings, known: StoreMark | None = None) -> GuardedStore:
    """The core store in etcd that the configuration names. Raises ConfigError."""
    cluster = settings.cluster
    tls = await asyncio.to_thread(_read_tls, cluster)
    user = await asyncio.to_thread(_read_user, cluster)
    # A watch that hangs is noticed before the lease ends, whose renewals count only if the tables have been read.
    times = EtcdTimes(silence_s=min(DEFAULT_TIMES.silence_s, cluster.lease / 3))
    return GuardedStore(EtcdCoreStore(cluster.etcd, settings.node.cluster, user=user, tls=tls, times=times, known=known))


def _read_tls(cluster: ClusterSettings) -> EtcdTls | None:
    if not cluster.etcd_ca_file:
        return None
    return EtcdTls(
        *(_read(f"cluster.{key}", getattr(cluster, key)) for key in ("etcd_ca_file", "etcd_cert_file", "etcd_key_file"))
    )


def _read_user(cluster: ClusterSettings) -> EtcdUser:
    password = _read("cluster.etcd_password_file", cluster.etcd_password_file)
    try:
        return EtcdUser(cluster.etcd_username, password.decode().rstrip("\r\n"))
    except UnicodeDecodeError:
        raise ConfigError("cluster.etcd_password_file", f"{cluster.etcd_password_file} is not UTF-8") from None


def _read(key: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes() if file else b""
    except OSError as problem:
        raise ConfigError(key, f"cannot read {file}: {problem.strerror}") from None


async def _find_map(settings: Settings, store: GuardedStore, shards: int | None, has_log: bool) -> MapRow:
    """The map of the cluster, which this core creates if it may; waits until etcd answers."""
    tables = ClusterTables(store)
    trouble = ""
    while True:
        try:
            if store.restored.is_set():
                await store.accept_restored()
            found = await tables.find_map()
            return found if found is not None else await _create(settings, tables, shards, has_log)
        except Unavailable as problem:
            if problem.detail != trouble:
                trouble = problem.detail
                log.warning("this core waits for etcd (%s): %s", ", ".join(settings.cluster.etcd), problem)
        await asyncio.sleep(_RETRY_S)


async def _create(settings: Settings, tables: ClusterTables, shards: int | None, has_log: bool) -> MapRow:
    cores = settings.cluster.initial_cores
    if has_log:
        hint = "move its tables there with `braidmq ctl cluster init --etcd ...`, or use a new node.data_dir"
        raise ConfigError(
            "cluster.store", f"etcd has no cluster {settings.node.cluster!r}, and this node has a log already", hint
        )
    if not cores:
        hint = 'list the names of all its cores, such as ["core1", "core2", "core3"]'
        raise ConfigError("cluster.initial_cores", f"is empty, and etcd has no cluster {settings.node.cluster!r} yet", hint)
    found = await tables.create(deal(os.urandom(_LOG_ID_BYTES), cores, shards or SHARDS_OF_NEW_CLUSTER), VERSION)
    log.info("the cluster %s has the cores %s and %d shards", settings.node.cluster, ", ".join(found.cores), found.shards)
    return found
