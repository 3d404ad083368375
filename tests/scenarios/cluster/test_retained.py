"""Publishers with different homes set the same topics while cores are killed: subscribers see one last value (S9, C14, C26)."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from braidmq.base.shards import shard_of
from braidmq.mqtt.packets import Publish
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.several_cores import CoresOfProcesses
from tests.support.clients.wire import Closed

pytestmark = [pytest.mark.needs("etcd")]

CLUSTER: dict[str, object] = {"lease": "3s", "home_wait": "20s"}
SHARDS = 12
TOPICS = [f"topic/{number}" for number in range(8)]
WAIT_S = 30.0


class Setter(threading.Thread):
    """Sets the topics in turn, with QoS 1; comes back and repeats what was not acknowledged."""

    def __init__(self, node: NodeProcess, client_id: str) -> None:
        super().__init__(daemon=True)
        self.client_id = client_id
        self.acknowledged: dict[str, int] = {}  # the number of the last message of each topic
        self.total = 0
        self.problem: BaseException | None = None
        self.is_over = threading.Event()
        self.progress = threading.Semaphore(0)
        self._node = node

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                with suppress(OSError, AssertionError, Closed):  # its home was killed, or its node has given up waiting
                    self._publish()
                self.is_over.wait(0.1)
        except BaseException as problem:
            self.problem = problem

    def _publish(self) -> None:
        with self._node.client(self.client_id) as client:
            while not self.is_over.is_set():
                topic = TOPICS[self.total % len(TOPICS)]
                reason = client.publish(topic, f"{self.client_id} {self.total}".encode(), qos=1, retain=True)
                if reason in (0, 0x10):
                    self.acknowledged[topic] = self.total
                    self.total += 1
                    self.progress.release()

    def has_set(self, values: dict[str, bytes]) -> bool:
        """Whether all values are its own, and none is older than what was acknowledged."""
        found = {topic: payload.decode().split() for topic, payload in values.items()}
        return all(name == self.client_id and int(number) >= self.acknowledged[topic] for topic, (name, number) in found.items())

    def stop(self) -> None:
        """End it; what it was about to do is done, or was refused."""
        self.is_over.set()
        self.join(WAIT_S)
        assert not self.is_alive()
        assert self.problem is None

    def advance(self) -> None:
        """Wait until it has set each topic again."""
        for _ in range(len(TOPICS) * 2):
            assert self.progress.acquire(timeout=WAIT_S), f"{self.client_id} makes no progress: {self.problem!r}"


def advance(*setters: Setter) -> None:
    """Wait until each topic was set again by all of these."""
    for each in setters:
        while each.progress.acquire(blocking=False):
            pass  # what it has done before does not count
    for each in setters:
        each.advance()


def client_ids(cores: int) -> list[str]:
    """One client at home at each core: shards are dealt to the cores in turn."""
    names = [f"setter{number}" for number in range(100)]
    return [next(name for name in names if shard_of(name, SHARDS) % cores == core) for core in range(cores)]


def retained(node: NodeProcess, client_id: str) -> dict[str, bytes]:
    """What a new subscriber sees: the last message of each topic, when all have come."""
    with node.client(client_id) as client:
        client.request_subscribe("topic/#", qos=1)
        found: dict[str, bytes] = {}
        while len(found) < len(TOPICS):
            publish: Publish = client.receive_publish(WAIT_S)
            found[publish.topic] = publish.payload
        return found


@pytest.mark.timeout(240)
def test_topics_have_one_last_value_wherever_it_is_read_after_cores_were_killed(tmp_path: Path) -> None:
    chance = random.Random(9)
    with CoresOfProcesses(tmp_path, 2, cluster=CLUSTER) as cluster:
        setters = [Setter(cluster.replicants[at % 2], name) for at, name in enumerate(client_ids(3))]
        for each in setters:
            each.start()
        killed, topics, publisher = chance.sample(range(3), 3)
        advance(*setters)
        cluster.cores[killed].kill()
        cluster.cores[killed].start()
        advance(*setters)
        setters[topics].stop()
        cluster.cores[topics].kill()
        # What is set of its topics from now on is acknowledged by the publishers' homes alone. The last one of these dies, too.
        advance(setters[killed], setters[publisher])
        setters[killed].stop()
        advance(setters[publisher])
        setters[publisher].stop()
        cluster.cores[publisher].kill()
        for at in (topics, publisher):
            cluster.cores[at].start()

        deadline = time.monotonic() + WAIT_S  # what was late for a core may still be on its way there
        while True:
            seen = [retained(node, f"{node.name}-{number}") for number in range(3) for node in cluster.replicants]
            is_settled = all(each == seen[0] for each in seen) and setters[publisher].has_set(seen[0])
            if is_settled or time.monotonic() > deadline:
                break

        assert all(each == seen[0] for each in seen), "all subscribers see the same"
        assert setters[publisher].has_set(seen[0]), f"{seen[0]} has values older than {setters[publisher].acknowledged}"
