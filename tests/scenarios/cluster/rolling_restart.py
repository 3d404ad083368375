"""A rolling restart under load: every node is stopped and started again in turn, those with clients after a drain."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from braidmq.mqtt.packets import MQTT5, MQTT311, Packet, Publish, Suback, Subscribe, SubscribeOption, Will
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns.client import DurableClient
from tests.durability.campaigns.subscriber import SUBSCRIBE_ID
from tests.scenarios.cluster.campaign import ENDINGS, Campaign, Processes
from tests.scenarios.cluster.cluster import NodeProcess
from tests.support import command

MOVERS = 20
_WORK = 200  # packets between two restarts


class Mover(DurableClient):
    """Has a will, and does nothing but come back at once when it is sent away."""

    def will(self) -> Will | None:
        return Will(f"will/{self.name}", b"lost", 1, False)

    def connected(self) -> None:
        """Nothing is sent."""

    def received(self, packet: Packet) -> None:
        self.complain(f"unexpected {packet}")


class Witness(DurableClient):
    """Complains about every will."""

    def __init__(self, campaign: RollingRestart) -> None:
        super().__init__("witness", MQTT5, campaign.scene, 0)
        self.is_subscribed = asyncio.Event()

    def connected(self) -> None:
        if not self.is_subscribed.is_set():
            self.send(Subscribe(SUBSCRIBE_ID, [SubscribeOption("will/#", 1)]))

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.is_subscribed.set()
        elif isinstance(packet, Publish):
            self.complain(f"the will {packet.topic} was published")


class RollingRestart(Campaign):
    """The replicants are drained before they are restarted; the cores follow."""

    def __init__(
        self,
        cluster: Processes,
        cores: Callable[[], list[NodeProcess]],
        count: int,
        seed: int,
        folder: Path,
        modes: Sequence[str] = (),
    ) -> None:
        """``cores``: asked once the cluster runs. ``count``: of all nodes. ``modes``: of the registry, each for one round."""
        rounds = max(1, len(modes))
        endings = ENDINGS | {Reason.USE_ANOTHER_SERVER, Reason.QUOTA_EXCEEDED}
        super().__init__(cluster, seed, rounds * count, endings, work_max=_WORK)
        self._modes = modes
        self._cores = cores
        self._folder = folder
        self.moved = 0  # clients that were sent away

    def others(self) -> list[DurableClient]:
        """Clients with a will, some of each version, and one that would see the wills."""
        movers = [Mover(f"m{number}", (MQTT5, MQTT311)[number % 2], self.scene, 0) for number in range(MOVERS)]
        return [Witness(self), *movers]

    async def _do_harm(self) -> None:
        nodes = [*self._cluster.replicants, *self._cores()]
        turn, number = divmod(len(self.done), len(nodes))
        node = nodes[number]
        self.done.append(node.name)
        if self._modes:
            node.configure("registry.mode", self._modes[turn])
        if node in self._cluster.replicants:
            self._served.remove(node)
            await asyncio.to_thread(self._drain, node)
        await asyncio.to_thread(restart, node)
        if node in self._cluster.replicants:
            self._served.add(node)

    def _drain(self, node: NodeProcess) -> None:
        ended = command.run("ctl", "--data-dir", str(self._folder / node.name), "node", "drain", "--rate", "1000")
        assert ended.exit_code == 0, ended.errors
        self.moved += int(ended.output.rpartition(" is drained: ")[2].split()[0])


def restart(node: NodeProcess) -> None:
    """Stop a node in order, and start it again."""
    node.process.send(signal.SIGTERM)
    assert node.process.await_end() == 0
    node.close()
    node.start()
