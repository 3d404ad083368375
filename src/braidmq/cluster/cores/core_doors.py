"""Where other nodes connect to a core, and which of them may: its workers on a Unix socket, others at ``cluster.rpc_bind``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Final

from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.cluster.cores.core_links import CoreLinks, CorePort, LinkRules
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.cluster.protocol.roles import CALLS, CORE, MESSAGES, REPLICANT, WORKER
from braidmq.net import tls
from braidmq.net.acceptor import Acceptor
from braidmq.net.connection import PeerConnection
from braidmq.net.handshake import hello
from braidmq.net.proto_v1 import Hello

# A node that comes back sends everything again that is not answered, up to 64 MiB; a connection takes eight times this.
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024


class CoreDoors:
    """Call `open`, then `close`. ``links`` are the connections with the other cores, if there are any."""

    def __init__(
        self,
        settings: Settings,
        incarnation: int,
        shards: int,
        several: SeveralCores | None,
        *,
        is_alive: Callable[[str, int], bool],
        on_peer: Callable[[PeerConnection], None],
    ) -> None:
        """``is_alive``: whether this incarnation of a node is a member. ``on_peer`` gets the nodes that are accepted."""
        self.acceptors: list[Acceptor] = []
        self.links: CoreLinks | None = None
        self._settings = settings
        self._incarnation = incarnation
        self._shards = shards
        self._several = several
        self._is_alive = is_alive
        self._on_peer = on_peer

    @property
    def address(self) -> Address | None:
        """Where nodes on other hosts connect."""
        return next((address for acceptor in self.acceptors for address in acceptor.addresses), None)

    async def open(self, socket_path: Path, worker_secret: bytes, others: CorePort | None) -> None:
        """Listen. ``worker_secret``: empty if there are no workers. ``others``: what this core does with the other cores.

        Raises ConfigError.
        """
        cluster = self._settings.cluster
        mine = self._hello("")
        if self._several is not None and others is not None:
            self.links = await self._make_links(self._several, others)
        if worker_secret:
            check = partial(self._check, (WORKER,))
            self.acceptors.append(
                Acceptor(
                    mine,
                    worker_secret,
                    on_peer=self._on_peer,
                    check=check,
                    path=socket_path,
                    write_bytes_max=WRITE_BYTES_MAX,
                )
            )
        if cluster.rpc_bind:
            context = await self._tls(tls.accepting_context)
            roles = (REPLICANT,) if self._several is None else (REPLICANT, WORKER, CORE)
            self.acceptors.append(
                Acceptor(
                    mine,
                    cluster.secret.encode(),
                    on_peer=self._on_any_peer,
                    check=partial(self._check, roles),
                    bind=cluster.rpc_bind,
                    tls=context,
                    write_bytes_max=WRITE_BYTES_MAX,
                )
            )
        for acceptor in self.acceptors:
            await acceptor.start()

    async def close(self) -> None:
        """Accept no node any more, and end all connections."""
        if self.links is not None:
            await self.links.close()
        for acceptor in self.acceptors:
            await acceptor.close()
        self.acceptors = []

    def connections_of(self, name: str) -> list[PeerConnection]:
        """The connections of a node."""
        return [each for acceptor in self.acceptors for each in acceptor.connections if each.peer.name == name]

    def silences(self) -> dict[str, float]:
        """For how long nothing has come from each node that is connected, by name; other cores left out."""
        found: dict[str, float] = {}
        for acceptor in self.acceptors:
            for each in acceptor.connections:
                if each.peer.role != CORE:
                    found[each.peer.name] = min(each.silent_s, found.get(each.peer.name, each.silent_s))
        return found

    def close_calls(self, reason: str) -> None:
        """End the connections of nodes for calls, in order; they connect again, and register."""
        for acceptor in self.acceptors:
            for connection in list(acceptor.connections):
                if connection.purpose == CALLS and connection.peer.role != CORE:
                    connection.close(reason)

    def drop_all(self, reason: str) -> None:
        """End all connections, at once; what they have brought and was not handed out is lost."""
        if self.links is not None:
            self.links.drop_all(reason)
        for acceptor in self.acceptors:
            for connection in list(acceptor.connections):
                connection.abort(reason)

    def _check(self, roles: tuple[str, ...], peer: Hello) -> str | None:
        """Why a node that knows the secret is not accepted; None: it is."""
        if peer.role not in roles:
            return f"a node of role {peer.role!r} cannot connect here"
        if peer.shards not in (0, self._shards):
            return f"it counts {peer.shards} shards, this cluster has {self._shards}"
        if peer.purpose not in (CALLS, MESSAGES):
            return f"it wants a connection for {peer.purpose!r}, which this core does not know"
        if self._several is not None and not self._several.membership.check():
            return "this core is alone: it cannot reach the cluster's store"
        if peer.role == CORE:
            return "this core has no use for it" if self.links is None else self.links.refusal(peer)
        if peer.purpose == CALLS or self._is_alive(peer.name, peer.incarnation):
            return None
        return "it is no member of this cluster; register first"

    def _on_any_peer(self, connection: PeerConnection) -> None:
        if connection.peer.role == CORE:
            assert self.links is not None  # else it was refused
            self.links.accept(connection)
        else:
            self._on_peer(connection)

    async def _make_links(self, several: SeveralCores, others: CorePort) -> CoreLinks:
        cluster = self._settings.cluster
        rules = LinkRules(
            name=self._settings.node.name,
            hello=self._hello,
            secret=cluster.secret.encode(),
            tls=await self._tls(tls.connecting_context),
            pause_s_max=cluster.lease / 4,
            write_bytes_max=WRITE_BYTES_MAX,
            may_act=several.membership.check,
            is_member=several.view.is_member,
        )
        return CoreLinks(rules, others)

    def _hello(self, purpose: str) -> Hello:
        node = self._settings.node
        return hello(node.cluster, node.name, CORE, self._incarnation, purpose, self._shards)

    async def _tls(self, make: Callable[[str, str, str, str], SSLContext]) -> SSLContext | None:
        cluster = self._settings.cluster
        if not cluster.cert_file:
            return None
        return await asyncio.to_thread(make, "cluster", cluster.cert_file, cluster.key_file, cluster.ca_file)
