"""Claims under random faults: clients come and go on several nodes, the home crashes, messages overtake each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from braidmq.cluster.protocol.blocks import BlockAnswer, BlockReceiver, BlockResume, BlockSender, BlockStep, NumberedBlock
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import (
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Declaration,
    Ended,
    Ending,
    EndLoser,
    Owner,
    OwnerRestored,
    Probe,
)
from braidmq.cluster.registry.node_claims import NodeClaims
from tests.support.simulator.network import Link, Network

CLIENTS = ("a", "b")
WAIT_S = 0.3
LEASE_S = 1.0
BOUND_MS = 5


class Edge:
    """A node with clients. Its two links to the home are cut together, but each has delays of its own."""

    def __init__(self, sim: Sim, name: str) -> None:
        self.sim = sim
        self.name = name
        self.is_dead = False
        self.clock_error_ms = sim.network.random.randrange(-BOUND_MS, BOUND_MS + 1)
        self.claims = NodeClaims(clock=lambda: sim.network.now)
        self.blocks: BlockSender[tuple[Any, ...]] = BlockSender()
        self.open: dict[int, str] = {}  # channels whose clients have their CONNACK
        self.asking: dict[int, ClaimRequest] = {}
        self.calls: Link[Any] | None = None
        self.messages: Link[Any] | None = None
        self.known_home = 0
        self.sent = 0

    def say(self, message: object) -> None:
        if self.calls is not None:
            self.calls.send(self, message)

    def add(self, *entry: object) -> None:
        """Put an entry into a block, and send it."""
        block = self.blocks.add([entry])
        if self.messages is not None:
            self.messages.send(self, block)

    # Clients

    def connect(self, client_id: str) -> None:
        """A client connects; what it sends is read after a while, and the clock of the node is wrong by up to its bound."""
        random = self.sim.network.random
        ms = int(self.sim.network.now * 1000) + 10_000
        version = ms + self.clock_error_ms - random.choice((0, 0, 0, 20, 100))
        if not self.claims.is_outdated(client_id, version):
            self.claim(client_id, version, ms)

    def claim(self, client_id: str, version: int, ms: int) -> None:
        claim = self.claims.claim(client_id, version, BOUND_MS, ms + self.clock_error_ms, ms - version)
        self.asking[claim.channel] = claim
        self.say(claim)

    def leave(self, channel: int, ending: Ending) -> None:
        self.open.pop(channel, None)
        self.asking.pop(channel, None)
        withdrawn = self.claims.hang_up(channel)
        if withdrawn is not None:
            self.add("withdraw", withdrawn)
        else:
            self.add("release", channel, ending)

    def publish(self, channel: int) -> None:
        self.sent += 1
        self.add("publish", channel, self.claims.guard_of(channel))

    # The home

    def receive(self, link: Link[Any], message: object) -> None:
        if self.is_dead:
            return
        match message:
            case ClaimGranted():
                is_valid = self.claims.on_granted(message.claim, message.guard, message.version, message.bound_ms)
                if self.asking.pop(message.claim.channel, None) is None:
                    pass
                elif is_valid:
                    self.open[message.claim.channel] = message.claim.client_id
                else:
                    self.leave(message.claim.channel, Ending.TAKEN)
            case ClaimRejected():
                if self.claims.on_rejected(message.claim):
                    self.asking.pop(message.claim.channel, None)
            case Probe():
                self.say(message)
            case EndLoser():
                for channel in self.claims.on_end(
                    message.client_id, message.version, message.channel if message.is_kicked else 0
                ):
                    self.leave(channel, Ending.TAKEN)
            case BlockAnswer():
                answered = self.blocks.on_answer(message)
                if answered is not None:
                    for entry in answered[0].entries:
                        if entry[0] == "release":
                            self.claims.on_released(entry[1])
                        elif entry[0] == "withdraw":
                            self.claims.on_released(entry[1].channel)

    def joined(self, calls: Link[Any], messages: Link[Any]) -> None:
        """The home is reached: declare, if it is another one, then repeat what was not answered."""
        self.calls, self.messages = calls, messages
        if self.known_home != self.sim.incarnation:
            self.calls.send(self, self.claims.declaration())
        else:
            for claim in self.claims.open_claims():
                self.say(claim)
        self.messages.send(self, self.blocks.resume())
        for block in self.blocks.unanswered():
            self.messages.send(self, block)

    def cut(self, link: Link[Any]) -> None:
        if link in (self.calls, self.messages) and not self.is_dead:
            self.calls = self.messages = None
            self.sim.join_later(self)


class Sim:
    """The home, and everything that is true of the whole."""

    def __init__(self, seed: int, edges: int) -> None:
        self.network: Network[Any] = Network(seed)
        self.incarnation = 0
        self.edges: dict[str, Edge] = {}
        self.links: dict[Link[Any], Edge] = {}
        self.rows: dict[str, Owner[str]] = {}  # on disk: who is connected, by client id
        self.marks: dict[str, Any] = {}
        self.log: list[tuple[str, int]] = []  # client ids and guards of what was appended
        self.grants: Counter[tuple[str, int]] = Counter()
        self.ends: Counter[tuple[str, int]] = Counter()
        self.names = 0
        for _ in range(edges):
            self.add_edge()
        self.start_home()

    def add_edge(self) -> None:
        self.names += 1
        edge = self.edges[f"r{self.names}"] = Edge(self, f"r{self.names}")
        self.join_later(edge)

    def start_home(self) -> None:
        self.incarnation += 1
        for link in list(self.links):
            link.cut()
        self.links.clear()
        self.claims: HomeClaims[str] = HomeClaims(
            WAIT_S, lambda: int(self.network.now * 1_000_000), list(self.edges), guard_of_row=self._guard_of_row
        )
        self.has_judged_rows = False
        for name in self.edges:
            self.claims.meet(name, int(name[1:]))
        self.receivers: dict[str, BlockReceiver[Any]] = {}
        self.early: list[tuple[str, Any]] = []
        self.network.after(LEASE_S, partial(self._give_up, self.incarnation))
        self._settle(self.claims.begin(self.network.now))

    def _guard_of_row(self, client_id: str) -> int:
        row = self.rows.get(client_id)
        return 0 if row is None else row.guard

    def _give_up(self, incarnation: int) -> None:
        """Nodes that have not declared within a lease are dead or not waited for."""
        if incarnation == self.incarnation and not self.claims.is_ready:
            for name in list(self.edges):
                self._settle(self.claims.silent(name, self.network.now))

    def join_later(self, edge: Edge) -> None:
        def join() -> None:
            if edge.is_dead or edge.calls is not None:
                return
            calls, messages = self.network.connect(edge, self), self.network.connect(edge, self)
            self.links |= {calls: edge, messages: edge}
            edge.joined(calls, messages)
            self.claims.meet(edge.name, int(edge.name[1:]))
            self._do(self.claims.connected(edge.name))

        self.network.after(self.network.delay() * 2, join)

    # What arrives

    def receive(self, link: Link[Any], message: object) -> None:
        edge = self.links.get(link)
        if edge is None or edge.is_dead:
            return
        if isinstance(message, NumberedBlock | BlockResume) and not (self.claims.is_ready and self.claims.has_heard(edge.name)):
            self.early.append((edge.name, (link, message)))  # no block is taken before all have declared
            return
        self._take(edge, link, message)

    def _take(self, edge: Edge, link: Link[Any], message: object) -> None:
        match message:
            case ClaimRequest():
                self._settle(self.claims.claim(edge.name, message, self.network.now))
            case Probe():
                self._settle(self.claims.probed(edge.name, message.client_id, message.channel, self.network.now))
            case Declaration():
                edge.known_home = self.incarnation
                self._settle(self.claims.declare(edge.name, message, self.network.now))
            case BlockResume():
                self._receiver(edge.name).on_resume(message)
            case NumberedBlock():
                receiver = self._receiver(edge.name)
                if receiver.receive(message) is BlockStep.WRITE:
                    for entry in message.entries:
                        self._entry(edge.name, entry)
                    self.marks[edge.name] = receiver.mark(message.number, {})
                    link.send(self, receiver.done(message.number))
                else:
                    for entry in message.entries:
                        self._again(edge.name, entry)
                    link.send(self, receiver.answer(message.number))

    def _receiver(self, name: str) -> BlockReceiver[Any]:
        if name not in self.receivers:
            self.receivers[name] = BlockReceiver(self.marks.get(name))
        return self.receivers[name]

    def _entry(self, name: str, entry: tuple[Any, ...]) -> None:
        match entry:
            case ("publish", channel, guard):
                client_id = self.claims.client_of(name, channel)
                if client_id is not None:
                    self.log.append((client_id, guard))
            case ("release", channel, ending):
                self._settle(self.claims.release(name, channel, ending))
            case ("withdraw", claim):
                self._settle(self.claims.withdraw(name, claim))

    def _again(self, name: str, entry: tuple[Any, ...]) -> None:
        match entry:
            case ("release", channel, _):
                self._settle(self.claims.release(name, channel, Ending.REPEATED))
            case ("withdraw", claim):
                self._settle(self.claims.release(name, claim.channel, Ending.REPEATED))

    # What follows

    def _settle(self, actions: list[Any]) -> None:
        if self.claims.is_ready and not self.has_judged_rows:  # what nobody has declared is over, before anything is granted
            self.has_judged_rows = True
            self._do([action for action in actions if isinstance(action, OwnerRestored)])
            for client_id, row in list(self.rows.items()):
                if self.claims.owner(client_id) != row:
                    self._ended(client_id, row.guard)
            actions = [each for each in actions if not isinstance(each, OwnerRestored) and not self._is_over(each)]
        self._do(actions)
        if self.claims.is_ready:
            early, self.early = self.early, []
            for name, (link, message) in early:
                if name in self.edges and link in self.links:
                    self.receive(link, message)
        due = self.claims.next_due
        if due is not None:
            self.network.at(max(due, self.network.now), partial(self._expire, self.incarnation))

    def _is_over(self, action: Any) -> bool:
        """Whether a row that nobody has declared, or a newer declaration, has ended this one already."""
        return isinstance(action, Ended) and self.rows.get(action.client_id) != action.owner

    def _expire(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._settle(self.claims.expire(self.network.now))

    def _ended(self, client_id: str, guard: int) -> None:
        assert self.rows.pop(client_id).guard == guard
        self.ends[client_id, guard] += 1

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Ended():
                    self._ended(action.client_id, action.owner.guard)
                case OwnerRestored():
                    row = self.rows.get(action.client_id)
                    if row is not None and row != action.owner:  # its grant has not arrived
                        self._ended(action.client_id, row.guard)
                    if row != action.owner:  # it was given up, and is back
                        self.rows[action.client_id] = action.owner
                        if not self.grants[action.client_id, action.owner.guard]:  # with a new guard
                            self.grants[action.client_id, action.owner.guard] += 1
                        else:
                            self.ends[action.client_id, action.owner.guard] -= 1
                case ClaimGranted():
                    if not self.grants[action.claim.client_id, action.guard]:
                        self.grants[action.claim.client_id, action.guard] += 1
                        assert action.claim.client_id not in self.rows, "two owners"
                        self.rows[action.claim.client_id] = Owner(action.node, action.claim.channel, action.guard)
                    self._tell(action.node, action)
                case ClaimRejected() | EndLoser() | Probe():
                    self._tell(action.node, action)

    def _tell(self, name: str, action: object) -> None:
        edge = self.edges.get(name)
        if edge is not None and edge.calls is not None:
            edge.calls.send(self, action)

    def cut(self, link: Link[Any]) -> None:
        self.links.pop(link, None)

    # Faults

    def kill(self, edge: Edge) -> None:
        edge.is_dead = True
        del self.edges[edge.name]
        for link in (edge.calls, edge.messages):
            if link is not None:
                link.cut()
        self.network.after(self.network.delay(), lambda: self._settle(self.claims.dead(edge.name, self.network.now)))

    def check(self) -> None:
        """At rest: one owner of each client id, and it is what its node thinks; every grant but the last has ended once."""
        assert self.claims.is_ready
        for client_id in CLIENTS:
            channels = [
                (edge.name, channel) for edge in self.edges.values() for channel, name in edge.open.items() if name == client_id
            ]
            owner = self.claims.owner(client_id)
            assert channels == ([] if owner is None else [(owner.node, owner.channel)]), client_id
            assert (client_id in self.rows) == (owner is not None)
            guards = [guard for name, guard in self.grants if name == client_id]
            assert guards == sorted(guards)
            for guard in guards:
                is_last = owner is not None and guard == owner.guard
                assert self.ends[client_id, guard] == (0 if is_last else 1), (client_id, guard)
            appended = [guard for name, guard in self.log if name == client_id]
            assert appended == sorted(appended), "an older channel appended after a newer one"
        for edge in self.edges.values():
            assert not edge.asking
            assert len(edge.blocks) == 0
            assert edge.claims.declaration().claims == []


def connect(sim: Sim) -> None:
    random = sim.network.random
    if sim.edges:
        random.choice(list(sim.edges.values())).connect(random.choice(CLIENTS))


def hang_up(sim: Sim) -> None:
    random = sim.network.random
    edges = [edge for edge in sim.edges.values() if edge.open or edge.asking]
    if edges:
        edge = random.choice(edges)
        edge.leave(random.choice([*edge.open, *edge.asking]), random.choice((Ending.PUBLISH, Ending.DISCARD)))


def publish(sim: Sim) -> None:
    random = sim.network.random
    edges = [edge for edge in sim.edges.values() if edge.open]
    if edges:
        edge = random.choice(edges)
        edge.publish(random.choice(list(edge.open)))


def cut(sim: Sim) -> None:
    edges = [edge for edge in sim.edges.values() if edge.calls is not None]
    if edges:
        edge = sim.network.random.choice(edges)
        for link in (edge.calls, edge.messages):
            if link is not None:
                link.cut()


def pause(sim: Sim) -> None:
    random = sim.network.random
    if sim.edges:
        sim.network.pause(random.choice(list(sim.edges.values())), random.random())


def kill(sim: Sim) -> None:
    random = sim.network.random
    if sim.edges:
        sim.kill(random.choice(list(sim.edges.values())))
        sim.network.after(random.random() * 0.3, sim.add_edge)


FAULTS: tuple[Callable[[Sim], None], ...] = (
    *(connect,) * 4, *(hang_up,) * 2, *(publish,) * 4, cut, pause, kill, Sim.start_home,
)  # fmt: skip


@pytest.mark.parametrize("block", range(25))
@pytest.mark.parametrize("edges", [1, 2, 3])
def test_each_client_id_has_one_owner_and_each_grant_ends_once(block: int, edges: int) -> None:
    for seed in range(block * 40, (block + 1) * 40):
        sim = Sim(seed, edges)
        random = sim.network.random
        for _ in range(random.randrange(5, 50)):
            sim.network.at(random.random(), partial(random.choice(FAULTS), sim))
        try:
            sim.network.run(events_max=100_000)
            sim.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
