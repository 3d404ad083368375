"""A takeover that stops after any of its steps: one owner, one will, no timers left, leases returned, rows that fit."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from braidmq.access.contract import Refused
from braidmq.broker.session.opening import Newcomer, Opening
from braidmq.broker.session.ports import Grant
from braidmq.broker.session.session import Session
from braidmq.broker.session.takeover import TABLE, Fate, Old, Row, Step, WillFate, steps_of
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

EXPIRY_S = 1000
DELAY_S = 50
LONG_S = 10_000  # every session and every delay is over by then

OLD, NEW, JOB = b"the old client is gone", b"the new client is gone", b"a job"


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


class Scene:
    """A client id whose old session fits a row of the table, and a newcomer that takes it step by step.

    The old client has a will and a lease of a shared group; one client hears wills, another one is a member of that group.
    """

    def __init__(self, world: World, row: Row, delay_s: int) -> None:
        self.world = world
        self.row = row
        self.watcher = world.connect("watcher", expiry=LONG_S * 3)
        self.watcher.subscribe("will", qos=1)
        self.heard: list[bytes] = []
        self.old = self._make_old(delay_s) if row.old is not Old.NONE else None
        self.member = world.connect("member", expiry=0)
        self.jobs = payloads(self.member.subscribe("$share/g/job", qos=1))
        self.terms = self._terms()
        self.newcomer = world.open()
        self.taking = self._begin()

    def _make_old(self, delay_s: int) -> Peer:
        peer = self.world.connect("c", expiry=0 if self.row.old is Old.BRIEF else EXPIRY_S, will=will(OLD, delay_s))
        peer.subscribe("kept", qos=1)
        peer.subscribe("$share/g/job", qos=1)
        publisher = self.world.connect("p", expiry=0)
        publisher.publish("job", JOB)
        publisher.disconnect()
        assert payloads(peer.receive()) == [JOB], "and does not acknowledge it"
        if self.row.old is Old.AWAY:
            peer.cut()
            self.world.settle()
        if self.row.old is Old.PROTECTED:
            session = self.session
            assert session is not None
            session.user_name = "user"
            self.world.broker.takeover_steps._has_users = lambda: True
        return peer

    def _begin(self) -> Generator[Step, None, Opening | Refused]:
        broker = self.world.broker
        continues = True if self.row.continues is None else self.row.continues
        claim = Newcomer("c", None, not continues, EXPIRY_S * 2, will(NEW, 0), None, self.newcomer.connection)
        grant = broker.registry.claim(claim)
        assert isinstance(grant, Grant)
        return broker.takeover_steps.take(claim, grant)

    def take(self, count: int) -> None:
        """Take so many steps."""
        expected = list(steps_of(self.row))[:count]
        assert [next(self.taking) for _ in range(count)] == expected
        self.taken = expected

    def stop(self) -> None:
        """The newcomer is gone, and takes no more steps."""
        self.newcomer.cut()
        self.taking.close()
        self.world.broker.lane.flush()
        self.world.settle()

    @property
    def session(self) -> Session | None:
        return self.world.broker.sessions.get("c")

    @property
    def was_ended(self) -> bool:
        """Whether the old session has ended: it was discarded by a step, or ends with its connection."""
        ends_with_connection = self.row.old is Old.BRIEF and Step.CLOSE in self.taken
        return self.row.old is Old.NONE or ends_with_connection or Step.DISCARD in self.taken

    def hear(self) -> list[bytes]:
        """Every will so far."""
        self.heard += payloads(self.watcher.acknowledge_all())
        return self.heard

    def owners(self) -> list[object]:
        """Connections that have a session of the client id."""
        return [each for each in self.world.broker.connections if each.session is not None and each.client_id == "c"]

    def _terms(self) -> tuple[object, ...] | None:
        session = self.session
        return None if session is None else (session.expiry_s, session.user_name, sorted(session.subscriptions))

    def stored(self) -> list[tuple[object, ...]]:
        """The terms of the client id's session as they are on disk."""
        return [
            (each.session.expiry_s, each.session.user_name, sorted(row.written for row in each.subscriptions))
            for each in self.world.broker.turn_writer.storage.sessions.load()
            if each.session.client_id == "c"
        ]


def will(payload: bytes, delay_s: int) -> Will:
    return Will("will", payload, 1, False, Properties(will_delay_interval=delay_s or None))


def cases() -> list[object]:
    """Every row of the table, stopped after every number of its steps, with a will that waits and one that does not."""
    return [
        pytest.param(row, count, delay_s, id=f"{row.old.name}-{row.continues}-{count}-{'delayed' if delay_s else 'prompt'}")
        for row in TABLE
        for count in range(1, len(list(steps_of(row))) + 1)
        for delay_s in (0, DELAY_S)
    ]


every_step = pytest.mark.parametrize(("row", "count", "delay_s"), cases())


@every_step
def test_a_client_lost_after_any_takeover_step_leaves_the_session_offline_or_ended(
    world: World, row: Row, count: int, delay_s: int
) -> None:
    scene = Scene(world, row, delay_s)
    scene.take(count)

    scene.stop()

    session = scene.session
    if row.fate is Fate.UNCHANGED:
        assert scene.old is not None
        assert scene.owners() == [scene.old.connection]
        return
    assert scene.owners() == []
    if scene.was_ended:
        assert session is None
        assert scene.stored() == []
    else:
        assert session is not None
        assert session.connection is None
        assert scene._terms() == scene.terms
        assert scene.stored() == [scene.terms]
        assert session.expiry_timer is not None
        assert (session.will_timer is not None) == (session.will is not None) == bool(delay_s)
    if scene.old is not None:
        assert scene.jobs + payloads(scene.member.receive()) == [JOB], "the lease was returned"


@every_step
def test_an_unfinished_takeover_leaves_nothing_when_its_session_expires(world: World, row: Row, count: int, delay_s: int) -> None:
    scene = Scene(world, row, delay_s)
    scene.take(count)
    scene.stop()
    if scene.old is not None and row.fate is Fate.UNCHANGED:
        scene.old.cut()

    world.wait(LONG_S)

    statistics = world.broker.statistics
    assert scene.hear() == ([OLD] if scene.old is not None else [])
    assert scene.session is None
    assert statistics.created - statistics.ended == 2, "the watcher and the member"
    assert len(world.log.fences) == 2
    assert world.broker.sessions.will_bytes == 0
    assert scene.stored() == []


@every_step
def test_a_newer_client_owns_the_session_of_an_unfinished_takeover(world: World, row: Row, count: int, delay_s: int) -> None:
    scene = Scene(world, row, delay_s)
    scene.take(count)
    if row.fate is Fate.UNCHANGED:
        return  # nothing was begun

    scene.stop()
    newest = world.connect("c", expiry=EXPIRY_S * 3)

    assert newest.connack.session_present == (not scene.was_ended)
    assert scene.owners() == [newest.connection]
    session = scene.session
    assert session is not None
    assert (session.expiry_timer, session.will_timer) == (None, None)
    world.wait(LONG_S)
    prompt = row.prompt_will is WillFate.PUBLISHED if not delay_s else scene.was_ended
    ended = scene.was_ended and scene.old is not None
    was_published = scene.old is not None and (prompt or ended or (row.old is Old.AWAY and not delay_s))
    assert scene.hear() == ([OLD] if was_published else [])


@pytest.mark.parametrize("is_written", [False, True])
@every_step
def test_a_crash_after_any_takeover_step_keeps_one_session_and_one_will(
    world: World, monkeypatch: pytest.MonkeyPatch, row: Row, count: int, delay_s: int, is_written: bool
) -> None:
    scene = Scene(world, row, delay_s)
    scene.take(count)
    if is_written:
        scene.hear()
        world.tick()  # that the watcher has heard it is on disk as well
    monkeypatch.setattr(world.broker.takeover_steps, "_stop", lambda *_: None)  # a process that is gone tidies nothing up
    scene.taking.close()

    world.crash()

    scene.watcher = world.connect("watcher", expiry=LONG_S * 3)
    assert scene.owners() == []
    assert len(scene.stored()) == (scene.session is not None)
    world.wait(LONG_S)
    if row.old is not Old.BRIEF:  # it was in memory only: its will is gone with the process, unless it was published before
        assert scene.hear() == ([OLD] if scene.old is not None else [])
    assert scene.hear().count(OLD) <= 1
    assert NEW not in scene.hear()
    assert [each.client_id for each in world.broker.sessions] == ["watcher"]
    assert scene.stored() == []


@pytest.mark.parametrize("failing", ["_resume", "_close"])
def test_a_failing_takeover_step_leaves_one_owner_or_an_offline_session(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (row,) = [each for each in TABLE if each.old is Old.LASTING and each.continues]
    scene = Scene(world, row, DELAY_S)
    assert scene.old is not None

    def fail(session: Session) -> None:
        raise RuntimeError("a test")

    monkeypatch.setattr(world.broker.takeover_steps, failing, fail)
    with pytest.raises(RuntimeError):
        list(scene.taking)
    world.settle()

    session = scene.session
    assert session is not None
    is_owned = session.connection is not None
    assert scene.owners() == ([scene.old.connection] if is_owned else [])
    assert is_owned == (failing == "_close")
    assert (session.expiry_timer is None) == is_owned
