"""Cores and replicants that ask each other for the cluster's time, over a network whose delays differ by direction.

True time is known to the test alone. Each machine's boot-time clock runs at its own rate from its own start; wall clocks say
anything. Calls take time both ways, and answers of dead nodes never come.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random

from braidmq.cluster.clock.cluster_clock import ClockReading, ClusterClock
from braidmq.cluster.clock.reference import NO_REIGN, CeilingRow, OtherCore, Reference
from braidmq.net.proto_v1_clock import TimeTold

BEAT_S = 0.5


class ClockNode:
    """A node; a core if it has a registration id."""

    def __init__(self, world: ClockWorld, name: str, registration_id: int = 0) -> None:
        self.world = world
        self.name = name
        self.registration_id = registration_id
        self.rate = 1 + world.random.uniform(-0.0004, 0.0004)
        self.base = world.random.uniform(0, 1e6)
        self.wall_error_s = 0.0
        self.suspended_s = 0.0
        self.is_alive = False
        self.is_cut_off = False  # from the store
        self.incarnation = 0
        self.clock = ClusterClock(self.boot_time, self.monotonic)
        self.reference = Reference(self.clock, registration_id, self.wall)
        self.last = 0
        self.given = 0

    def boot_time(self) -> float:
        return self.base + self.world.now * self.rate

    def monotonic(self) -> float:
        return self.boot_time() - self.suspended_s

    def wall(self) -> float:
        return self.world.now + self.wall_error_s

    def start(self) -> None:
        """A new process, which knows nothing."""
        self.incarnation = next(self.world.incarnations)
        self.is_alive = True
        self.clock = ClusterClock(self.boot_time, self.monotonic)
        self.reference = Reference(self.clock, self.registration_id, self.wall)
        self.last = 0
        self.beat(self.incarnation)

    def stop(self) -> None:
        self.is_alive = False

    def beat(self, incarnation: int) -> None:
        if not self.is_alive or incarnation != self.incarnation:
            return
        self.world.after(BEAT_S, lambda: self.beat(incarnation))
        self.clock.look()
        for core in self.world.cores:
            if core is not self and core.is_alive and self.world.random.random() < 0.5:
                self.ask(core)
        if self.registration_id and not self.is_cut_off:
            self.lead()

    def lead(self) -> None:
        """Decide, and write the row at once."""
        world = self.world
        others = [OtherCore(core.registration_id, core.incarnation) for core in world.cores if core.is_alive and core is not self]
        if not self.reference.needs_row(others):
            return
        planned = self.reference.plan(world.row, others)
        if planned is None:
            return
        world.write(self, planned)
        if world.random.random() < 0.8:  # else the store's answer is lost
            self.reference.written(planned)

    def ask(self, core: ClockNode) -> None:
        """A call, with its way there and back."""
        asked, mine, sent_at = core.incarnation, self.incarnation, self.boot_time()

        def arrive() -> None:
            if core.is_alive and core.incarnation == asked:
                told = core.clock.tell()
                self.world.after(self.world.delay(), lambda: answered(told))

        def answered(told: TimeTold) -> None:
            if self.is_alive and self.incarnation == mine:
                self.reference.note_reign(asked, told.reign)
                self.clock.take(told, sent_at)

        self.world.after(self.world.delay(), arrive)

    def read(self) -> ClockReading | None:
        """What the node would put into a version now, if it may; checked to be no earlier than what it has read before."""
        reading = self.clock.reading()
        if not reading.is_usable:
            return None
        assert reading.ms >= self.last, f"{self.name} went back by {self.last - reading.ms} ms"
        self.last = reading.ms
        self.world.highest = max(self.world.highest, reading.ms)
        return reading


class ClockWorld:
    """Call `run` to let time pass; ``row`` is the core store."""

    def __init__(self, seed: int, *, cores: int, replicants: int) -> None:
        self.random = Random(seed)
        self.now = 1_700_000_000.0
        self.row = NO_REIGN
        self.incarnations = itertools.count(1)
        self.delays = (0.0002, 0.02)
        self.highest = 0  # of all readings
        self.first_of_reign: dict[int, int] = {}  # highest reading before it
        self._times: dict[int, Callable[[], float]] = {}  # what a reference of a reign would say now, even if it is dead
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.cores = [ClockNode(self, f"core{number}", number) for number in range(1, cores + 1)]
        self.replicants = [ClockNode(self, f"r{number}") for number in range(1, replicants + 1)]

    @property
    def nodes(self) -> list[ClockNode]:
        return [*self.cores, *self.replicants]

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def delay(self) -> float:
        return self.random.uniform(*self.delays)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), callback))

    def write(self, node: ClockNode, row: CeilingRow) -> None:
        """A node has written the row; a new reign takes its time from it from now on, or as soon as it knows."""
        is_new = row.reign > self.row.reign
        self.row = row
        if is_new:
            self.first_of_reign[row.reign] = self.highest
            incarnation, clock = node.incarnation, node.clock

            def follow() -> None:
                if clock.is_reference and clock.reign == row.reign:
                    offset = clock.offset_s
                    self._times[row.reign] = lambda: node.boot_time() + offset
                elif node.is_alive and node.incarnation == incarnation:
                    self.after(0.001, follow)

            self.after(0.0, follow)

    def run(self, seconds: float, check: Callable[[], None] | None = None) -> None:
        """Let time pass; ``check`` is called about twenty times a second."""
        until = self.now + seconds
        next_check = self.now
        while self.now < until:
            if check is not None and self.now >= next_check:
                check()
                next_check = self.now + self.random.uniform(0.01, 0.1)
            due = self._due[0][0] if self._due else until
            self.now = min(due, until, next_check if check is not None else until)
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()

    def check(self) -> None:
        """Every reading is within its bound of its reference's, and of every other reading."""
        readings = [(node, reading) for node in self.nodes if node.is_alive and (reading := node.read()) is not None]
        for node, reading in readings:
            node.given += 1
            truth = self._times.get(node.clock.reign)
            if truth is not None:
                error_ms = abs(reading.ms - truth() * 1000)
                assert error_ms <= reading.bound_ms, f"{node.name} is off by {error_ms:.1f} ms and says {reading.bound_ms}"
