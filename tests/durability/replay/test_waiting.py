"""Readers of a log that is not ready: they take no turns of the loop, go on when they are woken, and get everything once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from braidmq.base.errors import Unavailable
from braidmq.broker.ports import Gap, LogScan
from braidmq.broker.reading import catch_up, cursor
from braidmq.lane.records.records import Record
from braidmq.mqtt.packets import Puback, Publish
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import EPOCH_PREFIX, EpochLimits
from braidmq.storage.log import LogOptions
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

TURNS = 50


class Gate:
    """Stands between a broker and its log, as a remote log would: closed, nothing can be read; broken, every read fails."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = True
        self.is_broken = False
        self.reads = 0
        self.waiting: dict[GatedScan, Callable[[], None]] = {}
        self._replay = world.log.replay
        monkeypatch.setattr(world.log, "replay", self.replay)

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> LogScan:
        return GatedScan(self, self._replay(filters, start, with_session_only=with_session_only))

    def open(self) -> None:
        """Let readers through, and wake those that wait."""
        self.is_open = True
        waiting, self.waiting = self.waiting, {}
        for callback in waiting.values():
            callback()


class GatedScan:
    """Implements `ports.LogScan`."""

    def __init__(self, gate: Gate, scan: LogScan) -> None:
        self._gate = gate
        self._scan = scan

    @property
    def is_caught_up(self) -> bool:
        return self._scan.is_caught_up

    @property
    def is_waiting(self) -> bool:
        return not self._gate.is_open or self._scan.is_waiting

    def when_ready(self, callback: Callable[[], None]) -> None:
        self._gate.waiting[self] = callback

    def close(self) -> None:
        self._gate.waiting.pop(self, None)
        self._scan.close()

    def positions(self) -> dict[int, int]:
        return self._scan.positions()

    def take_gaps(self) -> Mapping[int, Gap]:
        return self._scan.take_gaps()

    def next(self, count_max: int, *, slice_s: float) -> list[tuple[int, Record]]:
        self._gate.reads += 1
        if not self._gate.is_open:
            return []
        found = self._scan.next(min(count_max, 3), slice_s=slice_s)
        if self._gate.is_broken:
            raise Unavailable("the log is elsewhere")  # and what was found is lost
        return found


@pytest.fixture
def world() -> Iterator[World]:
    with World(history={"topics": ["#"]}) as world:
        yield world


@pytest.fixture
def gate(world: World, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(world, monkeypatch)


def publish(world: World, count: int = 10) -> list[bytes]:
    publisher = world.connect("p", expiry=0)
    sent = [b"%d" % number for number in range(count)]
    for payload in sent:
        publisher.publish("t", payload)
    return sent


def begin_catch_up(world: World) -> tuple[Callable[[], Peer], list[bytes]]:
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.disconnect()
    return lambda: world.connect("s"), publish(world)


def begin_replay(world: World) -> tuple[Callable[[], Peer], list[bytes]]:
    sent = publish(world)

    def come() -> Peer:
        subscriber = world.connect("s")
        subscriber.subscribe("$replay/earliest/t", qos=1)
        return subscriber

    return come, sent


def begin_group(world: World) -> tuple[Callable[[], Peer], list[bytes]]:
    member = world.connect("s")
    member.subscribe("$share/g/t", qos=1)
    member.disconnect()
    return lambda: world.connect("s"), publish(world)


def begin_returned(world: World) -> tuple[Callable[[], Peer], list[bytes]]:
    """A group whose only member has not acknowledged its messages."""
    member = world.connect("s")
    member.subscribe("$share/g/t", qos=1)
    sent = publish(world)
    assert payloads(member.receive()) == sent
    member.cut()
    world.tick()
    return lambda: world.connect("s"), sent


def begin_recall(world: World) -> tuple[Callable[[], Peer], list[bytes]]:
    """A session whose messages in flight were removed from memory."""
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    sent = publish(world)
    assert payloads(subscriber.receive()) == sent
    subscriber.cut()
    world.settle()
    session = world.broker.sessions.get("s")
    assert session is not None
    assert session.flow.let_go_readable() == len(sent)
    return lambda: world.connect("s"), sent


kinds = pytest.mark.parametrize(
    "begin",
    [begin_catch_up, begin_replay, begin_group, begin_returned, begin_recall],
    ids=["catch-up", "replay", "group", "returned", "recall"],
)
Begin = Callable[[World], tuple[Callable[[], Peer], list[bytes]]]


def rest(world: World, gate: Gate) -> None:
    """No reader has a turn, or reads, as long as nothing happens."""
    world.settle()
    reads = gate.reads
    for _ in range(TURNS):
        world.turn()
        assert len(world.broker.turns) == 0
    assert gate.reads == reads


def received(peer: Peer) -> list[bytes]:
    """Everything that comes, each acknowledged as it comes."""
    found: list[bytes] = []
    while packets := [packet for packet in peer.receive() if isinstance(packet, Publish)]:
        found += payloads(packets)
        peer.send(*(Puback(packet.packet_id) for packet in packets if packet.packet_id is not None))
    return found


@kinds
def test_a_waiting_reader_takes_no_turns_and_resumes_when_woken(world: World, gate: Gate, begin: Begin) -> None:
    come, sent = begin(world)
    gate.is_open = False
    reader = come()
    assert payloads(reader.receive()) == []
    rest(world, gate)
    world.tick(10)  # long after
    rest(world, gate)

    gate.open()

    assert received(reader) == sent
    rest(world, gate)


@kinds
def test_a_reader_that_leaves_while_waiting_is_not_woken_and_later_gets_everything(
    world: World, gate: Gate, begin: Begin
) -> None:
    come, sent = begin(world)
    gate.is_open = False
    reader = come()
    late = list(gate.waiting.values())
    assert late
    reader.cut()
    world.settle()
    assert gate.waiting == {}

    for callback in late:
        callback()
    rest(world, gate)
    gate.open()

    assert received(world.connect("s")) == sent


@kinds
def test_a_reader_with_a_failing_source_waits_and_gets_everything_once(world: World, gate: Gate, begin: Begin) -> None:
    come, sent = begin(world)
    gate.is_broken = True
    reader = come()
    assert payloads(reader.receive()) == []
    rest(world, gate)
    world.wait(1.1)
    rest(world, gate)

    gate.is_broken = False
    world.wait(1.1)

    assert received(reader) == sent


@kinds
def test_a_reader_whose_source_fails_midway_gets_everything_once(world: World, gate: Gate, begin: Begin) -> None:
    come, sent = begin(world)
    gate.is_open = False
    reader = come()
    gate.open()
    world.turn()
    gate.is_broken = True
    world.turn(3)
    gate.is_broken = False
    world.wait(1.1)

    assert received(reader) == sent


def test_a_read_error_in_a_later_epoch_loses_nothing_of_earlier_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(LogOptions(limits=EpochLimits(count_max=5)), history={"topics": ["#"], "shards": 1}) as world:
        come, sent = begin_catch_up(world)
        world.restart()  # the tail is empty
        items = Store.items
        opened: list[bytes] = []

        def items_of_one_epoch(store: Store, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
            if lower < EPOCH_PREFIX:
                opened.append(lower)
                if len(opened) == 2:
                    raise Unavailable("the log cannot be read: Too many open files")
            return items(store, family, lower, upper)

        monkeypatch.setattr(Store, "items", items_of_one_epoch)
        monkeypatch.setattr(cursor, "SLICE_S", 1.0)
        monkeypatch.setattr(catch_up, "SLICE_S", 1.0)
        reader = come()
        world.wait(1.1)

        assert received(reader) == sent
        assert len(opened) > 2
