"""A campaign on a cluster: clients move between nodes that are killed and stopped at random, and the verdict at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path
from types import TracebackType
from typing import Protocol

from braidmq.mqtt.packets import MQTT5, MQTT311
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns.client import DurableClient, Scene, ServedPort
from tests.durability.campaigns.ledger import Ledger, summarise
from tests.durability.campaigns.publisher import ROOT, Publisher
from tests.durability.campaigns.subscriber import Subscriber
from tests.scenarios.cluster.cluster import ClusterOfProcesses, NodeProcess

CLUSTER: dict[str, object] = {"lease": "3s", "home_wait": "15s"}
# By so many messages a subscriber may be behind the publishers. Without a bound a slow one, with a small window for QoS 2, would
# still be busy long after the last fault, and look like one that receives nothing any more.
BEHIND_MAX = 1000
# A client that comes back elsewhere is taken over; a 3.1.1 client is refused with 3.
ENDINGS = frozenset({Reason.SESSION_TAKEN_OVER, Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.SERVER_SHUTTING_DOWN, 3})


class ServedPorts(ServedPort):
    """The ports of the nodes that serve; each client takes any of them."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._ports: dict[str, int] = {}

    def add(self, node: NodeProcess) -> None:
        """The node serves."""
        self._ports[node.name] = node.port
        self.open(node.port)

    def remove(self, node: NodeProcess) -> None:
        """The node is gone."""
        self._ports.pop(node.name, None)
        if not self._ports:
            self.close()

    async def port(self) -> int:
        """Any of them, as soon as there is one."""
        await super().port()
        return self._chance.choice(list(self._ports.values()))


class Processes(Protocol):
    """The nodes of a cluster; a context manager."""

    replicants: list[NodeProcess]

    def __enter__(self) -> object:
        """Start all of them."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all of them."""


class Campaign:
    """One run in a directory of its own; the same seed makes the same faults after the same amounts of work."""

    def __init__(
        self,
        cluster: Processes,
        seed: int,
        faults: int,
        endings: frozenset[int],
        *,
        work_max: int = 2000,
        patience_s: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._chance = random.Random(seed)
        self._work_max = work_max
        self._patience_s = patience_s
        self._served = ServedPorts(random.Random(seed + 1))
        self.ledger = Ledger()
        self.scene = Scene(seed, self.ledger, self._served, self._count, endings, self._may_publish)
        self._is_held = False  # publishers wait for the slowest subscriber
        self._work_left = 0
        self._is_worked = asyncio.Event()
        self.done: list[str] = []  # the faults
        self._publishers = [
            Publisher(f"p{qos}v{version}", version, qos, self.scene, window=self._chance.randint(3, 20), drop_one_in=100)
            for version in (MQTT5, MQTT311)
            for qos in (1, 2)
        ]
        self._subscribers = [
            Subscriber(
                f"s{qos}v{version}", version, qos, f"{ROOT}/#", self.scene,
                receive_maximum=self._chance.randint(5, 100), drop_one_in=100,
            )
            for version in (MQTT5, MQTT311)
            for qos in (1, 2)
        ]  # fmt: skip

    async def run(self) -> list[str]:
        """Everything from the first start to the verdict: what was wrong."""
        await asyncio.to_thread(self._cluster.__enter__)
        try:
            for node in self._cluster.replicants:
                self._served.add(node)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(client.run()) for client in self._subscribers]
                tasks += [group.create_task(client.run()) for client in self.others()]
                await asyncio.gather(*(client.is_subscribed.wait() for client in self._subscribers))
                tasks += [group.create_task(publisher.run()) for publisher in self._publishers]
                for _ in range(self._faults):
                    await self._work_for(int(self._work_max ** self._chance.random()))
                    await self._do_harm()
                await self._finish()
                for task in tasks:
                    task.cancel()
        finally:
            self._cluster.__exit__(None, None, None)
        return self._verdict()

    def others(self) -> list[DurableClient]:
        """Further clients, which run beside those with the load."""
        return []

    async def _do_harm(self) -> None:
        """One fault, and its repair."""
        raise NotImplementedError

    async def _kill_replicant(self, node: NodeProcess) -> None:
        self._served.remove(node)
        await asyncio.to_thread(node.kill)
        if self._chance.random() < 0.5:
            await self._work_for(100)  # of clients on the other one
        await asyncio.to_thread(node.start)
        self._served.add(node)

    # The work

    def _count(self) -> None:
        self._work_left -= 1
        if self._work_left <= 0:
            self._is_worked.set()
        if self._is_held and self._may_publish():
            for publisher in self._publishers:
                publisher.go_on()

    def _may_publish(self) -> bool:
        seen = min(len(each.reader.seen) for each in self._subscribers)
        self._is_held = len(self.ledger.published) - seen >= BEHIND_MAX
        return not self._is_held

    async def _work_for(self, packets: int, patience_s: float | None = None) -> None:
        self._work_left = packets
        self._is_worked.clear()
        try:
            await asyncio.wait_for(self._is_worked.wait(), patience_s or self._patience_s)
        except TimeoutError:
            if patience_s is not None:
                raise
            raise AssertionError(f"clients stood still after {self.done}: {summarise(self.ledger.violations)}") from None

    async def _finish(self) -> None:
        """Until everything is acknowledged and received, or long enough to be sure that it will not be."""
        with contextlib.suppress(TimeoutError, AssertionError):
            await asyncio.wait_for(asyncio.gather(*(each.finish() for each in self._publishers)), self._patience_s)
            async with asyncio.timeout(self._patience_s):
                while any(len(each.reader.seen) < len(self.ledger.published) for each in self._subscribers):
                    await self._work_for(1)

    def _verdict(self) -> list[str]:
        faults = summarise(self.ledger.violations)
        if unfinished := len(self.ledger.published) - self.ledger.acknowledged:
            faults.append(f"{unfinished} messages were never acknowledged")
        for subscriber in self._subscribers:
            faults += self.ledger.judge(subscriber.reader)
        return faults


class ClusterCampaign(Campaign):
    """Of a cluster with one core."""

    def __init__(self, seed: int, faults: int, folder: Path) -> None:
        self._processes = ClusterOfProcesses(folder, 2, cluster=CLUSTER)
        super().__init__(self._processes, seed, faults, ENDINGS)

    async def _do_harm(self) -> None:
        kind = self._chance.choice([self._kill_replicant, self._kill_replicant, self._kill_core, self._stop_replicant])
        node = self._chance.choice(self._cluster.replicants)
        self.done.append(kind.__name__)
        await kind(node)

    async def _kill_core(self, node: NodeProcess) -> None:
        core = self._processes.core
        await asyncio.to_thread(core.kill)
        await asyncio.to_thread(core.start)

    async def _stop_replicant(self, node: NodeProcess) -> None:
        node.process.pause()
        self._served.remove(node)
        with contextlib.suppress(TimeoutError):  # all clients may be there
            await self._work_for(self._chance.randint(1, 500), 3.0)
        node.process.send(signal.SIGCONT)
        self._served.add(node)
