"""A campaign: publishers and durable subscribers on a node that is killed again and again, and the verdict at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

from msgspec import Struct

from braidmq.mqtt.packets import MQTT5, MQTT311
from tests.durability.campaigns import power
from tests.durability.campaigns.client import Scene, ServedPort
from tests.durability.campaigns.ledger import Ledger, Reader, summarise
from tests.durability.campaigns.node import POWERED, errors_in, log_dir, read_log, write_config
from tests.durability.campaigns.publisher import ROOT, Publisher
from tests.durability.campaigns.subscriber import Subscriber
from tests.support.started import Started

GROUP = "crew"


class Plan(Struct, frozen=True):
    """What a campaign does; the same plan with the same seed kills after the same amounts of work."""

    seed: int
    kills: int
    history: dict[str, object] = {}  # the table of the configuration
    has_group: bool = False
    has_lying_disk: bool = False
    damages: tuple[power.Damage, ...] = power.DAMAGES  # done to the files of a dead node, one of these by chance
    work_max: int = 3000  # packets that clients receive between two kills
    patience_s: float = 40.0  # for what must happen


class Outcome(Struct):
    """What a campaign found. ``faults`` is empty if all is well."""

    faults: list[str]
    acknowledged: int
    lost_bytes: int  # of the write-ahead log, by losing power


class Campaign:
    """One run of a plan in a directory of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._file = write_config(folder, history=plan.history)
        self._ledger = Ledger()
        self._served = ServedPort()
        self._scene = Scene(plan.seed, self._ledger, self._served, self._count)
        self._work_left = 0
        self._is_worked = asyncio.Event()
        self._is_to_be_struck = False
        self._node: Started | None = None
        self._lost_bytes = 0
        self._publishers = [self._publisher(version, qos) for version in (MQTT5, MQTT311) for qos in (1, 2)]
        self._subscribers = [
            self._subscriber(f"s{qos}v{version}", version, qos, f"{ROOT}/#") for version in (MQTT5, MQTT311) for qos in (1, 2)
        ]
        self._members = [
            self._subscriber(f"m{number}", MQTT5, 2, f"$share/{GROUP}/{ROOT}/#") for number in range(2 if plan.has_group else 0)
        ]
        for member in self._members:
            member.reader.seen = self._members[0].reader.seen
        # They come when all is over, and ask for all of it.
        is_visible = plan.history.get("topics") != []
        self._lookers = [
            self._subscriber(f"r{qos}v{version}", version, qos, f"$replay/earliest/{ROOT}/#")
            for version, qos in ((MQTT5, 2), (MQTT311, 1))
            if is_visible
        ]

    async def run(self) -> Outcome:
        """Everything from the first start to the verdict."""
        try:
            async with asyncio.TaskGroup() as group:
                clients = [*self._subscribers, *self._members]
                tasks = [group.create_task(client.run()) for client in clients]
                await self._start()
                await asyncio.gather(*(client.is_subscribed.wait() for client in clients))
                tasks += [group.create_task(publisher.run()) for publisher in self._publishers]
                for _ in range(self._plan.kills):
                    # As often after a few packets, while everybody is coming back, as after very many.
                    await self._kill_after(int(self._plan.work_max ** self._chance.random()))
                    await self._start()
                await self._finish()
                tasks += [group.create_task(looker.run()) for looker in self._lookers]
                await self._catch_up()
                for task in tasks:
                    task.cancel()
            await self._stop()
        finally:
            if self._node is not None:
                self._node.__exit__(None, None, None)
        return Outcome(self._verdict(), self._ledger.acknowledged, self._lost_bytes)

    def _publisher(self, version: int, qos: int) -> Publisher:
        window, drop_one_in = self._chance.randint(3, 40), self._chance.choice([0, 200])
        return Publisher(f"p{qos}v{version}", version, qos, self._scene, window=window, drop_one_in=drop_one_in)

    def _subscriber(self, name: str, version: int, qos: int, topic_filter: str) -> Subscriber:
        receive_maximum, drop_one_in = self._chance.randint(2, 100), self._chance.choice([0, 200])
        return Subscriber(name, version, qos, topic_filter, self._scene, receive_maximum=receive_maximum, drop_one_in=drop_one_in)

    # The node

    async def _start(self) -> None:
        self._node = Started(self._file, command=[*POWERED, power.LIE] if self._plan.has_lying_disk else POWERED)
        self._served.open(await asyncio.to_thread(self._node.await_port))

    async def _kill_after(self, packets: int) -> None:
        """Kill the node when the clients have dealt with so many packets; by chance, what it had not synced is lost as well."""
        self._is_to_be_struck = True
        try:
            await self._work_for(packets)
        except TimeoutError:
            self._strike()
            await self._ended(-signal.SIGKILL)
            raise AssertionError(
                f"clients stood still for {self._plan.patience_s} s: {summarise(self._ledger.violations)}"
            ) from None
        await self._ended(-signal.SIGKILL)
        damage = self._chance.choice(self._plan.damages)
        self._lost_bytes += power.cut(log_dir(self._file), damage, self._chance)

    def _strike(self) -> None:
        """SIGKILL this very moment, before any client reads another byte; by chance, what is under way is lost with it."""
        assert self._node is not None
        if self._chance.random() < 0.5:
            # Its kernel would still bring to the clients what it has sent; that of a machine without power does not.
            self._node.pause()
            for client in [*self._publishers, *self._subscribers, *self._members]:
                client.cut()
        self._node.send(signal.SIGKILL)
        self._served.close()

    async def _stop(self) -> None:
        assert self._node is not None
        self._node.send(signal.SIGTERM)
        await self._ended(0)

    async def _ended(self, wanted: int) -> None:
        assert self._node is not None
        status = await asyncio.to_thread(self._node.await_end)
        self._node.__exit__(None, None, None)
        assert status == wanted, f"the node ended with {status}: {self._node.log}"
        self._ledger.violations += errors_in(self._node.log)

    # The work

    def _count(self) -> None:
        self._work_left -= 1
        if self._work_left > 0:
            return
        self._is_worked.set()
        if self._is_to_be_struck:
            self._is_to_be_struck = False
            self._strike()

    async def _work_for(self, packets: int) -> None:
        self._work_left = packets
        self._is_worked.clear()
        await asyncio.wait_for(self._is_worked.wait(), self._plan.patience_s)

    async def _finish(self) -> None:
        """Until everything that was published is acknowledged, or long enough to be sure that it will not; the verdict tells."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(publisher.finish() for publisher in self._publishers)), self._plan.patience_s)

    async def _catch_up(self) -> None:
        """Until every subscriber has it all, or long enough to be sure that it will not."""
        wanted = len(self._ledger.published)
        readers = [*self._subscribers, *self._members, *self._lookers]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.patience_s):
                while any(len(client.reader.seen) < wanted for client in readers):
                    await self._work_for(1)
        # Who has it all may still be sent some of it again.
        for client in readers:
            try:
                await _settle(client, self._plan.patience_s)
            except TimeoutError:
                client.complain("PINGREQ has no answer")

    # The verdict

    def _verdict(self) -> list[str]:
        faults = summarise(self._ledger.violations)
        if unfinished := len(self._ledger.published) - self._ledger.acknowledged:
            faults.append(f"{unfinished} messages were never acknowledged")
        faults += self._ledger.judge(self._read_log())
        for subscriber in [*self._subscribers, *self._lookers]:
            faults += self._ledger.judge(subscriber.reader)
        if self._members:
            faults += self._ledger.judge_group(GROUP, [member.reader for member in self._members])
        return faults

    def _read_log(self) -> Reader:
        reader = Reader("the log", 2)
        for record in read_log(self._file, history=self._plan.history):
            reader.take(record.payload, record.qos)
        return reader


async def _settle(client: Subscriber, patience_s: float) -> None:
    """Two rounds: what the broker sends upon the answers to what it sent before the first one is counted too."""
    rounds = 0
    async with asyncio.timeout(patience_s):
        while rounds < 2:
            with contextlib.suppress(OSError):  # it comes back
                await client.ping()
                rounds += 1
