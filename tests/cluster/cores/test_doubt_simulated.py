"""C23 with random delays, cuts, pauses and restarts: what a client was told of is never unknown to a home that is sure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

import msgspec
import pytest

from braidmq.base.shards import shard_of
from braidmq.cluster.cores.core_peers import CorePeers, decode_probe_answer
from braidmq.cluster.cores.durable_routes import DurableRoutes
from braidmq.cluster.home.confidence import PROBE_S, SILENT_S, Confidence
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.cluster.rlog.tables import Tables
from braidmq.cluster.routes import origin_of
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import Position, ProbeAnswer
from tests.support.simulator.network import Link, Network, Station

SEEDS = 40
RUN_S = 12.0
LEADERS = ["a", "b"]
CLIENT_OF = {  # in the shard of each
    name: next(text for number in count() if shard_of(text := f"client{number}", len(LEADERS)) == shard)
    for shard, name in enumerate(LEADERS)
}


class Frame(NamedTuple):
    kind: FrameKind
    flags: int
    destination: int
    body: bytes


class Process(Station[Frame]):
    """Something that runs, with timers that stand still while it is paused, and one link to each other process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.links: dict[str, Link[Frame]] = {}
        self.is_dead = False

    @property
    def network(self) -> Network[Frame]:
        return self.world.network

    def clock(self) -> float:
        return self.network.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self.network.after(delay, partial(self._run, callback))

    def _run(self, callback: Callable[[], None]) -> None:
        if self.is_dead:
            return
        if self.network.is_paused(self):
            self.network.when_awake(self, partial(self._run, callback))
        else:
            callback()

    def send(self, other: str, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        link = self.links.get(other)
        if link is not None:
            link.send(self, Frame(kind, flags, destination, bytes(body)))

    def other_of(self, link: Link[Frame]) -> str | None:
        return next((name for name, each in self.links.items() if each is link), None)

    def receive(self, link: Link[Frame], message: Frame) -> None:
        other = self.other_of(link)
        if other is not None and not self.is_dead:
            self.handle(other, message)

    def cut(self, link: Link[Frame]) -> None:
        other = self.other_of(link)
        if other is not None and not self.is_dead:
            del self.links[other]
            self.lost(other)

    def up(self, other: str) -> None:
        raise NotImplementedError

    def lost(self, other: str) -> None:
        raise NotImplementedError

    def handle(self, other: str, frame: Frame) -> None:
        raise NotImplementedError


class Wire:
    """What a process has for a connection."""

    def __init__(self, process: Process, other: str) -> None:
        self._process = process
        self._other = other

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        self._process.send(self._other, kind, destination, body, flags)


class Core(Process):
    """A home with durable sessions and publishers."""

    def __init__(self, world: World, name: str, term: int, filters: set[bytes]) -> None:
        super().__init__(world, name)
        self.filters = filters  # on its disk
        self.made: dict[bytes, int] = {}  # the number of the last subscription to a filter: an answer to an earlier one is late
        self.term = term
        led = LedShards(name, LEADERS, {LEADERS.index(name): term})
        self.tables = Tables(lambda changes: None)
        self.tables.open(origin_of(name), term)
        self.is_asked = False
        self.durable = DurableRoutes(led, self.tables, self.ask)
        self.exchange = RlogExchange(
            self.tables, origin_of(name), is_core=True, ask=self.ask, on_applied=self.on_applied,
            writes=self.durable.origins.__contains__,
        )  # fmt: skip
        self.confidence: Confidence[object] = Confidence(self.position_of)
        self.cores = CorePeers(led, self.durable, self.exchange, self.confidence, self.clock)
        self.cores.serve(self)
        self.confidence.expect("n")
        self.node_link: RlogLink | None = None
        for topic_filter in sorted(filters):
            self.durable.add(CLIENT_OF[name], topic_filter)
        self.call_later(0.0, self.tick)

    def position_of(self, origin: str) -> Position | None:
        rows = self.tables.get(origin)
        return None if rows is None else rows.position

    def ask(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self.call_later(0.0, self.run)

    def run(self) -> None:
        self.is_asked = False
        self.exchange.run()

    def on_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        self.cores.note_applied(link, origin, position)

    def tick(self) -> None:
        for core in self.cores.connected:
            self.probe(core.name, core.probe)
        if "n" in self.links:
            self.probe("n", lambda number: self.send("n", FrameKind.PROBE, number, b""))
        self.call_later(PROBE_S, self.tick)

    def probe(self, subject: str, send: Callable[[int], None]) -> None:
        number = self.confidence.probe(subject, self.clock())
        if number is not None:
            send(number)

    def up(self, other: str) -> None:
        if other == "n":
            self.node_link = self.exchange.open(Wire(self, "n").send, origin_of("n").__eq__)
            self.node_link.watch()
            self.ask()
        else:
            self.cores.up(other, Wire(self, other))

    def lost(self, other: str) -> None:
        if other != "n":
            self.cores.down(other)
            return
        self.confidence.lost("n")
        if self.node_link is not None:
            self.node_link.close()
            self.node_link = None

    def handle(self, other: str, frame: Frame) -> None:
        if other != "n":
            self.cores[other].receive(*frame)
        elif frame.kind is FrameKind.PROBE_ANSWER:
            self.confidence.answered("n", frame.destination, decode_probe_answer(frame.body).positions)
        elif self.node_link is not None:
            self.node_link.receive(frame.destination, frame.flags, frame.body)

    def subscribe(self, topic_filter: bytes) -> None:
        """A durable session subscribes; its row is on disk."""
        if topic_filter in self.filters:
            return
        self.filters.add(topic_filter)
        self.durable.add(CLIENT_OF[self.name], topic_filter)
        number = self.made[topic_filter] = self.made.get(topic_filter, 0) + 1
        self.cores.when_known(partial(self.tell, topic_filter, number))

    def tell(self, topic_filter: bytes, number: int) -> None:
        """The client is told, if it still wants it."""
        if not self.is_dead and topic_filter in self.filters and self.made[topic_filter] == number:
            self.world.told.add((durable_origin(LEADERS.index(self.name)), topic_filter))

    def unsubscribe(self, topic_filter: bytes) -> None:
        if topic_filter in self.filters:
            self.filters.discard(topic_filter)
            self.world.told.discard((durable_origin(LEADERS.index(self.name)), topic_filter))
            self.durable.remove(CLIENT_OF[self.name], topic_filter)

    def publish(self) -> None:
        """A client publishes, on all topics at once: whoever was told must be known, unless all of it is recorded."""
        self.world.decisions += 1
        if not self.confidence.is_sure(self.clock()):
            return
        self.world.sure += 1
        own = durable_origin(LEADERS.index(self.name))
        for origin, topic_filter in self.world.told:
            assert origin == own or self.tables.has_row(origin, topic_filter), f"{self.name} lacks {topic_filter!r} of {origin}"


class Edge(Process):
    """A node with clients."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "n")
        self.tables = Tables(lambda changes: None)
        self.tables.open(origin_of("n"), 1)
        self.is_asked = False
        self.exchange = RlogExchange(self.tables, origin_of("n"), is_core=False, ask=self.ask, on_applied=self.on_applied)
        self.watches: dict[str, RlogLink] = {}
        self.has: dict[str, int] = {}
        self.waits: list[tuple[int, bytes]] = []
        self.made: dict[bytes, int] = {}  # the sequence of the last subscription to a filter

    def ask(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self.call_later(0.0, self.run)

    def run(self) -> None:
        self.is_asked = False
        self.exchange.run()

    @property
    def sequence(self) -> int:
        rows = self.tables.get(origin_of("n"))
        assert rows is not None
        return rows.sequence

    def on_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        name = next(name for name, each in self.watches.items() if each is link)
        self.has[name] = position.sequence
        for wait in [wait for wait in self.waits if all(self.has.get(core, 0) >= wait[0] for core in LEADERS)]:
            self.waits.remove(wait)
            self.tell(*wait)

    def tell(self, sequence: int, topic_filter: bytes) -> None:
        if self.tables.has_row(origin_of("n"), topic_filter) and self.made[topic_filter] == sequence:
            self.world.told.add((origin_of("n"), topic_filter))

    def up(self, other: str) -> None:
        self.watches[other] = self.exchange.open(Wire(self, other).send, lambda origin: False)

    def lost(self, other: str) -> None:
        self.watches.pop(other).close()
        self.has.pop(other, None)

    def handle(self, other: str, frame: Frame) -> None:
        if frame.kind is FrameKind.PROBE:
            answer = ProbeAnswer({origin_of("n"): Position(1, self.sequence)})
            self.send(other, FrameKind.PROBE_ANSWER, frame.destination, msgspec.msgpack.encode(answer))
        elif other in self.watches:
            self.watches[other].receive(frame.destination, frame.flags, frame.body)

    def subscribe(self, topic_filter: bytes) -> None:
        if self.tables.has_row(origin_of("n"), topic_filter):
            return
        self.tables.write(origin_of("n"), [Entry(topic_filter, b"l")])
        self.ask()
        wait = (self.sequence, topic_filter)
        self.made[topic_filter] = self.sequence
        self.waits.append(wait)
        self.call_later(SILENT_S, partial(self.give_up, wait))

    def give_up(self, wait: tuple[int, bytes]) -> None:
        if wait in self.waits:
            self.waits.remove(wait)
            self.tell(*wait)

    def unsubscribe(self, topic_filter: bytes) -> None:
        if self.tables.has_row(origin_of("n"), topic_filter):
            self.world.told.discard((origin_of("n"), topic_filter))
            self.tables.write(origin_of("n"), [Entry(topic_filter, None)])
            self.ask()


class World:
    """Two cores and a node."""

    def __init__(self, seed: int) -> None:
        self.network: Network[Frame] = Network(seed)
        self.random = self.network.random
        self.told: set[tuple[str, bytes]] = set()  # origins and filters that clients rely on
        self.decisions = self.sure = 0
        self.processes: dict[str, Process] = {"n": Edge(self)}
        for name in LEADERS:
            self.processes[name] = Core(self, name, 1, set())
        for one, other in (("a", "b"), ("a", "n"), ("b", "n")):
            self.connect(one, other)

    def core(self) -> Core:
        core = self.processes[self.random.choice(LEADERS)]
        assert isinstance(core, Core)
        return core

    def connect(self, one: str, other: str) -> None:
        """Connect two processes, unless they are, and again whenever the connection is lost."""
        ends = self.processes[one], self.processes[other]
        link = ends[0].links.get(other)
        if link is None and ends[1].links.get(one) is None:
            link = self.network.connect(*ends)
            for end, name in zip(ends, (other, one), strict=True):
                end.links[name] = link
                end.up(name)
        self.network.after(self.random.uniform(0.05, 0.5), partial(self.connect, one, other))

    def awake(self, process: Process, act: Callable[[], None]) -> None:
        if not self.network.is_paused(process):
            act()

    def step(self) -> None:
        topic_filter = b"t/%d" % self.random.randrange(8)
        who: Process = self.processes["n"] if self.random.random() < 0.5 else self.core()
        assert isinstance(who, Core | Edge)
        act = who.subscribe if self.random.random() < 0.6 else who.unsubscribe
        self.awake(who, partial(act, topic_filter))

    def publish(self) -> None:
        core = self.core()
        self.awake(core, core.publish)

    def cut(self) -> None:
        process = self.random.choice(list(self.processes.values()))
        if process.links:
            self.random.choice(list(process.links.values())).cut()

    def pause(self) -> None:
        self.network.pause(self.random.choice(list(self.processes.values())), self.random.uniform(0.1, 2.5))

    def restart(self) -> None:
        core = self.core()
        core.is_dead = True
        for link in list(core.links.values()):
            link.cut()
        again = Core(self, core.name, core.term + 1, core.filters)
        self.processes[core.name] = again


@pytest.mark.parametrize("block", range(10))
def test_a_home_that_is_sure_knows_everything_that_clients_were_told(block: int) -> None:
    decisions = sure = 0
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = World(seed)
        random = world.random
        for _ in range(150):
            world.network.at(random.random() * RUN_S, world.step)
        for _ in range(400):
            world.network.at(random.random() * RUN_S, world.publish)
        for _ in range(random.randrange(8)):
            world.network.at(random.random() * RUN_S, random.choice((world.cut, world.cut, world.pause, world.restart)))
        try:
            world.network.run(until=RUN_S)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        decisions += world.decisions
        sure += world.sure
    assert sure > decisions / 4, "it is not always in doubt"
