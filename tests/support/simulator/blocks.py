"""A node and its home that exchange blocks, with real recorders, over a simulated network; the home's disk is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.base.errors import BraidError
from braidmq.broker.messages.producer_books import KeySender, NewKey
from braidmq.broker.persistence import no_callback
from braidmq.broker.ports import Change, CursorRow, Refusal
from braidmq.cluster.home.blocks.block_marks import decode_mark, encode_mark
from braidmq.cluster.home.blocks.block_ports import ChannelClient
from braidmq.cluster.home.blocks.blocks import HomeBlocks
from braidmq.cluster.home.blocks.operations import AppliedRows, Effect, NotOwned
from braidmq.cluster.home.blocks.publishing import EntryPublisher, FindKey, NodeMessage, Published
from braidmq.cluster.protocol.blocks import BlockMark
from braidmq.cluster.protocol.operations import Operation, PutCursor, client_of
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.remote_log import RemoteLog
from braidmq.cluster.remote.log.rows import NodeChange
from braidmq.cluster.remote.log.scans import RemoteScans
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.peers.node_entries import EntryWaiter, NodeEntry
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.lane.recording.recorder import Block, Recorder
from braidmq.lane.records.records import Record
from braidmq.lane.routing.routes import HISTORY
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import PresenceEntry, ReleaseEntry
from braidmq.storage.rows.changes import Put, WriteRefusal
from tests.support.simulator.lane import Bench
from tests.support.simulator.network import Link, Network

SHARDS = 2
MARK_KEY = b"mark"
Wire = tuple[FrameKind, int, bytes, int]


class Client(Outlet):
    """A publisher on the node: what it was told of each of its messages, by packet id."""

    def __init__(self, bench: Bench, client_id: str, channel: int, shard: int) -> None:
        self.client_id = client_id
        self.channel = channel
        self.flow: Flow = bench.flow(client_id)
        self.flow.home_shard = shard
        self.told: dict[int, str] = {}
        self.sent = 0
        self.is_open = True

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        self._tell(packet_id, "acknowledged")

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        self._tell(packet_id, "in doubt" if is_in_doubt else "refused")

    def _tell(self, packet_id: int, what: str) -> None:
        assert packet_id not in self.told, f"{self.client_id} was told twice of message {packet_id}"
        self.told[packet_id] = what

    def end_large(self, size: int) -> None:
        """Nothing waits."""


class Node:
    """The node: a recorder whose log is remote."""

    def __init__(self, network: Network[Wire], *, home_wait_s: float = 1.0, bytes_max: int = 1 << 20) -> None:
        self.network = network
        self.bench = Bench()
        self.bench.state.marks = [1] * SHARDS
        self.recorder = Recorder(self.bench.lane, lambda: None)
        self.recorder.is_remote = True
        self.link: Link[Wire] | None = None
        self.clients: dict[int, Client] = {}
        self.fenced: list[int] = []
        self.sent: list[Wire] = []
        self.scans = RemoteScans(self.send)
        self.blocks = CoreBlocks(range(SHARDS), self.send, self._later, home_wait_s, bytes_max)
        self.log = RemoteLog(
            [self.blocks], self.scans, self, self._later, on_fenced=self.fenced.append, now=lambda: network.now
        )  # fmt: skip
        self.log.outcomes = self.recorder.outcomes
        self.log.collect = self.collect
        self.rows: list[str] = []  # the outcome of each change of rows, in order

    def of_flow(self, flow: Flow) -> int:
        return self.of_client(flow.client_id)

    def of_client(self, client_id: str) -> int:
        return next((each.channel for each in reversed(self.clients.values()) if each.client_id == client_id), 0)

    def _later(self, seconds: float, act: Callable[[], None]) -> Cancellable:
        timer = Cancellable(act)
        self.network.after(seconds, timer)
        return timer

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        assert self.link is not None, "sent without a connection"
        self.sent.append((kind, destination, body, flags))
        self.link.send(self, (kind, destination, body, flags))

    def join(self, client_id: str, channel: int) -> Client:
        client = self.clients[channel] = Client(self.bench, client_id, channel, self.log.shard_of(client_id))
        return client

    def publish(
        self, client: Client, payload: bytes = b"", topic: bytes = b"kept", retain: bool = False, padding: bytes = b""
    ) -> int:
        """A client publishes with QoS 1, unless told otherwise its name and the packet id; the packet id."""
        client.sent += 1
        text = payload or b"%s/%d%b" % (client.client_id.encode(), client.sent, padding)
        message = Message(topic, text, 1, retain, client.client_id)
        self.recorder.record(message, client.flow, client, 1, client.sent, False)
        return client.sent

    def write_cursor(self, client: Client, position: int, *, on_commit: Callable[[], None] = no_callback) -> None:
        self.collect()
        change = NodeChange(client.flow.home_shard, client.client_id, PutCursor(client.client_id, CursorRow((position,), ())))
        self.log.change([change], on_commit=on_commit, on_refused=lambda refusal: self._again(refusal, [change]))

    def _again(self, refusal: Refusal, changes: Iterable[Change]) -> None:
        """What the broker does with refused rows that no client waits for."""
        self.rows.append("in doubt" if refusal.is_in_doubt else "refused")
        if not refusal.is_in_doubt:
            kept = list(changes)
            self.log.change(kept, on_commit=no_callback, on_refused=lambda again: self._again(again, kept))

    def release(self, client: Client) -> None:
        client.is_open = False
        entry = ReleaseEntry(client.channel, "publish")
        self.log.add_entry(client.flow.home_shard, entry, lambda: self.rows.append(f"released {client.channel}"))

    def collect(self) -> None:
        block = self.recorder.take()
        if block is not None:
            self.log.append_block(block)

    def end_turn(self) -> None:
        self.collect()
        self.log.flush()

    def receive(self, link: Link[Wire], message: Wire) -> None:
        kind, destination, body, flags = message
        if link is self.link and kind is FrameKind.BLOCK_ANSWERS:
            self.log.on_answer(self.blocks, destination, flags, body)
        elif link is self.link and kind is FrameKind.SCAN:
            self.scans.on_frame(destination, flags, body)

    def cut(self, link: Link[Wire]) -> None:
        if link is self.link:
            self.link = None
            self.blocks.lost()
            self.scans.lost()


class Cancellable:
    """A timer."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self._act = None

    def __call__(self) -> None:
        if self._act is not None:
            self._act()


class Disk:
    """What is committed, and what is written and may be lost."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []  # channel's publisher and payload, by shard
        self.publishers: list[str] = []
        self.marks: dict[int, bytes] = {}
        self.cursors: dict[str, list[int]] = {}  # every position that was ever written, in order
        self.written: list[Block] = []
        self.is_full = False
        self.clock = 1000

    def append(self, block: Block) -> None:
        if self.is_full:
            block.refused(WriteRefusal("the disk is full", 1.0))
        else:
            self.written.append(block)

    def commit(self, count: int | None = None) -> None:
        """Commit the first blocks that were written, and tell their waiters."""
        blocks, self.written = self.written[:count], self.written[len(self.written[:count]) :]
        for block in blocks:
            block.committed(self._keep(block))

    def _keep(self, block: Block) -> dict[int, list[int]]:
        stamps: dict[int, list[int]] = {}
        for shard, entries in block.entries.items():
            for _, value in entries:
                self.clock += 1
                stamps.setdefault(shard, []).append(self.clock)
                record = Record(self.clock, value)
                self.records.append((shard, record.payload))
                self.publishers.append(record.publisher)
        for change in block.changes:
            if isinstance(change, Put) and change.key == MARK_KEY:
                self.marks[change.shard] = change.value
            elif isinstance(change, Put):
                self.cursors.setdefault(change.key.decode(), []).append(int(change.value))
        return stamps

    def crash(self, kept: int) -> None:
        """The process dies: the first writes had reached the disk, and nobody was told."""
        for block in self.written[:kept]:
            self._keep(block)
        self.written = []


class NotedPublisher(EntryPublisher):
    """Notes whose messages the home publishes."""

    def __init__(self, home: Home) -> None:
        super().__init__(home.recorder, home, home, home.bench.routes, home.bench.lane.flush)
        self._home = home
        self._publish_plain = self.publish_plain
        self.publish_plain = self._publish_run

    def _publish_run(self, messages: list[NodeEntry], start: int, shard: int, waiter: EntryWaiter) -> int:
        shown = len(waiter.live)
        end = self._publish_plain(messages, start, shard, waiter)
        for each in messages[start:end]:
            self._note(each.message)
            if each.index in waiter.live[shown:]:
                self._home.shown.append(each.message.payload)
        return end

    def _note(self, message: Message) -> None:
        channel = next(each.channel for each in self._home.clients.values() if each.client_id == message.publisher)
        self._home.events.append((channel, "message"))

    def publish(
        self,
        sent: NodeMessage,
        shard: int,
        user_name: str | None,
        waiter: Outlet,
        number: int,
        find_key: FindKey | None = None,
    ) -> Published:
        self._note(sent.message)
        return super().publish(sent, shard, user_name, waiter, number, find_key)


class Home:
    """The core, which may die and start again with what its disk has."""

    def __init__(self, network: Network[Wire], clients: dict[int, Client]) -> None:
        self.network = network
        self.disk = Disk()
        self.clients = clients
        self.fenced: set[int] = set()  # channels that have lost their client ids
        self.released: list[tuple[int, Ending]] = []
        self.events: list[tuple[int, str]] = []  # of channels, since the home was started
        self.shown: list[bytes] = []
        self.told: list[PresenceEntry] = []  # over all its starts
        self.link: Link[Wire] | None = None
        self.errors: list[BraidError] = []
        self.waits_forward: list[Callable[[], None]] = []
        self.holds_forward = False
        self.congested = False
        self.rooms = 0
        self.retained_full = False
        self.sequences: dict[bytes, int] = {}
        self.batches: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        bench = Bench()
        bench.state.marks = [1] * SHARDS
        bench.routes.inspector = lambda topic: HISTORY if topic == b"kept" else 0
        bench.routes.history_qos = 1
        self.bench = bench
        self.recorder = Recorder(bench.lane, lambda: None)
        self.waits_forward = []
        self.events = []
        self.effects: list[Effect] = []
        publisher = NotedPublisher(self)
        marks = {shard: decode_mark(value) for shard, value in self.disk.marks.items()}
        self.blocks = HomeBlocks(SHARDS, self, publisher, self.recorder, marks, on_room=self._note_room)

    def _note_room(self) -> None:
        self.rooms += 1

    # What the blocks need

    def client_of(self, channel: int) -> ChannelClient | None:
        client = self.clients.get(channel)
        is_gone = client is None or channel in self.fenced or (channel, "release") in self.events
        return None if is_gone or client is None else ChannelClient(client.client_id, None)

    def mark_row(self, shard: int, mark: BlockMark) -> Change:
        return Put(shard, MARK_KEY, encode_mark(mark))

    def apply(self, found: list[Operation], client_id: str | None) -> AppliedRows:
        if any(client_of(each) != client_id for each in found):
            raise NotOwned("another client's")
        cursors = [each for each in found if isinstance(each, PutCursor)]
        return AppliedRows([Put(0, each.client_id.encode(), b"%d" % each.row.positions[0]) for each in cursors], [])

    def carry_out(self, effects: list[Effect]) -> None:
        self.effects += effects

    def when_known(self, effects: list[Effect], on_done: Callable[[], None]) -> None:
        on_done()

    def release(self, channel: int, ending: Ending) -> None:
        self.released.append((channel, ending))
        self.events.append((channel, "release"))

    def tell_presence(self, entry: PresenceEntry) -> None:
        self.told.append(entry)

    def withdraw(self, request: ClaimRequest) -> None:
        raise AssertionError("nothing is withdrawn")

    def when_retained(self, shard: int, on_done: Callable[[], None]) -> None:
        on_done()

    def when_forwarded(self, on_done: Callable[[], None]) -> None:
        if self.holds_forward:
            self.waits_forward.append(on_done)
        else:
            on_done()

    def producer_sequence(self, shard: int, name: bytes) -> int:
        return self.sequences.get(name, 0)

    def reserve(self, message: Message) -> bool:
        return True

    def give_back(self, message: Message) -> None: ...

    def is_batch_open(self, name: str, base: int, user_name: str | None) -> bool:
        return base >= self.batches.get(name, 0)

    def new_key(self, name: str, base: int, key: bytes, sender: KeySender) -> NewKey | None:
        raise AssertionError("no message has a key")

    def note_live(self, name: bytes, sequence: int) -> None: ...

    def is_congested(self) -> bool:
        return self.congested

    # What the publisher needs

    def show(self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int) -> None:
        self.shown.append(message.payload)
        self.recorder.outcomes.show(message, flow, channel, ack_qos, packet_id)

    def may_retain(self, message: Message) -> bool:
        return not self.retained_full

    def retain_on_commit(
        self, pending: Pending, message: Message, user_name: str | None, on_settled: Callable[[], None] | None = None
    ) -> bool:
        """Retained messages have no rows here."""
        return False

    def retain_in_memory(self, message: Message, user_name: str | None) -> None:
        """Nor are they kept."""

    def trace(self, message: Message) -> None:
        raise AssertionError("nothing is traced")

    # The network

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        assert self.link is not None
        self.link.send(self, (kind, destination, body, flags))

    def receive(self, link: Link[Wire], message: Wire) -> None:
        kind, destination, body, flags = message
        if link is not self.link or kind is not FrameKind.BLOCK:
            return
        try:
            self.blocks.on_frame(destination, flags, body)
        except BraidError as problem:
            self.errors.append(problem)
            link.cut()

    def end_turn(self) -> None:
        block = self.recorder.take()
        if block is not None:
            self.disk.append(block)

    def cut(self, link: Link[Wire]) -> None:
        if link is self.link:
            self.link = None
            self.blocks.lost()

    def crash(self, kept: int) -> None:
        if self.link is not None:
            self.link.cut()
            self.link = None
        self.disk.crash(kept)
        self.start()


def connect(network: Network[Wire], node: Node, home: Home) -> None:
    """A new connection; the node's declaration is done."""
    link = network.connect(node, home)
    node.link = home.link = link
    home.blocks.connected(home.send)
    node.scans.connected()
    node.blocks.connected()


def payloads(home: Home, client: Client) -> list[bytes]:
    """What is on disk of a client, in order."""
    return [text for (_, text), name in zip(home.disk.records, home.disk.publishers, strict=True) if name == client.client_id]
