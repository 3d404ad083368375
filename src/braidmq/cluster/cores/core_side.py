"""What a core does for the other nodes of its cluster: accepts them, makes them members, and declares them dead.

The only core of a cluster: a worker is dead when its connections have ended, a replicant on another host has its lease to come
back (`leases.py`). One of several cores: each says in the cluster's tables which nodes it hears (`membership.py`), and a worker
is dead when its process has ended. Past its own lease such a core ends all connections and accepts none: to its nodes it is a
core that is away, until it is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.administration.questions import NodeQuestions
from braidmq.cluster.clock.core_time import CoreTime
from braidmq.cluster.cores.calls_of_node import CallsOfNode
from braidmq.cluster.cores.core_doors import CoreDoors
from braidmq.cluster.cores.core_links import CoreLinks, CorePort, guarded
from braidmq.cluster.cores.core_ports import CoreLog, MemberHome
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.cluster.corestore.contract import CoreStore
from braidmq.cluster.corestore.embedded import EmbeddedCoreStore
from braidmq.cluster.home.node_peer import OUTLET_BYTES_MAX, NodePeer
from braidmq.cluster.membership.cluster_view import ClusterView, ViewChanges
from braidmq.cluster.membership.embedded_tables import EmbeddedTables
from braidmq.cluster.membership.leases import TICK_S, Leases, NodeIncarnation
from braidmq.cluster.membership.member import Member
from braidmq.cluster.membership.members import Admitted, LiveMember, Members, RegistrationRequest
from braidmq.cluster.membership.moving import check_not_moved
from braidmq.cluster.membership.node_key import read_or_make_key
from braidmq.cluster.membership.own_mode import OwnMode
from braidmq.cluster.protocol.roles import CALLS, CORE, REPLICANT, WORKER
from braidmq.net.acceptor import Acceptor
from braidmq.net.connection import SILENT_S_MIN, PeerConnection
from braidmq.net.proto_v1 import VERSION, CoreEntry, Registered

log = logging.getLogger("braidmq.cluster")

SOCKET_NAME: Final = "cluster.sock"


class CoreSide:
    """A core's side of the cluster; call `start`, then `accept` with what the members find here, then `stop`.

    It belongs to the loop of the log.
    """

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        message_log: CoreLog,
        worker_secret: bytes = b"",
        several: SeveralCores | None = None,
    ) -> None:
        """``worker_secret``: what workers prove themselves with on the Unix socket; empty: there are none.

        ``several``: the cluster, if it has several cores.
        """
        self.incarnation = 0  # new at every start
        self.expected: list[Member] = []  # replicants that lived when an earlier process of this core ended
        self.expected_ids: list[tuple[int, int]] = []  # their registration ids and incarnations
        self.ended: list[Member] = []  # its workers
        self.registrations_refused = 0
        self.several = several
        self.mode: OwnMode  # of the registry, once started
        self.time = CoreTime(settings.node.name)
        self.when_alone: Callable[[], None] = _do_nothing  # all connections are about to end
        self.when_back: Callable[[], None] = _do_nothing
        self.declared_dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why this core must end
        self._settings = settings
        self._data_dir = data_dir
        self._log = message_log
        self._worker_secret = worker_secret
        self._members: Members | None = None
        self._home: MemberHome | None = None
        self._registrations: dict[NodeIncarnation, int] = {}  # registration ids of members
        self._leases = Leases(settings.cluster.lease, monotonic())
        self._alive: dict[str, int] = {}  # incarnations by name, of members
        self.questions = NodeQuestions()
        self._connected: dict[NodeIncarnation, int] = {}  # connections of members
        self._doors: CoreDoors | None = None  # once it accepts nodes
        self._tasks: set[asyncio.Task[None]] = set()
        self._buried: dict[str, int] = {}  # the latest dead incarnations by name
        self._early_deaths: list[Member] = []  # before there was a home
        self._told: list[CoreEntry] = []  # what nodes know of the cores
        self._store: CoreStore | None = None
        self._tables: EmbeddedTables | None = None  # of the only core
        self.on_administered: Callable[[ViewChanges], None] = _ignore  # settings or bans have changed

    @property
    def store(self) -> CoreStore:
        """The tables of the cluster, once started."""
        assert self._store is not None, "the core's side of the cluster is not started"
        return self._store

    @property
    def view(self) -> ClusterView:
        """The tables, as far as this core knows; see `follow`."""
        if self.several is not None:
            return self.several.view
        assert self._tables is not None, "the core's side of the cluster is not started"
        return self._tables.view

    async def follow(self) -> None:
        """Follow the tables of the only core; one of several does so from its start."""
        if self._tables is not None:
            await self._tables.load()
            self._tables.start()

    @property
    def members(self) -> Members:
        """The members of the cluster, once started."""
        assert self._members is not None, "the core's side of the cluster is not started"
        return self._members

    @property
    def socket_path(self) -> Path:
        """Where workers connect."""
        return (self._data_dir / SOCKET_NAME).absolute()

    @property
    def address(self) -> Address | None:
        """Where replicants connect."""
        return None if self._doors is None else self._doors.address

    @property
    def acceptors(self) -> list[Acceptor]:
        """Where nodes connect."""
        return [] if self._doors is None else self._doors.acceptors

    @property
    def links(self) -> CoreLinks | None:
        """The connections with the other cores, if there are any."""
        return None if self._doors is None else self._doors.links

    async def start(self) -> None:
        """Take a new incarnation, and declare workers of an earlier one dead. Raises ConfigError and Unavailable."""
        key = await asyncio.to_thread(read_or_make_key, self._data_dir)
        name = self._settings.node.name
        request = RegistrationRequest(name, key, CORE, version=VERSION, mode=self._settings.registry.mode)
        if self.several is not None:
            self._store = self.several.store
            self._members = self.several.members
            self.incarnation = await self.several.join(request, self)
            await self.time.begin(self.view.alive[name].registration_id, self._store, lambda: self.view.alive)
        else:
            self._store = EmbeddedCoreStore(self._log)
            await check_not_moved(self._store)
            self._members = Members(self._store, _wall_ms)
            self._tables = EmbeddedTables(self._store, self._members, self)
            admitted = await self._members.register(request)
            if not isinstance(admitted, Admitted):
                raise UsageError(admitted.reason)
            self.incarnation = admitted.incarnation
            await self.time.begin(admitted.registration_id, self._store, dict)
        self.mode = OwnMode(self._members, msgspec.structs.replace(request, incarnation=self.incarnation))
        for member in await self._members.alive():
            node = Member(member.name, member.incarnation)
            if member.role == WORKER and (self.several is None or is_worker_of(member.name, name)):
                # No worker of this process is a member yet.
                await self._declare_dead(*node, "it belonged to an earlier start of this core")
                self.ended.append(node)
            elif member.role in (REPLICANT, WORKER):
                self._alive[member.name] = member.incarnation
                if self.several is None:
                    self._leases.add(node)
                self.expected.append(node)
                self.expected_ids.append((member.registration_id, member.incarnation))
                self.questions.add(node, member.role)
        await self._members.sweep()

    async def accept(self, home: MemberHome, others: CorePort | None = None) -> None:
        """Accept nodes, and connect with the other cores. Raises ConfigError."""
        self._home = home
        for dead in self._early_deaths:
            self._bury(*dead)
        self._doors = CoreDoors(
            self._settings,
            self.incarnation,
            self._log.shards,
            self.several,
            is_alive=lambda name, incarnation: self._alive.get(name) == incarnation,
            on_peer=self._on_peer,
        )
        await self._doors.open(self.socket_path, self._worker_secret, others)
        if self.several is not None:
            assert self.address is not None  # a core of several has cluster.rpc_bind
            for member in self.several.view.alive.values():
                self._expect(member)
            await self.several.publish(self._settings.cluster.rpc_address or str(self.address))
            await self.several.wait_for_others(self._settings.cluster.lease)
            self._reach_cores()
            self._told = self.several.entries()
        self._run(self._keep_leases())

    async def stop(self) -> None:
        """Accept no node any more, and end all connections."""
        for task in list(self._tasks):
            task.cancel()
        self.time.stop()
        if self._tables is not None:
            self._tables.stop()
        if self._doors is not None:
            await self._doors.close()

    def _on_peer(self, connection: PeerConnection) -> None:
        if connection.purpose == CALLS:
            CallsOfNode(self, connection)
        else:
            self._open_messages(connection, (connection.peer.name, connection.peer.incarnation))
        if self.several is not None:
            connection.on_frame = guarded(self.several.membership.check, connection.on_frame)

    def _open_messages(self, connection: PeerConnection, node: NodeIncarnation) -> None:
        peer = self.peer_of(node)

        def on_lost(reason: str) -> None:
            peer.lose_messages()
            self.on_disconnected(node, connection.peer.role)

        connection.on_frame = peer.receive
        connection.on_room = peer.note_room
        connection.room_bytes = OUTLET_BYTES_MAX // 8
        connection.on_lost = on_lost
        self.on_connected(node)
        peer.open_messages(connection)

    def peer_of(self, node: NodeIncarnation) -> NodePeer:
        """The node as the home knows it."""
        assert self._home is not None  # connections are accepted once it is there
        return self._home.join(Member(*node), self._registrations[node])

    def _bury(self, name: str, incarnation: int) -> None:
        if self._home is not None and self._buried.get(name, 0) < incarnation:
            self._buried[name] = incarnation
            self._home.bury(Member(name, incarnation))

    async def register(self, request: RegistrationRequest) -> Registered:
        """Make a node a member. Raises UsageError if it is refused, Unavailable."""
        hearing = None if self.several is None else self.several.membership.hearing
        decision = await self.members.register(request, hearing)
        if decision.ended:
            self._forget((request.name, decision.ended))
            self._bury(request.name, decision.ended)
        if not isinstance(decision, Admitted):
            self.registrations_refused += 1
            raise UsageError(decision.reason)
        node = (request.name, decision.incarnation)
        if self.several is not None:
            assert hearing is not None
            if self.several.view.last_dead(request.name) >= decision.incarnation:
                raise Unavailable("this node was declared dead meanwhile", TICK_S)
            self.several.membership.keep(node, hearing.lease)
        self._registrations[node] = decision.registration_id
        self._alive[request.name] = decision.incarnation
        self.questions.add(Member(*node), request.role)
        if request.role == REPLICANT or self.several is not None:
            self._leases.add(node)
        log.info("%s is member %d (incarnation %d)", request.name, decision.registration_id, decision.incarnation)
        log_id, shards = self._log.log_id, self._log.shards
        return Registered(
            decision.registration_id, decision.incarnation, self.incarnation, log_id, shards, self._cores(), self.view.version
        )

    def _cores(self) -> list[CoreEntry]:
        if self.several is not None:
            return self.several.entries()
        return [CoreEntry(self._settings.node.name, "", list(range(self._log.shards)))]

    def on_connected(self, node: NodeIncarnation) -> None:
        """A connection of a member was made."""
        self._connected[node] = self._connected.get(node, 0) + 1
        self._leases.on_connected(node)

    def on_disconnected(self, node: NodeIncarnation, role: str) -> None:
        """A connection of a member has ended, and everything that it brought was handed out."""
        left = self._connected.get(node, 1) - 1
        self._connected[node] = left
        self._leases.on_disconnected(node)
        if left:
            return
        del self._connected[node]
        if role == WORKER and self.several is None and self._alive.get(node[0]) == node[1]:
            self._run(self._declare_dead(*node, "its connections have ended"))

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            ended = [*self._leases.tick(monotonic()), *self._drop_silent()]
            if self.several is not None:
                # This core no longer hears these nodes; the others may still.
                for node in ended:
                    self._leases.remove(node)
                    self.several.membership.let_go(node)
                continue
            for name, incarnation in ended:
                try:
                    await self._declare_dead(name, incarnation, f"it was away for {self._settings.cluster.lease:g} s")
                except Unavailable as problem:  # it stays in the list, for the next tick
                    log.warning("%s cannot be declared dead: %s", name, problem)

    def _drop_silent(self) -> list[NodeIncarnation]:
        """Nodes that are connected and were silent for a lease, pauses of this core left out; their connections have ended."""
        assert self._doors is not None
        ended = []
        for name, silent_s in self._doors.silences().items():
            if silent_s >= max(self._settings.cluster.lease, SILENT_S_MIN):
                self._drop(name, f"it was silent for {silent_s:.0f} s")
                if name in self._alive:
                    ended.append((name, self._alive[name]))
        return ended

    def _drop(self, name: str, reason: str) -> None:
        if self._doors is not None:
            for connection in self._doors.connections_of(name):
                connection.abort(reason)

    async def declare_dead(self, name: str, reason: str) -> None:
        """End the connections of a node and its membership. Raises UsageError for an unknown name, and Unavailable."""
        incarnation = self._alive.get(name)
        if incarnation is None:
            raise UsageError(f"there is no node {name!r}")
        self._drop(name, reason)
        await self._declare_dead(name, incarnation, reason)

    def note_worker_ended(self, name: str) -> None:
        """The process of a worker has ended."""
        incarnation = self._alive.get(name)
        if self.several is not None and incarnation is not None:
            self._run(self._declare_ended(name, incarnation))

    async def _declare_ended(self, name: str, incarnation: int) -> None:
        try:
            await self._declare_dead(name, incarnation, "its process has ended")
        except Unavailable as problem:  # then its lease ends
            log.warning("%s cannot be declared dead: %s", name, problem)

    async def _declare_dead(self, name: str, incarnation: int, reason: str) -> None:
        is_new = await self.members.declare_dead(name, incarnation, has_ended=True)
        self._forget((name, incarnation))
        if is_new:
            log.info("%s (incarnation %d) is dead: %s", name, incarnation, reason)
            self._bury(name, incarnation)

    def _forget(self, node: NodeIncarnation) -> None:
        self._leases.remove(node)
        self._registrations.pop(node, None)
        self.questions.remove(Member(*node))
        if self._alive.get(node[0]) == node[1]:
            del self._alive[node[0]]

    # One of several cores; see `membership.MembershipPort`

    def on_joined(self, member: LiveMember) -> None:
        """A node is a member, perhaps through another core."""
        if member.role != CORE and self._alive.get(member.name, 0) < member.incarnation:
            self._alive[member.name] = member.incarnation
            self.questions.add(Member(member.name, member.incarnation), member.role)
            self._expect(member)

    def _expect(self, member: LiveMember) -> None:
        if member.role != CORE and self._home is not None:
            self._home.expect(Member(member.name, member.incarnation))

    def on_ended(self, member: LiveMember) -> None:
        """A node is dead."""
        if member.role == CORE:
            if self.links is not None:
                self.links.drop(member.name, member.incarnation, "it is dead")
            return
        if self._alive.get(member.name) == member.incarnation:
            self._drop(member.name, "this node was declared dead")
        self._forget((member.name, member.incarnation))
        if self._home is None:
            self._early_deaths.append(Member(member.name, member.incarnation))
        self._bury(member.name, member.incarnation)

    def on_cores(self) -> None:
        """A core has another address: nodes have to register again, which tells them."""
        assert self.several is not None
        self.several.note_cores()
        self._reach_cores()
        if self._told and self._told != self.several.entries() and self._doors is not None:
            self._told = self.several.entries()
            self._doors.close_calls("the cores of the cluster have other addresses")

    def _reach_cores(self) -> None:
        if self.several is not None and self.links is not None:
            self.links.update(self.several.view.addresses)

    def on_version(self) -> None:
        """The cluster uses a higher version: nodes have to register again, which tells them."""
        if self._doors is not None:
            self._doors.close_calls(f"the cluster uses version {self.view.version}")

    def on_alone(self) -> None:
        """Act on nothing that other nodes send, and refuse them until this core is back."""
        if self._doors is not None:
            self._doors.drop_all("this core is alone: it cannot reach the cluster's store")
        self.when_alone()

    def on_back(self) -> None:
        """Nodes may connect again."""
        self.when_back()

    def on_declared_dead(self, reason: str) -> None:
        """This core must end."""
        if not self.declared_dead.done():
            self.declared_dead.set_result(reason)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})


def is_worker_of(name: str, core: str) -> bool:
    """Whether a worker belongs to a core; no other name has a slash."""
    return name.startswith(f"{core}/")


def _do_nothing() -> None:
    """What the core's parts do unless they say otherwise."""


def _ignore(changes: ViewChanges) -> None:
    """Nothing uses settings and bans yet."""


def _wall_ms() -> int:
    return int(time.time() * 1000)
