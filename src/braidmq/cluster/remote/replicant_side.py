"""What a replicant has of its cluster: connections to every core, which have made it a member, and the ports for its broker.

The node dials the addresses that it was told. The first core that takes it for a member tells it all cores and the shards that
they lead; from then on it keeps connections to each of them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from braidmq.base.config.addresses import parse_address
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.broker.broker import Broker
from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.clock.watch import LOOK_S, ClockWatch
from braidmq.cluster.membership.member import Member
from braidmq.cluster.membership.node_key import read_or_make_key
from braidmq.cluster.membership.registry_modes import AT_RUN_TIME, LINEAR, later_note
from braidmq.cluster.remote.cluster_link import ClusterLink
from braidmq.cluster.remote.core_reach import CALL_S, CorePlace, CoreReach
from braidmq.net import tls
from braidmq.net.calls import CallError, Calls
from braidmq.net.handshake import hello
from braidmq.net.proto_v1 import AskNode, CoreEntry, Hello, NodeAnswer, Register, Registered
from braidmq.net.proto_v1_clock import TimeTold

log = logging.getLogger("braidmq.cluster")

Answer = Callable[[str, bytes], Awaitable[bytes]]  # an operation and its arguments, both as the core says them


class CoreAddress(Struct, frozen=True):
    """Where cores accept nodes: on a Unix socket for a core's own workers, else at TCP addresses. ``secret``: for that socket,
    or the cluster's.
    """

    secret: bytes
    socket_path: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """The role of a node that connects there."""
        return "worker" if self.socket_path else "replicant"


class ReplicantSide:
    """A replicant's side of the cluster; call `start`, then `serve` with a broker that has `link`'s ports, then `stop`."""

    def __init__(self, settings: Settings, run_dir: Path, core: CoreAddress) -> None:
        self.registered: Registered | None = None  # the last answer of a core
        self.clock = ClusterClock()
        self.time = ClockWatch(self.clock, self._is_reachable)
        self.answer: Answer | None = None  # what a core asks for its operator; set when the node serves
        self._settings = settings
        self._run_dir = run_dir
        self._core = core
        self._key = b""
        self._link: ClusterLink | None = None
        self._tls: ssl.SSLContext | None = None
        self._seeds: list[CoreReach] = []  # not known by name
        self._reaches: dict[str, CoreReach] = {}
        self._first = asyncio.Lock()  # of two cores that are asked for an incarnation, the second would end the first one
        self._mode: str = settings.registry.mode  # which it has announced
        self._is_serving = False  # the broker is there
        self._ready = asyncio.Event()
        self._joined = asyncio.Event()
        self._ended = asyncio.Event()
        self._timed = asyncio.Event()  # the time of the cluster is known
        self._look: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._refresh: asyncio.TimerHandle | None = None
        self._refusal = ""
        self._own_socket = Path(core.socket_path) if core.socket_path else None

    @property
    def state(self) -> str:
        """What an operator is told of the connections to the cores; empty if all is well."""
        if self._refusal:
            return f"the core refuses this node: {self._refusal}"
        reaches = (reach.state for reach in (*self._reaches.values(), *self._seeds))
        return "; ".join(filter(None, (*reaches, self.time.trouble)))

    @property
    def cluster_version(self) -> int:
        """The version that all members speak: formats and operations of later ones must not be used (C35)."""
        return 1 if self.registered is None else self.registered.cluster_version

    @property
    def states(self) -> dict[str, str]:
        """The same by core, of those that are known by name."""
        return {name: reach.state for name, reach in self._reaches.items()}

    @property
    def link(self) -> ClusterLink:
        """The cluster behind the broker's ports, once started."""
        assert self._link is not None, "the replicant's side of the cluster is not started"
        return self._link

    async def start(self) -> None:
        """Connect, and return once a core has made this node a member, however long that takes.

        Raises ConfigError, and UsageError if the core refuses this node.
        """
        self._key = await asyncio.to_thread(read_or_make_key, self._run_dir)
        self._tls = await self._context()
        self._seeds = [CoreReach(self, place, self._settings.cluster.lease) for place in self._seed_places()]
        for seed in self._seeds:
            seed.start()
        joined, ended = (asyncio.ensure_future(event.wait()) for event in (self._joined, self._ended))
        try:
            await asyncio.wait({joined, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
            ended.cancel()
        if self._ended.is_set():
            raise UsageError(self._refusal)
        assert self.registered is not None
        member = Member(self._settings.node.name, self.registered.incarnation)
        cores = {core.name: core.shards for core in self.registered.cores if core.shards}
        loop = asyncio.get_running_loop()
        self._look_again()
        self._link = ClusterLink(member, cores, loop, self._settings.cluster, self._settings.registry, self.clock)

    async def serve(self, broker: Broker) -> None:
        """The broker is made: return once its clients can be served."""
        self.link.serve(broker)
        self.link.on_ready = self._ready.set
        self._is_serving = True
        for name, reach in self._reaches.items():
            reach.serve(self.link.home(name))
        patience = asyncio.get_running_loop().call_later(self._settings.cluster.lease, self.link.leave_out)
        try:
            await self._ready.wait()
        finally:
            patience.cancel()
        with suppress(TimeoutError):  # then clients are refused until it is known
            async with asyncio.timeout(self._settings.cluster.home_wait):
                await self._timed.wait()
        self._watch_time()

    async def stop(self) -> None:
        """Leave the cores."""
        for timer in (self._refresh, self._look):
            if timer is not None:
                timer.cancel()
        if self._link is not None:
            self._link.log.flush_all()  # no answer will come that it could wait for
        reaches = [*self._reaches.values(), *self._seeds]
        await asyncio.gather(*(reach.close() for reach in reaches), *self._closing)
        if self._link is not None:
            self._link.close()

    async def wait_ended(self) -> str:
        """Wait until a core no longer takes this node for a member: it must stop, and start as a new one. The reason."""
        await self._ended.wait()
        return self._refusal

    # The time

    def on_time(self, told: TimeTold) -> None:
        """A core has told the time."""
        if told.reign:
            self._timed.set()

    def _watch_time(self) -> None:
        self._look = asyncio.get_running_loop().call_later(LOOK_S, self._watch_time)
        self.time.look()

    def _is_reachable(self) -> bool:
        return any(not reach.state for reach in self._reaches.values())

    async def use_mode(self, mode: str) -> str:
        """Change the mode of the registry, as far as a running node can do that; why it cannot, or nothing."""
        now = self._mode
        if mode == now:
            return ""
        if (now, mode) not in AT_RUN_TIME:
            return later_note(mode, now)
        if now == LINEAR:
            await self.link.fill_bag()  # before the others can rely on it
        self._mode = mode
        try:
            await self._announce()
        except (Unavailable, CallError) as problem:
            self._mode = now
            return f"{problem}; set it again"
        self.link.front.use(mode)
        log.info('registry.mode is "%s" from now on', mode)
        return ""

    async def _announce(self) -> None:
        """Tell a core what this node has in its member row. Raises Unavailable and CallError."""
        here = [reach for reach in self._reaches.values() if not reach.state]
        if not here:
            raise Unavailable("no core is connected", 1.0)
        await here[0].register_again()

    # Where cores are

    def _seed_places(self) -> list[CorePlace]:
        if self._own_socket is not None:
            return [CorePlace(self._own_socket, self._core.secret)]
        return [self._place(address) for address in self._core.addresses]

    def _place(self, address: str) -> CorePlace:
        """A core at a TCP address, where nodes prove themselves with the cluster's secret."""
        secret = self._core.secret if self._own_socket is None else self._settings.cluster.secret.encode()
        return CorePlace(parse_address(address), secret, self._tls)

    async def _context(self) -> ssl.SSLContext | None:
        cluster = self._settings.cluster
        if not cluster.cert_file:
            return None
        files = (cluster.cert_file, cluster.key_file, cluster.ca_file)
        return await asyncio.to_thread(tls.connecting_context, "cluster", *files)

    def _learn(self, reach: CoreReach, cores: list[CoreEntry]) -> None:
        """A core has named all cores: reach those that are not reached yet."""
        if reach in self._seeds:
            self._seeds.remove(reach)
            if reach.name in self._reaches:  # two of the addresses lead to it
                self._close(reach)
            else:
                self._reaches[reach.name] = reach
                if self._is_serving:
                    reach.serve(self.link.home(reach.name))
        for core in cores:
            known = self._reaches.get(core.name)
            if not core.address or not core.shards or (known is not None and (known is reach or not known.state)):
                continue
            place = self._place(core.address)
            if known is not None and known.place.address not in (place.address, self._own_socket):
                self._close(known)
                known = None
            if known is None:
                self._reach(core.name, place)
        if len(cores) == len(self._reaches):
            for seed in self._seeds:
                self._close(seed)
            self._seeds.clear()
        if len(cores) > 1:
            for name, each in self._reaches.items():
                each.label = f"core {name}"

    def _look_again(self) -> None:
        """From time to time, while a core is away, ask another one where it is: it may have started elsewhere."""
        self._refresh = asyncio.get_running_loop().call_later(self._settings.cluster.lease, self._look_again)
        assert self.registered is not None
        here = [reach for reach in self._reaches.values() if not reach.state]
        if here and len(here) < sum(bool(core.shards) for core in self.registered.cores):
            self._keep(here[0].ask_again())

    def _reach(self, name: str, place: CorePlace) -> None:
        reach = self._reaches[name] = CoreReach(self, place, self._settings.cluster.lease)
        reach.name = name
        if self._is_serving:
            reach.serve(self.link.home(name))
        reach.start()

    def _close(self, reach: CoreReach) -> None:
        self._keep(reach.close())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # What the connections ask; see `core_reach.ReachOwner`

    def hello(self, purpose: str) -> Hello:
        """Who this node is."""
        node, registered = self._settings.node, self.registered
        incarnation, shards = (registered.incarnation, registered.shards) if registered is not None else (0, 0)
        return hello(node.cluster, node.name, self._core.role, incarnation, purpose, shards)

    async def register(self, reach: CoreReach, calls: Calls) -> Registered:
        """Make this node a member at a core. Raises Unavailable and CallError."""
        if self.registered is not None:
            return await self._register(calls)
        async with self._first:
            return await self._register(calls)

    async def _register(self, calls: Calls) -> Registered:
        incarnation = self.registered.incarnation if self.registered is not None else 0
        answer = await calls.call(Register(self._settings.node.name, self._key, incarnation, self._mode), CALL_S)
        assert isinstance(answer, Registered)
        if self.registered is not None and answer.cluster_version > self.cluster_version:
            log.info("the cluster uses version %d from now on", answer.cluster_version)
        self.registered = answer
        return answer

    def on_registered(self, reach: CoreReach, is_new: bool) -> None:
        """A core has this node as a member."""
        assert self.registered is not None
        self._learn(reach, self.registered.cores)
        self._joined.set()

    def on_refused(self, reason: str) -> None:
        """A core does not take this node for a member."""
        self._refusal = reason
        self._ended.set()

    async def answer_core(self, request: AskNode) -> NodeAnswer:
        """What a core asks for its operator."""
        if self.answer is None:
            raise Unavailable("the node is starting", 1.0)
        return NodeAnswer(await self.answer(request.operation, request.arguments))

    async def ask_core(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """Ask one of the cores something for this node's operator. Raises UsageError and Unavailable."""
        for reach in (*self._reaches.values(), *self._seeds):
            if reach.can_ask:
                return await reach.ask(operation, arguments, timeout_s)
        raise Unavailable("no core is connected", 1.0)
