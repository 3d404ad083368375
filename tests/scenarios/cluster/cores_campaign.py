"""A campaign on several cores: cores, replicants and etcd are killed and stopped, and the network between them is cut."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.campaign import ENDINGS, Campaign
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.several_cores import CoresOfProcesses

LEASE_S = 3.0
CLUSTER: dict[str, object] = {"lease": f"{LEASE_S:g}s", "home_wait": "20s"}


class CoresCampaign(Campaign):
    """Three cores, two replicants, one etcd. A node that was declared dead is started again, as a supervisor does."""

    def __init__(self, seed: int, faults: int, folder: Path) -> None:
        self._processes = CoresOfProcesses(folder, 2, cluster=CLUSTER)
        # Whether a core has a message that it has not answered is in doubt: the client is disconnected, and sends it again.
        super().__init__(self._processes, seed, faults, ENDINGS | {Reason.QUOTA_EXCEEDED})

    async def _do_harm(self) -> None:
        kinds = [
            self._kill_core,
            self._stop_core,
            self._cut_core,
            self._stall_core,
            self._kill_any_replicant,
            self._stop_replicant,
            self._kill_etcd,
            self._stop_etcd,
        ]
        kind = self._chance.choice(kinds)
        self.done.append(kind.__name__)
        await kind()

    async def _kill_core(self) -> None:
        core = self._chance.choice(self._processes.cores)
        await asyncio.to_thread(core.kill)
        await self._pass_time(self._chance.choice([0.0, 1.0, 2 * LEASE_S]))
        await asyncio.to_thread(core.start)

    async def _stop_core(self) -> None:
        core = self._chance.choice(self._processes.cores)
        async with self._revived(core):
            core.process.pause()
            await self._pass_time(self._chance.choice([0.5, LEASE_S, 3 * LEASE_S]))
            core.process.send(signal.SIGCONT)

    async def _cut_core(self) -> None:
        """Nobody can connect with one core."""
        line = self._chance.choice(list(self._processes.lines.values()))
        for _ in range(self._chance.randint(1, 3)):
            line.cut()
            await self._pass_time(self._chance.choice([0.1, 1.0, 1.5 * LEASE_S]))
            line.go_on()
            await self._pass_time(self._chance.random())

    async def _stall_core(self) -> None:
        """What is sent to one core, or what it sends, does not arrive, and nobody is told."""
        line = self._chance.choice(list(self._processes.lines.values()))
        direction = self._chance.choice(["both", "to", "from"])
        line.stall(to_server=direction != "from", to_client=direction != "to")
        await self._pass_time(self._chance.choice([0.5, 2.0, 1.5 * LEASE_S]))
        line.go_on()

    async def _kill_any_replicant(self) -> None:
        await self._kill_replicant(self._chance.choice(self._cluster.replicants))

    async def _stop_replicant(self) -> None:
        node = self._chance.choice(self._cluster.replicants)
        self._served.remove(node)
        async with self._revived(node):
            node.process.pause()
            await self._pass_time(self._chance.choice([0.5, LEASE_S, 3 * LEASE_S]))
            node.process.send(signal.SIGCONT)
        self._served.add(node)

    async def _kill_etcd(self) -> None:
        member = self._processes.etcd.members[0]
        await asyncio.to_thread(member.kill)
        await self._pass_time(self._chance.choice([0.0, 1.0, 2 * LEASE_S]))
        await asyncio.to_thread(member.start)

    async def _stop_etcd(self) -> None:
        member = self._processes.etcd.members[0]
        member.pause()
        await self._pass_time(self._chance.choice([1.0, 2 * LEASE_S]))
        member.go_on()

    async def _pass_time(self, seconds: float) -> None:
        """Clients work for this time; it may be that none can."""
        with contextlib.suppress(TimeoutError):
            await self._work_for(1_000_000, seconds or 0.01)

    @asynccontextmanager
    async def _revived(self, node: NodeProcess) -> AsyncIterator[None]:
        """Afterwards the node works, as the same member or as a new one."""
        yield
        await asyncio.to_thread(revive, node)


def revive(node: NodeProcess) -> None:
    """Wait a lease for the end of a node that learns that it was declared dead, and start it again."""
    if node.process.ends_within(2 * LEASE_S):
        node.close()
        node.start()
