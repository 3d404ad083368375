"""The registry as a model: the production state machines of a home and its nodes, and every order in which things can happen.

A ``Model`` is a whole world: nodes with their clients, the home, and what is on its way between them. ``events`` names what can
happen next, and ``step`` lets it happen and checks what must hold. `registry_explorer` tries everything.

The connections for claims and for blocks of a node are two queues in each direction, so either may overtake the other. A lag, and
a node that stands still, need no events of their own: a message may be delivered after anything else has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import (
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Declaration,
    Ended,
    Ending,
    EndLoser,
    Outcome,
    OwnerRestored,
    Probe,
)
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.table import ChannelEntry, Contest
from braidmq.cluster.registry.versions import SAME_CLOCK_MS

WAIT_S = 1.0
CLIENT = "c"
RELEASED = (Ending.PUBLISH, Ending.DISCARD, Ending.TAKEN)


class Violation(AssertionError):
    """A property does not hold."""


class Connection(NamedTuple):
    """A connection of the client: where it ends, and when it was made by the clock of that node."""

    node: str
    ms: int
    bound_ms: int = 5
    shown_ms: int | None = None  # what the node takes for that time, if it is wrong


class Bounds(NamedTuple):
    """How often each fault may happen."""

    leaves: int = 0
    cuts: int = 0
    restarts: int = 0
    crashes: int = 0
    kicks: int = 0
    repeats: int = 0


class Time:
    """Stands still but for ``expire``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.base_us = 0  # a home that starts is never behind what its log says

    def seconds(self) -> float:
        return self.now

    def us(self) -> int:
        return self.base_us + int(self.now * 1_000_000)


class NodeModel:
    """A node: its side of claims, and what is on its way to and from it."""

    def __init__(self, name: str, time: Time, node_type: type[NodeClaims]) -> None:
        self.name = name
        self.claims = node_type(clock=time.seconds)
        self.channels: list[int] = []  # connections, in the order of their channels
        self.calls: list[Any] = []  # to the home
        self.blocks: list[tuple[int, tuple[Any, ...]]] = []  # not answered: number, entry
        self.sent = 0  # how many of them are delivered on this connection
        self.number = 0
        self.answers: list[int] = []
        self.heard: list[tuple[int, Any]] = []  # from the home: term and message
        self.stale: list[tuple[int, Any]] = []  # the same, from connections that are lost
        self.term = 0  # of the home that it is connected to; 0: to none
        self.known_term = 0  # that it has declared to
        self.is_dead = False


class Model:
    """A world at one moment."""

    home_type: type[HomeClaims[str]] = HomeClaims
    node_type: type[NodeClaims] = NodeClaims
    ignores_terms = False  # a planted bug: R14

    def __init__(self, connections: tuple[Connection, ...], bounds: Bounds) -> None:
        self.connections = connections
        self.left = bounds._asdict()
        self.kicked = False
        self.time = Time()
        self.nodes = {name: NodeModel(name, self.time, self.node_type) for name in sorted({each.node for each in connections})}
        self.states = ["new"] * len(connections)
        self.ever: tuple[int, ...] = ()  # connections that have been registered
        self.told: tuple[int, ...] = ()  # connections whose node has heard of the grant
        self.row: int | None = None  # the connection whose cursor is on disk
        self.granted: int | None = None  # the last one
        self.winner: int | None = None  # the same, unless a home has restarted since
        self.arrivals: tuple[int, ...] = ()  # connections, in the order of their claims at the home
        self.granted_guard = 0
        self.fence = 0  # the highest guard so far
        self.lost: tuple[int, ...] = ()  # connections that were told to end
        self.marks: dict[str, int] = {}  # the last block of each node that is on disk
        self.term = 0
        self.restart()
        for node in self.nodes.values():
            self.join(node)
        while not self.home.is_ready:
            for node in self.nodes.values():
                self.deliver(node)

    def restart(self) -> None:
        self.term += 1
        self.time.base_us += 1_000_000
        self.ever = tuple(each for each in self.ever if each in self.told)  # of others nothing is known any more
        self.arrivals = ()
        living = [node.name for node in self.nodes.values() if not node.is_dead]
        self.home = self.home_type(WAIT_S, self.time.us, living)
        for number, name in enumerate(living):
            self.home.meet(name, number + 1)
        for node in self.nodes.values():
            self.cut(node)

    # What can happen

    def events(self) -> Iterator[tuple[str, Any]]:
        """What can happen next; faults last."""
        yield from self.natural()
        for number, state in enumerate(self.states):
            if self.left["leaves"] and state in ("asking", "open"):
                yield "leave", number
        for node in self.nodes.values():
            if node.stale:
                yield "stale", node.name
            if self.left["cuts"] and node.term:
                yield "cut", node.name
            if self.left["crashes"] and not node.is_dead:
                yield "crash", node.name
            if self.left["repeats"] and node.term and node.known_term == self.term:
                for claim in [each for each in self.claims_of(node) if each.number <= (self.claimed(node) or 0)]:
                    yield "repeat", (node.name, claim)
        if self.left["restarts"]:
            yield "restart", None
        if self.left["kicks"] and self.home.is_ready and self.registered() is not None:
            yield "kick", None

    def natural(self) -> Iterator[tuple[str, Any]]:
        """What happens sooner or later if nothing fails."""
        for number, connection in enumerate(self.connections):
            if self.states[number] == "new" and not self.nodes[connection.node].is_dead:
                yield "connect", number
        for node in self.nodes.values():
            if node.is_dead:
                continue
            if not node.term:
                yield "join", node.name
                continue
            if node.calls:
                yield "call", node.name
            if node.sent < len(node.blocks) and self.home.is_ready and self.home.has_heard(node.name):
                yield "block", node.name
            if node.heard:
                yield "hear", node.name
        if self.home.next_due is not None:
            yield "expire", None

    def claimed(self, node: NodeModel) -> int | None:
        peer = self.home._peers.get(node.name)
        return None if peer is None else peer.claimed

    def number_of(self, name: str, channel: int) -> int:
        """The connection of a channel."""
        return self.nodes[name].channels[channel - 1]

    def claims_of(self, node: NodeModel) -> list[ClaimRequest]:
        return [channel.claim for channel in node.claims._channels.values() if not channel.is_over]

    def step(self, event: tuple[str, Any]) -> None:
        """Let something happen. Raises Violation."""
        kind, what = event
        match kind:
            case "connect":
                self.connect(what)
            case "join":
                self.join(self.nodes[what])
            case "call":
                self.deliver(self.nodes[what])
            case "block":
                self.deliver_block(self.nodes[what])
            case "hear":
                node = self.nodes[what]
                self.hear(node, *node.heard.pop(0))
            case "stale":
                node = self.nodes[what]
                self.hear(node, *node.stale.pop(0))
            case "expire":
                due = self.home.next_due
                assert due is not None
                self.time.now = max(self.time.now, due)
                self.do(self.home.expire(self.time.now))
            case "leave":
                self.left["leaves"] -= 1
                connection = self.connections[what]
                node = self.nodes[connection.node]
                self.hang_up(node, node.channels.index(what) + 1, Ending.PUBLISH, "gone")
            case "cut":
                self.left["cuts"] -= 1
                self.cut(self.nodes[what])
            case "crash":
                self.left["crashes"] -= 1
                self.crash(self.nodes[what])
            case "repeat":
                self.left["repeats"] -= 1
                name, claim = what
                self.do(self.home.claim(name, claim, self.time.now))
            case "restart":
                self.left["restarts"] -= 1
                self.restart()
            case "kick":
                self.left["kicks"] -= 1
                self.kicked = True
                self.kick()
        self.check()

    # Nodes

    def connect(self, number: int) -> None:
        connection = self.connections[number]
        node = self.nodes[connection.node]
        ms = connection.ms if connection.shown_ms is None else connection.shown_ms
        if node.claims.is_outdated(CLIENT, ms):
            self.states[number] = "refused"
            return
        claim = node.claims.claim(CLIENT, ms, connection.bound_ms, ms)
        node.channels.append(number)
        self.states[number] = "asking"
        if node.term and node.known_term == node.term:
            node.calls.append(claim)

    def join(self, node: NodeModel) -> None:
        node.term = self.term
        node.sent = 0
        node.stale = [each for each in node.stale if each[1][0] != "answered"]  # connections for blocks end before that
        node.claims.promise(None, self.term)
        if node.known_term != self.term:
            node.calls.append(node.claims.declaration())
            node.known_term = self.term
        else:
            self.do(self.home.connected(node.name))
            node.calls += node.claims.open_claims()

    def cut(self, node: NodeModel) -> None:
        node.stale = node.heard if node.stale == [] else node.stale
        node.calls, node.heard, node.term = [], [], 0
        if node.known_term == self.term and self.claimed(node) is None:
            node.known_term = 0  # the declaration is lost

    def crash(self, node: NodeModel) -> None:
        node.is_dead = True
        node.calls, node.heard, node.stale, node.blocks = [], [], [], []
        for number, connection in enumerate(self.connections):
            if connection.node == node.name and self.states[number] in ("new", "asking", "open"):
                self.states[number] = "gone"
        self.do(self.home.dead(node.name, self.time.now))

    def hang_up(self, node: NodeModel, channel: int, ending: Ending, state: str) -> None:
        number = self.number_of(node.name, channel)
        self.states[number] = state
        withdrawn = node.claims.hang_up(channel)
        node.number += 1
        entry = ("release", channel, ending) if withdrawn is None else ("withdraw", withdrawn)
        node.blocks.append((node.number, entry))

    def hear(self, node: NodeModel, term: int, message: Any) -> None:
        """The home has said something to a node."""
        if isinstance(message, tuple) and message[0] == "answered":
            self.answered(node, message[1])
            return
        if not self.ignores_terms and not node.claims.accepts(CLIENT, term):
            return
        match message:
            case ClaimGranted(claim=claim):
                number = self.number_of(node.name, claim.channel)
                was_asking = self.states[number] == "asking"
                is_valid = node.claims.on_granted(claim, message.guard, message.version, message.bound_ms)
                if was_asking and is_valid:
                    self.states[number] = "open"
                    self.told = tuple(sorted((*self.told, number)))
                elif was_asking:
                    self.hang_up(node, claim.channel, Ending.WITHDRAWN, "ended")
            case ClaimRejected(claim=claim):
                if node.claims.on_rejected(claim):
                    self.states[self.number_of(node.name, claim.channel)] = "refused"
            case EndLoser():
                channel = message.channel if message.is_kicked else 0
                for each in node.claims.on_end(CLIENT, message.version, channel):
                    self.hang_up(node, each, Ending.TAKEN, "ended")
            case Probe():
                if node.term:
                    node.calls.append(message)

    def answered(self, node: NodeModel, block: int) -> None:
        for number, entry in list(node.blocks):
            if number == block:
                node.blocks.remove((number, entry))
                node.sent = max(0, node.sent - 1)
                node.claims.on_released(entry[1] if entry[0] == "release" else entry[1].channel)

    # The home

    def deliver(self, node: NodeModel) -> None:
        message = node.calls.pop(0)
        match message:
            case ClaimRequest():
                self.note_arrival(node, message)
                self.do(self.home.claim(node.name, message, self.time.now))
            case Declaration():
                self.do(self.home.connected(node.name))
                for claim in message.claims:
                    self.note_arrival(node, claim)
                self.do(self.home.declare(node.name, message, self.time.now))
            case Probe():
                self.do(self.home.probed(node.name, CLIENT, message.channel, self.time.now))

    def note_arrival(self, node: NodeModel, claim: ClaimRequest) -> None:
        number = self.number_of(node.name, claim.channel)
        if claim.number > (self.claimed(node) or 0):
            self.arrivals = (*(each for each in self.arrivals if each != number), number)
            self.lost = tuple(each for each in self.lost if each != number)  # a home that has restarted knows of no loss

    def deliver_block(self, node: NodeModel) -> None:
        block, entry = node.blocks[node.sent]
        node.sent += 1
        is_known = block <= self.marks.get(node.name, 0)
        self.marks[node.name] = max(block, self.marks.get(node.name, 0))
        if entry[0] == "release":
            if not is_known and self.home.client_of(node.name, entry[1]) is not None:
                writer = self.number_of(node.name, entry[1])
                if writer != self.granted:
                    raise Violation("a write of a loser was accepted after the grant of another channel")
                self.row = writer
            self.do(self.home.release(node.name, entry[1], Ending.REPEATED if is_known else entry[2]))
        elif is_known:
            self.do(self.home.release(node.name, entry[1].channel, Ending.REPEATED))
        else:
            self.do(self.home.withdraw(node.name, entry[1]))
        if self.left["cuts"] or self.left["restarts"]:
            node.heard.append((self.term, ("answered", block)))
        else:
            self.answered(node, block)  # nothing depends on when it arrives

    def kick(self) -> None:
        entry = self.registered()
        assert entry is not None
        self.do(self.home.kick(CLIENT, entry.peer.node, entry.channel, self.time.now))

    def registered(self) -> ChannelEntry[str] | None:
        """The channel that is registered."""
        found = self.home._table.get(CLIENT)
        return found.registered if isinstance(found, Contest) else found

    def do(self, actions: list[Any]) -> None:
        """Carry decisions out, and check each."""
        for action in actions:
            match action:
                case ClaimGranted(node=name, claim=claim):
                    if action.guard > self.granted_guard:  # else the answer is repeated
                        self.granted = self.winner = self.number_of(name, claim.channel)
                        self.granted_guard = action.guard
                        if action.guard < self.fence:
                            raise Violation("a guard is granted that is below the fence")
                case ClaimRejected(node=name, claim=claim):
                    self.check_rejected(self.number_of(name, claim.channel), action.outcome)
                case EndLoser(node=name):
                    registered = self.registered()
                    number = self.number_of(name, action.channel)
                    if number not in self.lost:
                        self.lost = tuple(sorted((*self.lost, number)))
                    if registered is not None and (registered.peer.node, registered.channel) == (name, action.channel):
                        raise Violation("a channel takes over itself")
                case Ended(owner=owner):
                    number = self.number_of(owner.node, owner.channel)
                    if self.was_given_up(owner):
                        if self.term == 1 and not self.time.now:
                            raise Violation("the loser had no time to write")
                    elif action.ending in RELEASED and self.row != number:
                        raise Violation("the winner does not start from what the loser wrote last")
                    continue
                case OwnerRestored(owner=owner):
                    self.granted = self.number_of(owner.node, owner.channel)
                    self.granted_guard = owner.guard
                    continue
            node = self.nodes[action.node]
            if node.term == self.term:
                node.heard.append((self.term, action))

    def was_given_up(self, owner: Any) -> bool:
        """Whether an owner has been fenced rather than released: then its channel is still known."""
        peer = self.home._peers.get(owner.node)
        return peer is not None and owner.channel in peer.channels

    # What must hold

    def is_older(self, number: int, other: int) -> bool:
        """Whether a connection is certainly older than another one."""
        first, second = self.connections[number], self.connections[other]
        if first.node == second.node:
            return first.ms + SAME_CLOCK_MS < second.ms
        return first.ms + first.bound_ms + second.bound_ms < second.ms

    def check_rejected(self, number: int, outcome: Outcome) -> None:
        if outcome is Outcome.ABORT or number in self.ever or self.states[number] != "asking":
            return
        registered = self.registered()
        there = self.ever if registered is None else (*self.ever, self.number_of(registered.peer.node, registered.channel))
        claimed = (other for other in self.arrivals if self.is_older(number, other))
        if not any(self.has_lost(number, other) for other in there) and not any(True for _ in claimed):
            raise Violation(f"connection {number} was refused, and no newer one was there")

    def has_lost(self, number: int, other: int) -> bool:
        """Whether a connection is older than another one, or its claim has arrived before the other one and neither is older."""
        if self.is_older(number, other):
            return True
        if self.is_older(other, number) or other not in self.arrivals:
            return False
        return self.arrivals.index(number) < self.arrivals.index(other)

    def check(self) -> None:
        """What must hold at any time."""
        registered = self.registered()
        if registered is not None:
            number = self.number_of(registered.peer.node, registered.channel)
            if number not in self.ever:
                self.ever = tuple(sorted((*self.ever, number)))
            self.fence = max(self.fence, registered.guard)
            if number in self.lost and self.home.is_ready and number != self.winner and self.is_served(self.winner):
                raise Violation(f"connection {number} was told to end, and is registered again")
            newer = [other for other in self.ever if self.is_older(number, other)]
            if newer and self.home.is_ready:
                raise Violation(f"connection {number} is registered, and {newer} are newer")
        found = self.home._table.get(CLIENT)
        if isinstance(found, Contest):
            if found.promised is not None and (found.owner is None or found.registered is None):
                raise Violation("a claim waits for nothing")
            if found.owner is not None and found.owner is found.registered and found.owner.guard != found.guard:
                raise Violation("the owner is below the fence")
        if self.home.is_ready:
            for node in self.nodes.values():
                if self.claimed(node) is not None:
                    known = self.home._peers[node.name].channels
                    for index, number in enumerate(node.channels):
                        if self.is_served(number) and index + 1 not in known:
                            raise Violation(f"connection {number} is served, and the home does not know it")
        if not any(True for _ in self.natural()):
            self.check_rest()

    def is_served(self, number: int | None) -> bool:
        """Whether a connection is open, on a node that the home has heard."""
        if number is None or self.states[number] != "open":
            return False
        node = self.nodes[self.connections[number].node]
        return node.term == self.term and self.claimed(node) is not None

    def check_rest(self) -> None:
        """What must hold when nothing more is going to happen."""
        asking = [number for number, state in enumerate(self.states) if state == "asking"]
        if asking:
            raise Violation(f"connections {asking} wait for ever")
        found = [number for number, state in enumerate(self.states) if state == "open"]
        registered = self.registered()
        owner = None if registered is None else self.number_of(registered.peer.node, registered.channel)
        if found != ([] if owner is None else [owner]):
            raise Violation(f"connections {found} are served, and {owner} is registered")
        tried = [number for number, state in enumerate(self.states) if state != "new"]
        newest = [number for number in tried if not any(self.is_older(number, other) for other in tried)]
        if not self.kicked and all(self.states[number] != "gone" for number in newest) and owner not in newest:
            raise Violation(f"{newest} are the newest, and {owner} is registered")
        if any(not node.is_dead and node.blocks for node in self.nodes.values()):
            raise Violation("a release is not answered")
