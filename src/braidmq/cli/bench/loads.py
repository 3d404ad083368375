"""The four loads: ``conn`` only connects, ``pub`` publishes, ``sub`` receives, ``flow`` does both in a closed loop."""

from __future__ import annotations

import asyncio
import functools
import time
import zlib
from typing import Final

from braidmq.cli.bench.connection import BenchPublisher, Subscriber, TimedConnection
from braidmq.cli.bench.fleet import TICK_S, Fleet, until
from braidmq.cli.bench.frames import BLOCK_FRAMES_MAX, PublishBlock, payload_with_header
from braidmq.cli.bench.plan import BenchPlan
from braidmq.cli.bench.tally import Sequences, Tally
from braidmq.cli.errors import CommandFailed

_DRAIN_S: Final = 10.0  # for the last acknowledgements
_STALL_S: Final = 2.0  # a closed loop without progress for this long has lost the messages it waits for
_FOREVER: Final = 1 << 62


class Load:
    """One run: ``prepare`` connects, ``run`` generates the load until it is done or stopped."""

    role = "conn"

    def __init__(self, plan: BenchPlan, tally: Tally, stop: asyncio.Event) -> None:
        self.plan = plan
        self.tally = tally
        self.stop = stop
        self.fleet = Fleet(plan, tally, stop)

    def numbers(self) -> range:
        """The numbers of the clients."""
        return range(self.plan.first_number, self.plan.first_number + self.plan.clients)

    async def prepare(self) -> None:
        """Connect all clients."""
        await self.fleet.bring_up([TimedConnection(self.plan.login(self.role, number), self.tally) for number in self.numbers()])

    async def run(self) -> None:
        """Hold the connections."""
        await self.stop.wait()


class PublishLoad(Load):
    """Every client publishes at its interval, or as fast as possible if that is 0."""

    role = "pub"

    async def prepare(self) -> None:
        """Connect the publishers."""
        self._publishers = [self._publisher(number) for number in self.numbers()]
        self._left = self.plan.limit or _FOREVER
        await self.fleet.bring_up(self._publishers)

    def _publisher(self, number: int) -> BenchPublisher:
        plan = self.plan
        login = plan.login(self.role, number)
        payload = plan.message
        if payload is None:
            payload = payload_with_header(zlib.crc32(login.client_id.encode()), plan.size)
        frames_max = 1 if plan.message_gap_s else BLOCK_FRAMES_MAX
        block = PublishBlock(plan.message_of(self.role, number, payload), plan.version, frames_max)
        return BenchPublisher(login, self.tally, block, qos=plan.qos, window=plan.inflight)

    async def run(self) -> None:
        """Publish until the limit is reached, then await the last acknowledgements."""
        if self.plan.message_gap_s:
            await self._at_intervals()
        else:
            await self._at_full_speed()
        await until(lambda: not any(each.unsettled and each.is_open for each in self._publishers), _DRAIN_S)

    async def _at_intervals(self) -> None:
        began, gap_s, number_of = time.monotonic(), self.plan.message_gap_s, len(self._publishers)
        while self._left and not self.stop.is_set() and self._anybody_left():
            elapsed_s = time.monotonic() - began
            for index, publisher in enumerate(self._publishers):
                # Clients are spread over the interval, so that the load is even.
                due = int((elapsed_s - gap_s * index / number_of) // gap_s) + 1 - publisher.sent
                if due > 0:
                    self._left -= publisher.send(min(due, self._left))
            await asyncio.sleep(TICK_S)

    async def _at_full_speed(self) -> None:
        loop = asyncio.get_running_loop()

        def pump(publisher: BenchPublisher) -> None:
            if self.stop.is_set():
                return
            sent = publisher.send(self._left)
            self._left -= sent
            if sent and not self.plan.qos:
                loop.call_soon(pump, publisher)  # other publishers run in between

        for publisher in self._publishers:
            publisher.on_room = functools.partial(pump, publisher)
            pump(publisher)
        await until(lambda: self.stop.is_set() or not self._left or not self._anybody_left())

    def _anybody_left(self) -> bool:
        return any(publisher.is_open for publisher in self._publishers)


class SubscribeLoad(Load):
    """Every client subscribes and counts; the sequence numbers of ``bench pub`` reveal loss."""

    role = "sub"

    async def prepare(self) -> None:
        """Connect and subscribe."""
        # Members of a shared subscription receive only part of a sequence.
        counts_loss = not self.plan.topic.startswith("$share/")
        subscribers = [
            Subscriber(self.plan.login(self.role, number), self.tally, Sequences(self.tally, counts_loss=counts_loss))
            for number in self.numbers()
        ]

        async def subscribe(subscriber: Subscriber, number: int) -> None:
            await subscriber.subscribe([self.plan.topic_of(self.role, number)], self.plan.qos)

        await self.fleet.bring_up(subscribers, subscribe)

    async def run(self) -> None:
        """Receive until the limit is reached, or until stopped."""
        limit = self.plan.limit or _FOREVER
        await until(lambda: self.stop.is_set() or self.tally.received >= limit)


class FlowLoad(Load):
    """Publishers with at most ``inflight`` messages that are unacknowledged or not yet received by all subscribers."""

    role = "flow"

    async def prepare(self) -> None:
        """Connect and subscribe the subscribers, then connect the publishers."""
        plan = self.plan
        self._window = plan.inflight
        self._left = plan.limit or _FOREVER
        self._ready: set[int] = set()
        subscriber_count = {"pair": plan.clients, "fanin": 1}.get(plan.shape, plan.subscribers or 10)
        # seen[publisher][subscriber]: the last sequence number received; in pairs there is only one subscriber.
        self._seen = [[0] * (1 if plan.shape == "pair" else subscriber_count) for _ in range(plan.clients)]
        subscribers = [self._subscriber(index) for index in range(subscriber_count)]
        await self.fleet.bring_up(subscribers, self._subscribe)
        self._publishers = [self._publisher(index) for index in range(plan.clients)]
        await self.fleet.bring_up(self._publishers)
        if self.fleet.first_failure is not None:
            raise self.fleet.first_failure  # the figures would be meaningless if a client is missing

    def _subscriber(self, index: int) -> Subscriber:
        slot = 0 if self.plan.shape == "pair" else index

        def delivered(publisher: int, count: int) -> None:
            if publisher < len(self._seen):
                self._seen[publisher][slot] += count
                self._ready.add(publisher)

        return Subscriber(
            self.plan.login("sub", self.plan.first_number + index),
            self.tally,
            Sequences(self.tally, starts_at_zero=True),
            delivered,
            self._pump_ready,
        )

    async def _subscribe(self, subscriber: Subscriber, number: int) -> None:
        if self.plan.shape == "pair":
            topic_filters = [self.plan.topic_of("pub", number)]
        else:
            topic_filters = [self.plan.topic.replace("%i", "+")]
        await subscriber.subscribe(topic_filters, self.plan.qos)

    def _publisher(self, index: int) -> BenchPublisher:
        plan, number = self.plan, self.plan.first_number + index
        message = plan.message_of("pub", number, payload_with_header(index, plan.size))
        publisher = BenchPublisher(
            plan.login("pub", number),
            self.tally,
            PublishBlock(message, plan.version, min(BLOCK_FRAMES_MAX, self._window)),
            qos=plan.qos,
            window=self._window,
            times_acknowledgements=False,
        )
        publisher.on_room = lambda: self._pump(index)
        return publisher

    def _pump(self, index: int) -> None:
        if not self.stop.is_set():
            publisher = self._publishers[index]
            room = self._window - (publisher.sent - min(self._seen[index]))
            self._left -= publisher.send(min(room, self._left))

    def _pump_ready(self) -> None:
        ready, self._ready = self._ready, set()
        for index in ready:
            self._pump(index)

    async def run(self) -> None:
        """Keep the windows full until stopped, then wait for messages in flight."""
        for index in range(len(self._publishers)):
            self._pump(index)
        progress, moved_at = -1, time.monotonic()
        while not (self.stop.is_set() or not self._left) or self._is_under_way():
            await asyncio.sleep(TICK_S)
            if self.tally.received != progress:
                progress, moved_at = self.tally.received, time.monotonic()
            elif time.monotonic() - moved_at > _STALL_S:
                self._give_up_waiting()
                if self.stop.is_set() or not any(each.is_open for each in self._publishers):
                    break
                moved_at = time.monotonic()

    def _is_under_way(self) -> bool:
        return any(
            publisher.is_open and (publisher.unsettled or publisher.sent > min(seen))
            for publisher, seen in zip(self._publishers, self._seen, strict=True)
        )

    def _give_up_waiting(self) -> None:
        """Count missing messages as lost, and continue."""
        for index, (publisher, seen) in enumerate(zip(self._publishers, self._seen, strict=True)):
            self.tally.lost += sum(publisher.sent - each for each in seen)
            seen[:] = [publisher.sent] * len(seen)
            publisher.settled = publisher.sent
            self._pump(index)


def make_load(plan: BenchPlan, tally: Tally, stop: asyncio.Event) -> Load:
    """The load of the plan; raises CommandFailed if it is not possible."""
    match plan.kind:
        case "conn":
            return Load(plan, tally, stop)
        case "pub":
            return PublishLoad(plan, tally, stop)
        case "sub":
            return SubscribeLoad(plan, tally, stop)
        case "flow":
            if "%i" not in plan.topic:
                raise CommandFailed("flow needs %i in its topic so that every publisher has its own topic")
            return FlowLoad(plan, tally, stop)
