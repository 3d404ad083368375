"""A core as a member of a cluster with several cores: it keeps its own lease and the nodes that it hears, and follows the others.

Three things run side by side: the own lease is renewed every third of it; the tables are followed; and rows are written for the
nodes that this core hears, and deaths for those that no core hears any more. What to do is decided in `own_lease`, `cluster_view`
and `members`; here are the calls of the store.

A core declares no node dead that it cannot judge: while it is alone, and for a lease after it is back or has listed the tables,
all nodes have time to be heard again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any, Final, Protocol

from braidmq.base.deadline_clock import time_since_boot
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.corestore.contract import CommitsMissed, CoreCommit, CoreRow, TableRows
from braidmq.cluster.corestore.guarded import GuardedStore
from braidmq.cluster.membership.cluster_view import LISTED, ClusterView, ViewChanges, plan_write_back
from braidmq.cluster.membership.leases import NodeIncarnation
from braidmq.cluster.membership.members import (
    DECLARED_DEAD,
    LEASES,
    Admitted,
    HearingCore,
    LiveMember,
    Members,
    RegistrationRequest,
    lease_key,
)
from braidmq.cluster.membership.own_lease import LeaseState, OwnLease

log = logging.getLogger("braidmq.cluster")

TICK_S: Final = 0.5
_RENEWALS_PER_LEASE: Final = 3
_RETRY_S: Final = 0.5
_AT_ONCE: Final = 16  # rows of nodes that are written side by side
_NOT_WRITTEN, _LET_GO = 0, -1  # in place of the lease that a row of a node is bound to


class MembershipPort(Protocol):
    """Whom a core tells what happens in its cluster. Everything is called on the loop."""

    def on_joined(self, member: LiveMember) -> None:
        """A node is a member, through whichever core; also once for each member that is there at the start."""
        ...

    def on_ended(self, member: LiveMember) -> None:
        """A node is dead."""
        ...

    def on_cores(self) -> None:
        """A core is reached at another address, or has been started for the first time."""
        ...

    def on_version(self) -> None:
        """The cluster uses a higher version from now on."""
        ...

    def on_administered(self, changes: ViewChanges) -> None:
        """Settings or bans of the cluster have changed."""
        ...

    def on_alone(self) -> None:
        """The others may take this core for dead: from now on it must do nothing that they could contradict."""
        ...

    def on_back(self) -> None:
        """The core holds a lease again, as the same member."""
        ...

    def on_declared_dead(self, reason: str) -> None:
        """The core must end; it may come back as a new member."""
        ...


class ClusterMembership:
    """Call `join`, then `start`, then `stop`. ``lease`` tells whether this core may act now."""

    def __init__(
        self,
        store: GuardedStore,
        members: Members,
        name: str,
        lease_s: float,
        port: MembershipPort,
        clock: Callable[[], float] = time_since_boot,
    ) -> None:
        """``clock``: goes on while the machine is suspended."""
        self.view = ClusterView()
        self.lease = OwnLease(on_alone=self._on_alone, on_back=self._on_back, on_declared_dead=self._on_declared_dead)
        self.incarnation = 0
        self._store = store
        self._members = members
        self._name = name
        self._lease_s = lease_s
        self._port = port
        self._clock = clock
        self._lease_id = 0
        self._kept: dict[NodeIncarnation, int] = {}  # nodes that this core hears, and under which lease its row says so
        self._unkept: dict[NodeIncarnation, float] = {}  # nodes that no core hears, and when they may be declared dead
        self._patient_until = 0.0
        self._forgotten: dict[str, dict[bytes, CoreRow]] | None = None  # the tables before a restore
        self._position: int | None = None  # up to which the tables are known
        self._changed = asyncio.Event()
        self._trouble = ""
        self._tasks: list[asyncio.Task[None]] = []

    # -- what others ask -----------------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Whether this core may act now; call it before acting on what a peer has sent (C3)."""
        return self.lease.check(self._clock())

    @property
    def hearing(self) -> HearingCore:
        """This core and its lease. Raises Unavailable while it is alone."""
        if not self.check():
            raise Unavailable("this core cannot reach the cluster's store", _RETRY_S)
        return HearingCore(self._name, self._lease_id)

    def keep(self, node: NodeIncarnation, lease: int = 0) -> None:
        """This core hears a node. ``lease``: its row says so already, as long as this lease lasts."""
        if lease:
            self._kept[node] = lease
        elif self._kept.get(node, _LET_GO) == _LET_GO:
            self._kept[node] = _NOT_WRITTEN
            self._changed.set()

    def let_go(self, node: NodeIncarnation) -> None:
        """This core no longer hears a node."""
        if node in self._kept:
            self._kept[node] = _LET_GO
            self._changed.set()

    # -- life ----------------------------------------------------------------------------------------------------------

    async def join(self, request: RegistrationRequest) -> Admitted:
        """Become a member under a new incarnation. Raises UsageError if the cluster refuses this node, and Unavailable."""
        if self._store.restored.is_set():
            await self._store.accept_restored()
        sent_at = self._clock()
        lease = await self._store.grant_lease(self._lease_s)
        admitted = await self._members.register(request, HearingCore(self._name, lease))
        if not isinstance(admitted, Admitted):
            raise UsageError(admitted.reason)
        self.incarnation, self._lease_id = admitted.incarnation, lease
        listings = await self._list()
        self.lease.on_confirmed(sent_at, self._lease_s, self._clock())  # the tables are as of a later moment
        self._load(listings)
        return admitted

    def start(self) -> None:
        """Keep the lease, and follow the others."""
        self._store.is_running = True
        self._tasks = [
            asyncio.get_running_loop().create_task(work, name=name)
            for name, work in (
                ("lease of this core", self._keep_lease()),
                ("tables of the cluster", self._follow_always()),
                ("nodes of this core", self._keep_nodes()),
            )
        ]
        for task in self._tasks:
            task.add_done_callback(_report)

    async def stop(self) -> None:
        """Leave the lease to its end, so that a core that restarts soon is never declared dead."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_alone(self) -> None:
        log.warning(
            "this core is alone: its lease was not renewed in time, or it does not hear of new members; it serves no node until"
            " the cluster's store answers"
        )
        self._port.on_alone()

    def _on_back(self) -> None:
        log.info("this core is back in its cluster")
        self._be_patient()
        self._changed.set()
        self._port.on_back()

    def _on_declared_dead(self, reason: str) -> None:
        log.error("%s", reason)
        self._port.on_declared_dead(reason)

    # -- the own lease -------------------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        pause_s = self._lease_s / _RENEWALS_PER_LEASE
        while self.lease.state is not LeaseState.DEAD:
            is_renewed = await self._try(self._renew())
            if is_renewed:
                self._trouble = ""
            await self._sleep(pause_s if is_renewed else min(pause_s, _RETRY_S))

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and notice at once that the lease has ended."""
        until = monotonic() + seconds
        while (left_s := until - monotonic()) > 0:
            await asyncio.sleep(min(left_s, TICK_S))
            self.check()

    async def _renew(self) -> None:
        sent_at = self._clock()
        if self._lease_id and await self._store.renew_lease(self._lease_id):
            # The row may be that of a newer incarnation, or be missing after a restore.
            row = await self._store.get(LEASES, lease_key(self._name, self._name))
            if row is not None and int.from_bytes(row.value, "big") == self.incarnation:
                await self._confirm(sent_at)
                return
        self.check()
        sent_at = self._clock()
        lease = await self._store.grant_lease(self._lease_s)
        if not await self._members.keep(self._name, self.incarnation, HearingCore(self._name, lease)):
            self._end(await self._members.latest(self._name) > self.incarnation)
            return
        self._lease_id = lease
        self._be_patient()
        self._changed.set()  # the rows of its nodes have ended with the old lease
        await self._confirm(sent_at)

    async def _confirm(self, sent_at: float) -> None:
        """The lease was renewed; it counts when this core knows all nodes that had joined by then."""
        position = await self._members.last_joined()
        self.lease.on_confirmed(sent_at, self._lease_s, self._clock(), position)

    def _end(self, is_replaced: bool) -> None:
        self.lease.on_dead("this core was started a second time" if is_replaced else DECLARED_DEAD)

    async def _try(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something that is tried again later; False if the store does not answer."""
        try:
            await work
        except Unavailable as problem:
            if self._trouble != problem.detail:
                self._trouble = problem.detail
                log.warning("the store of the cluster does not answer: %s", problem)
            return False
        return True

    # -- the tables ----------------------------------------------------------------------------------------------------

    async def _list(self) -> dict[str, TableRows]:
        return {table: await self._store.list_rows(table) for table in LISTED}

    async def _follow_always(self) -> None:
        while True:
            try:
                if self._store.restored.is_set() or self._forgotten is not None:
                    await self._accept_restored()
                if self._position is None:
                    self._load(await self._list())
                assert self._position is not None
                await self._follow(self._position)
            except CommitsMissed:
                self._position = None
            except Unavailable:
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, position: int) -> None:
        """Take commits until a restore is noticed."""
        restored = asyncio.ensure_future(self._store.restored.wait())
        coming: asyncio.Future[CoreCommit] | None = None
        try:
            async with aclosing(self._store.watch(position)) as commits:
                try:
                    while True:
                        coming = asyncio.ensure_future(anext(commits))
                        await asyncio.wait({coming, restored}, return_when=asyncio.FIRST_COMPLETED)
                        if not coming.done():
                            return
                        commit = coming.result()
                        self._apply(self.view.take(commit))
                        self._note_read(commit.position)
                finally:
                    if coming is not None and not coming.done():
                        coming.cancel()
                        await asyncio.wait({coming})
        finally:
            restored.cancel()

    async def _accept_restored(self) -> None:
        """Take the store as it is, and put back what it has forgotten."""
        self._store.begin_repair()
        if self._forgotten is None:
            self._forgotten = {table: dict(rows) for table, rows in self.view.tables.items()}
        if self._store.restored.is_set():
            await self._store.accept_restored()
        while True:
            found = await self._list()
            plan = plan_write_back(self._forgotten, {table: listing.rows for table, listing in found.items()})
            if not plan:
                break
            for each in plan:  # another core may be faster; then its row is judged in the next round
                await self._store.commit([each.condition], [each.write])
            log.info("%d rows that the cluster's store had lost are back", len(plan))
        self._forgotten = None
        self._store.end_repair()
        for node, lease in self._kept.items():  # its row may be gone, while the lease that it belongs to is in the backup
            if lease != _LET_GO:
                self._kept[node] = _NOT_WRITTEN
        self._load(found)
        await self._renew()

    def _load(self, listings: Mapping[str, TableRows]) -> None:
        changes = self.view.load(listings)
        # From the first listing on: a commit between two listings is in one of them only.
        position = min(listing.position for listing in listings.values())
        self._be_patient()
        self._unkept = {}
        for member in self.view.alive.values():
            if not self.view.is_kept(member.name):
                self._note_unkept(member)
        self._apply(changes)
        self._note_read(position)

    def _note_read(self, position: int) -> None:
        """Everything up to this position has been applied."""
        self._position = position
        self.lease.on_read(position, self._clock())

    def _apply(self, changes: ViewChanges) -> None:
        for member in changes.ended:
            node = (member.name, member.incarnation)
            self._unkept.pop(node, None)
            if node in self._kept:
                self._kept[node] = _LET_GO
            if node == (self._name, self.incarnation):
                self._end(self.view.alive.get(self._name) is not None)
                return
            self._port.on_ended(member)
        for member in changes.joined:
            if member.name != self._name:
                self._port.on_joined(member)
        for member in changes.unkept:
            self._note_unkept(member)
        if changes.are_cores_changed:
            self._port.on_cores()
        if changes.is_version_changed:
            self._port.on_version()
        if changes.are_settings_changed or changes.bans:
            self._port.on_administered(changes)
        self._changed.set()

    def _note_unkept(self, member: LiveMember) -> None:
        if member.name != self._name:
            self._unkept[(member.name, member.incarnation)] = max(self._clock(), self._patient_until)

    def _be_patient(self) -> None:
        """Give every node a lease to be heard again."""
        self._patient_until = self._clock() + self._lease_s
        for node in self._unkept:
            self._unkept[node] = self._patient_until

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def _keep_nodes(self) -> None:
        while True:
            self._changed.clear()
            if self.check():
                await self._try(self._write_kept())
                await self._try(self._declare_dead())
                await self._try(self._raise_version())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()

    async def _write_kept(self) -> None:
        """Write the rows of nodes that this core hears, and remove those of nodes that have ended."""
        lease = self._lease_id
        waiting = [node for node, written in self._kept.items() if written != lease]  # only `_write_one` removes any
        for first in range(0, len(waiting), _AT_ONCE):
            done = await asyncio.gather(
                *(self._write_one(node, lease) for node in waiting[first : first + _AT_ONCE]), return_exceptions=True
            )
            for problem in done:
                if isinstance(problem, BaseException):
                    raise problem

    async def _write_one(self, node: NodeIncarnation, lease: int) -> None:
        if self._kept[node] != _LET_GO:
            is_alive = await self._members.keep(*node, HearingCore(self._name, lease))
            if self._kept[node] != _LET_GO:
                self._kept[node] = lease if is_alive else _LET_GO
            return
        await self._members.let_go(*node, self._name)
        if self._kept[node] == _LET_GO:
            del self._kept[node]

    async def _declare_dead(self) -> None:
        """Write the deaths of nodes that no core keeps."""
        for node, due in list(self._unkept.items()):
            if due > self._clock() or not self.check():
                continue
            if not self.view.is_kept(node[0]) and self.view.is_member(*node) and await self._members.declare_dead(*node):
                log.info("%s (incarnation %d) is dead: no core has heard it for %g s", *node, self._lease_s)
            self._unkept.pop(node, None)  # also if another core was faster or keeps it, which the tables will say

    async def _raise_version(self) -> None:
        if self.view.must_decide_version:
            await self._members.raise_version([member.version for member in self.view.alive.values()])


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})
