"""Several cores in one process, each with a loop, log, broker and home of its own; their clocks stand still together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, count
from typing import Any, Self

from braidmq.base.shards import shard_of
from braidmq.cluster.home.confidence import PROBE_S
from braidmq.cluster.home.home import Home
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.rlog.agent import PACE
from tests.support.simulator.cluster_world import ClusterWorld, NodeWire
from tests.support.simulator.world import StillLoop

SHARDS = 6
_QUIET_TURNS = 8
_TURNS_MAX = 5000


class CoreWorld(ClusterWorld):
    """One core of several. A replicant of it is connected to this core alone."""

    def __init__(self, cores: CoresWorld, name: str, **tables: Any) -> None:
        self.cores = cores
        self.name = name
        super().__init__(**tables)

    def _make_loop(self) -> StillLoop:
        loop = StillLoop()
        loop.now = self.cores.now
        return loop

    def _make_home(self) -> Home:
        term = self._lives + 1
        led = LedShards(self.name, self.cores.leaders, dict.fromkeys(self.cores.shards_of(self.name), term))
        return Home(Member(self.name, term), 2.0, PACE, self.log, led=led, clock=self.loop.time)

    def _led_shards(self) -> Iterable[int]:
        return self.cores.shards_of(self.name)

    def client_id(self, stem: str = "c") -> str:
        """A client id that this core decides about."""
        return self.cores.text_of(self.name, stem)

    def settle(self) -> None:
        """Let all cores come to rest."""
        self.cores.settle()

    def activity(self) -> tuple[int, ...]:
        """Changes while something happens here."""
        return self._activity()


class CoresWorld:
    """The cores, and what they share."""

    def __init__(self, *names: str, **tables: Any) -> None:
        """The shards are dealt to the cores in turn."""
        names = names or ("core1", "core2", "core3")
        self.now = 0.0
        self.leaders = [names[shard % len(names)] for shard in range(SHARDS)]
        self.cores: dict[str, CoreWorld] = {}
        tables = {**tables, "history": {"shards": SHARDS, **tables.get("history", {})}}
        for name in names:
            self.cores[name] = CoreWorld(self, name, **tables)
        self._wires: dict[frozenset[str], tuple[NodeWire, NodeWire]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for core in self.cores.values():
            core.close()

    def __getitem__(self, name: str) -> CoreWorld:
        return self.cores[name]

    # Links between cores

    def link(self, one: str, other: str) -> None:
        """Connect two cores, with new connections."""
        here, there = NodeWire(self.cores[one]), NodeWire(self.cores[other])
        here.other, there.other = there, here
        here_cores, there_cores = self.cores[one].home.cores, self.cores[other].home.cores
        assert here_cores is not None
        assert there_cores is not None
        self._wires[frozenset((one, other))] = here, there
        here.on_frame = here_cores.up(other, here).receive
        there.on_frame = there_cores.up(one, there).receive

    def link_all(self) -> None:
        """Connect every core to every other one, and let them become sure of each other."""
        for one, other in combinations(self.cores, 2):
            self.link(one, other)
        self.pass_time(3)

    def cut(self, one: str, other: str) -> None:
        """Cut the connections of two cores, with everything on its way; both notice."""
        self.stall(one, other)
        for name, gone in ((one, other), (other, one)):
            cores = self.cores[name].home.cores
            assert cores is not None
            cores.down(gone)
        self.settle()

    def stall(self, one: str, other: str) -> None:
        """From now on nothing arrives between two cores, and neither notices."""
        for wire in self._wires.pop(frozenset((one, other)), ()):
            wire.other = wire.on_frame = None

    def crash(self, name: str) -> None:
        """A core ends here and now; the next one runs on what is on disk, and is not connected to anything."""
        for other in self.cores:
            if frozenset((name, other)) in self._wires:
                self.cut(name, other)
        self.cores[name].crash()

    def pass_time(self, steps: int) -> None:
        """Time passes, so many times as long as between two probes."""
        for _ in range(steps):
            self.wait(PROBE_S)

    def shards_of(self, core: str) -> list[int]:
        """The shards that a core leads."""
        return [shard for shard, name in enumerate(self.leaders) if name == core]

    def text_of(self, core: str, stem: str) -> str:
        """A text that begins with the stem, in a shard of this core."""
        texts = (f"{stem}{number}" for number in count())
        return next(text for text in texts if self.leaders[shard_of(text, SHARDS)] == core)

    def settle(self) -> None:
        """Let the loop run and the disks sync until nothing happens any more."""
        quiet = 0
        for _ in range(_TURNS_MAX):
            before = [core.activity() for core in self.cores.values()]
            for core in self.cores.values():
                core.sync()
                core.turn()
            quiet = quiet + 1 if before == [core.activity() for core in self.cores.values()] else 0
            if quiet == _QUIET_TURNS:
                return
        raise AssertionError("the cores do not come to rest")

    def wait(self, seconds: float) -> None:
        """Time passes at once: every timer that is due by then fires, once."""
        self.pause(seconds)
        self.settle()

    def pause(self, seconds: float) -> None:
        """Time has passed, and nothing has run."""
        self.now += seconds
        for core in self.cores.values():
            core.loop.now = self.now
