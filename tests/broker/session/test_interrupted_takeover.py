"""A CONNECT interrupted before its CONNACK: no session leaks, one will at most, one owner at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from braidmq.broker.ports import Change, SessionRow
from braidmq.broker.session.session import Session
from braidmq.mqtt.packets import Connack, Disconnect, Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

EXPIRY_S = 1000
DELAY_S = 50
LONG_S = 10_000  # every session and every delay is over by then
REFUSED, WITHDRAWN, TAKEN_OVER = 0x97, 0x87, 0x8E

OLD, NEW = b"the old client is gone", b"the new client is gone"


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


class Scene:
    """A client id with an old session, a newcomer whose CONNACK waits for the disk, and a client that hears the wills."""

    def __init__(self, world: World, old: str, clean: bool, delay_s: int) -> None:
        self.world = world
        self.watcher = world.connect("watcher", expiry=0)
        self.watcher.subscribe("will", qos=0)
        self.has_old = old != "none"
        self.old = self._make_old(old, delay_s) if self.has_old else None
        self.heard: list[bytes] = []
        self.newcomer = world.open()
        self.newcomer.request_connect("c", clean=clean, expiry=EXPIRY_S * 2, will=will(NEW, 0))

    def _make_old(self, old: str, delay_s: int) -> Peer:
        peer = self.world.connect("c", expiry=0 if old == "brief" else EXPIRY_S, will=will(OLD, delay_s))
        peer.subscribe("kept", qos=1)
        if old == "away":
            peer.cut()
            self.world.settle()
        return peer

    @property
    def session(self) -> Session | None:
        return self.world.broker.sessions.get("c")

    def hear(self) -> list[bytes]:
        """Every will so far."""
        self.heard += payloads(self.watcher.receive())
        return self.heard

    def owners(self) -> int:
        """Connections that have a session of the client id."""
        return sum(each.session is not None and each.client_id == "c" for each in self.world.broker.connections)


def will(payload: bytes, delay_s: int) -> Will:
    return Will("will", payload, 0, False, Properties(will_delay_interval=delay_s or None))


def lose_client(scene: Scene) -> None:
    """The newcomer's network is gone before it has heard anything."""
    scene.newcomer.cut()
    scene.world.settle()


def refuse_storage(scene: Scene) -> None:
    """The disk is full, for a while."""
    scene.world.fill_disk()
    scene.world.settle()
    (answer,) = [packet for packet in scene.newcomer.take() if isinstance(packet, Connack)]
    assert answer.reason == REFUSED
    scene.world.free_disk()
    scene.world.tick(2)


def withdraw_access(scene: Scene) -> None:
    """An operator bans the client, and lifts that later."""
    bans = scene.world.broker.access.bans  # type: ignore[attr-defined]
    bans.add(client_id="c")
    scene.world.settle()
    (answer,) = [packet for packet in scene.newcomer.take() if isinstance(packet, Connack)]
    assert answer.reason == WITHDRAWN
    bans.remove(client_id="c")


def send_third_that_is_lost(scene: Scene) -> None:
    """Another newcomer takes the session from the first one, and is lost as well."""
    third = scene.world.open()
    third.request_connect("c", expiry=EXPIRY_S * 3, will=will(NEW, 0))
    assert scene.owners() == 1
    third.cut()
    scene.world.settle()


def send_third_that_is_refused(scene: Scene) -> None:
    """Another newcomer takes the session from the first one; neither can be stored."""
    third = scene.world.open()
    third.request_connect("c", expiry=EXPIRY_S * 3, will=will(NEW, 0))
    scene.world.fill_disk()
    scene.world.settle()
    scene.world.free_disk()
    scene.world.tick(2)


REFUSALS = [refuse_storage, withdraw_access, send_third_that_is_refused]
INTERRUPTIONS = [lose_client, send_third_that_is_lost, *REFUSALS]
OLD_SESSIONS = ["none", "brief", "lasting", "away"]

every_case = pytest.mark.parametrize(
    ("old", "clean", "delay_s"),
    [
        (old, clean, delay_s)
        for old in OLD_SESSIONS
        for clean in (False, True)
        for delay_s in (0, DELAY_S)
        if old != "none" or not delay_s
    ],
)
every_refusal = pytest.mark.parametrize("interrupt", REFUSALS, ids=lambda each: each.__name__)
every_interruption = pytest.mark.parametrize("interrupt", INTERRUPTIONS, ids=lambda each: each.__name__)


@every_interruption
@every_case
def test_the_old_will_is_published_once_and_that_of_a_rejected_client_never(
    world: World, old: str, clean: bool, delay_s: int, interrupt: Callable[[Scene], None]
) -> None:
    scene = Scene(world, old, clean, delay_s)
    interrupt(scene)

    world.wait(LONG_S)

    assert scene.hear() == ([OLD] if scene.has_old else [])


@every_interruption
@every_case
def test_an_interrupted_takeover_leaves_nothing_of_an_ended_session(
    world: World, old: str, clean: bool, delay_s: int, interrupt: Callable[[Scene], None]
) -> None:
    scene = Scene(world, old, clean, delay_s)
    interrupt(scene)

    assert scene.owners() == 0
    assert scene.session is None or scene.session.connection is None
    world.wait(LONG_S)

    statistics = world.broker.statistics
    assert [session.client_id for session in world.broker.sessions] == ["watcher"]
    assert statistics.created - statistics.ended == 1
    assert len(world.log.fences) == 1
    assert world.broker.sessions.will_bytes == 0
    world.crash()
    assert len(world.broker.sessions) == 0


@every_interruption
@pytest.mark.parametrize("old", ["lasting", "away"])
def test_an_interrupted_takeover_leaves_the_session_with_its_own_expiry(
    world: World, old: str, interrupt: Callable[[Scene], None]
) -> None:
    scene = Scene(world, old, clean=False, delay_s=DELAY_S)
    before = scene.session
    interrupt(scene)

    session = scene.session
    assert session is not None
    assert session is before
    assert (session.expiry_s, list(session.subscriptions)) == (EXPIRY_S, ["kept"])
    assert session.will is not None
    assert session.will.payload == OLD
    world.crash()  # the disk has the same
    session = world.broker.sessions.get("c")
    assert session is not None
    assert (session.expiry_s, list(session.subscriptions)) == (EXPIRY_S, ["kept"])
    assert session.will is not None
    assert session.will.payload == OLD


@pytest.mark.parametrize(
    "interrupt", [refuse_storage, withdraw_access, send_third_that_is_refused], ids=lambda each: each.__name__
)
@pytest.mark.parametrize(("old", "clean"), [("none", False), ("brief", False), ("lasting", True), ("away", True)])
def test_a_rejected_new_session_does_not_exist_at_the_next_connect(
    world: World, old: str, clean: bool, interrupt: Callable[[Scene], None]
) -> None:
    scene = Scene(world, old, clean, delay_s=0)
    interrupt(scene)

    assert not world.connect("c").connack.session_present


@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_crash_during_a_takeover_publishes_one_will_at_the_next_start(
    world: World, is_away: bool, loses_power: bool, turns: int
) -> None:
    old = world.connect("c", will=will(OLD, DELAY_S))
    if is_away:
        old.cut()
        world.settle()
    world.open().request_connect("c", will=will(NEW, DELAY_S))
    world.turn(turns)

    world.crash(loses_power=loses_power)

    watcher = world.connect("watcher", expiry=0)
    watcher.subscribe("will", qos=0)
    world.wait(LONG_S)
    heard = payloads(watcher.receive())
    assert heard == [OLD] or (heard == [NEW] and turns)  # whichever the disk has
    assert [session.client_id for session in world.broker.sessions] == ["watcher"]


@pytest.mark.parametrize("old", ["lasting", "away"])
def test_the_duration_of_a_takeover_counts_towards_the_will_delay(world: World, old: str) -> None:
    scene = Scene(world, old, clean=False, delay_s=DELAY_S)
    world.loop.now += 20
    world.turn(20)
    scene.newcomer.cut()
    world.settle()

    world.wait(DELAY_S - 20 - 2)
    assert scene.hear() == []
    world.wait(4)

    assert scene.hear() == [OLD]


@pytest.mark.parametrize("old", ["lasting", "away"])
def test_neither_expiry_nor_will_fires_while_a_takeover_waits_for_the_disk(world: World, old: str) -> None:
    scene = Scene(world, old, clean=False, delay_s=DELAY_S)
    world.loop.now += LONG_S
    world.turn(20)
    assert scene.session is not None

    world.settle()

    (answer, *_) = scene.newcomer.take()
    assert isinstance(answer, Connack)
    assert (answer.reason, answer.session_present) == (0, True)
    assert scene.hear() == []


def test_a_second_takeover_owns_the_session_created_by_the_first(world: World) -> None:
    scene = Scene(world, "none", clean=False, delay_s=0)
    second = world.open()
    second.request_connect("c", expiry=EXPIRY_S)
    assert scene.owners() == 1

    (answer,) = second.receive()

    assert isinstance(answer, Connack)
    assert answer.reason == 0
    assert scene.newcomer.is_closed
    assert [packet for packet in scene.newcomer.take() if isinstance(packet, Connack)] == []
    assert scene.session is not None
    assert scene.session.connection is second.connection
    assert scene.owners() == 1


def test_a_connection_lost_during_its_takeover_changes_nothing(world: World) -> None:
    scene = Scene(world, "lasting", clean=False, delay_s=0)
    assert scene.old is not None
    scene.old.cut()

    world.settle()

    assert any(isinstance(packet, Connack) for packet in scene.newcomer.take())
    assert scene.hear() == [OLD]
    assert scene.session is not None
    assert scene.session.connection is scene.newcomer.connection
    assert world.broker.statistics.live == 2


def test_a_large_will_counts_from_connect_until_its_client_is_gone(world: World) -> None:
    payload = bytes(5000)
    newcomer = world.open()
    newcomer.request_connect("c", will=Will("will", payload, 0, False))
    size = world.broker.sessions.will_bytes
    assert size >= len(payload)

    world.settle()
    assert world.broker.sessions.will_bytes == size
    again = world.open()
    again.request_connect("c", will=Will("will", payload, 0, False))
    again.cut()
    world.settle()

    assert world.broker.sessions.will_bytes == 0


def test_a_takeover_writes_the_session_once_and_starts_no_timers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = world.broker
    old = world.connect("c", will=will(OLD, DELAY_S))
    rows = broker.turn_writer.storage.sessions
    put_session = rows.put_session
    timers: list[object] = []
    written: list[float] = []

    def note(row: SessionRow) -> Change:
        written.append(row.ended_at)
        return put_session(row)

    monkeypatch.setattr(rows, "put_session", note)
    monkeypatch.setattr(broker.timers, "after", lambda *_: timers.append(1))

    new = world.connect("c")

    assert new.connack.session_present
    assert [packet.reason for packet in old.take() if isinstance(packet, Disconnect)] == [TAKEN_OVER]
    assert (written, timers) == ([0.0], [])
