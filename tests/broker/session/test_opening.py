"""Opening a session: a slow registry, access that changes meanwhile, and each case of the takeover table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.access.local import LocalAccess
from braidmq.broker.messages.hooks import Hook
from braidmq.broker.session.local import LocalRegistry
from braidmq.broker.session.ports import Claim, Grant, GrantEnding
from braidmq.broker.session.takeover import TABLE, Old, Row, WillFate
from braidmq.mqtt.packets import Connack, Disconnect, Publish, Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

EXPIRY_S = 1000
DELAY_S = 50
CLAIM = Claim("c", None, False, 0, None, None)
REFUSED, BUSY, TAKEN_OVER = 0x87, 0x89, 0x8E


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


class SlowRegistry:
    """In place of a registry's ``claim``: answers when the test says so. Notes the claims that were ended."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = world.broker.registry
        assert isinstance(registry, LocalRegistry)
        self.world = world
        self.asked: list[asyncio.Future[Grant | Refused]] = []
        self.ended: list[tuple[Grant, bool]] = []
        self._claim, self._end = registry.claim, registry.end
        monkeypatch.setattr(registry, "claim", self._ask)
        monkeypatch.setattr(registry, "end", self._note_end)

    def _ask(self, claim: Claim) -> asyncio.Future[Grant | Refused]:
        self.asked.append(self.world.loop.create_future())
        return self.asked[-1]

    def _note_end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        self.ended.append((grant, keeps_session))
        self._end(grant, keeps_session=keeps_session, ending=ending)

    def grant(self, number: int) -> Grant:
        """Answer the CONNECT that came as this one."""
        grant = self._claim(CLAIM)
        self.asked[number].set_result(grant)
        self.world.settle()
        return grant


def ask(world: World, **fields: Any) -> Peer:
    """A client whose CONNECT is on its way."""
    peer = world.open()
    peer.request_connect("c", **fields)
    return peer


def connack(peer: Peer) -> Connack:
    (answer,) = [packet for packet in peer.receive() if isinstance(packet, Connack)]
    return answer


# The registry


@pytest.mark.parametrize("expiry_s", [0, EXPIRY_S])
def test_connack_is_sent_when_the_registry_has_granted_the_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, expiry_s: int
) -> None:
    registry = SlowRegistry(world, monkeypatch)
    peer = ask(world, expiry=expiry_s)
    assert peer.receive() == []
    assert world.broker.sessions.get("c") is None

    grant = registry.grant(0)

    assert connack(peer).reason == 0
    session = world.broker.sessions.get("c")
    assert session is not None
    assert session.grant == grant
    assert world.log.fences.guard("c") == grant.guard


def test_a_rejected_claim_reports_its_reason_and_leaves_the_owner_connected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = world.connect("c")
    registry = SlowRegistry(world, monkeypatch)
    peer = ask(world)
    world.settle()

    registry.asked[0].set_result(Refused(BUSY, "a newer connection has the client id"))

    assert connack(peer).reason == BUSY
    assert not owner.is_closed
    assert owner.receive() == []


def test_a_client_that_leaves_during_its_claim_does_not_affect_the_owner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = world.connect("c")
    registry = SlowRegistry(world, monkeypatch)
    ask(world).cut()
    world.settle()

    grant = registry.grant(0)

    assert registry.ended == [(grant, True)]
    assert not owner.is_closed
    session = world.broker.sessions.get("c")
    assert session is not None
    assert session.connection is owner.connection


def test_a_grant_older_than_the_owners_is_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SlowRegistry(world, monkeypatch)
    late, owner = ask(world), ask(world)
    world.settle()
    stale = Grant("c", 1)
    registry.grant(1)

    registry.asked[0].set_result(stale)

    assert connack(late).reason == BUSY
    assert connack(owner).reason == 0
    session = world.broker.sessions.get("c")
    assert session is not None
    assert session.connection is owner.connection
    assert registry.ended == [(stale, True)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_waiting_clients_the_one_granted_last_becomes_the_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    registry = SlowRegistry(world, monkeypatch)
    peers = [ask(world), ask(world)]
    world.settle()

    grants = [registry.grant(number) for number in order]

    loser, winner = (peers[number] for number in order)
    assert loser.is_closed
    assert connack(winner).reason == 0
    session = world.broker.sessions.get("c")
    assert session is not None
    assert session.connection is winner.connection
    assert session.guard == max(grant.guard for grant in grants)


def test_access_withdrawn_during_a_claim_does_not_affect_the_owner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = world.connect("c")
    registry = SlowRegistry(world, monkeypatch)
    peer = ask(world)
    world.settle()
    access = world.broker.access
    assert isinstance(access, LocalAccess)
    access.bans.add(client_id="c")

    grant = registry.grant(0)

    assert connack(peer).reason == REFUSED
    assert not owner.is_closed
    assert (grant, True) in registry.ended


# Each case


def will(payload: bytes, delay_s: int) -> Will:
    return Will("will", payload, 0, False, Properties(will_delay_interval=delay_s or None))


@pytest.mark.parametrize("delay_s", [0, DELAY_S])
@pytest.mark.parametrize(
    ("row", "clean"),
    [
        (row, clean)
        for row in TABLE
        for clean in ((False, True) if row.continues is None else (not row.continues,))
        if row.old is not Old.PROTECTED  # test_bad_owner.py has that, with users
    ],
    ids=lambda each: f"{each.old.name}-{each.fate.name}" if isinstance(each, Row) else f"clean-{each}",
)
def test_each_case_of_the_takeover_table_behaves_as_documented(world: World, row: Row, clean: bool, delay_s: int) -> None:
    watcher = world.connect("watcher", expiry=0)
    watcher.subscribe("will", qos=0)
    before = 0
    if row.old is not Old.NONE:
        old = world.connect("c", expiry=0 if row.old is Old.BRIEF else EXPIRY_S, will=will(b"old", delay_s))
        if row.old is Old.AWAY:
            old.cut()
            before = len(payloads(watcher.receive()))
            assert before == (delay_s == 0)

    new = world.connect("c", clean=clean, expiry=EXPIRY_S)

    assert new.connack.session_present is row.session_present
    if row.closes:
        assert [packet.reason for packet in old.take() if isinstance(packet, Disconnect)] == [TAKEN_OVER]
    fate = row.delayed_will if delay_s else row.prompt_will
    assert payloads(watcher.receive()) == ([b"old"] if fate is WillFate.PUBLISHED else [])
    world.wait(DELAY_S + 1)
    assert watcher.receive() == []  # neither then nor again


# Rights


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[World]:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite #\n")
    with World(access={"acl_file": str(rules)}) as world:
        yield world


def write_rules(world: World, text: str) -> None:
    """Other rules from now on, as SIGHUP does it; texts that cannot be read leave the node without rules."""
    path = Path(world.settings.access.acl_file)
    path.write_text(text)
    access = world.broker.access
    assert isinstance(access, LocalAccess)
    world.loop.run_until_complete(access.reload())


def test_access_withdrawn_while_connect_waits_for_the_disk_drops_inflight_messages(guarded: World) -> None:
    world = guarded
    subscriber = world.connect("c")
    subscriber.subscribe("secret", qos=1)
    world.connect("p").publish("secret", b"in flight", 1)
    assert payloads(subscriber.receive()) == [b"in flight"]
    subscriber.cut()
    world.settle()
    back = ask(world)
    write_rules(world, "topic readwrite open/#\n")
    world.broker.enforce_access()

    packets = back.receive()

    assert isinstance(packets[0], Connack)
    assert packets[0].session_present
    assert not any(isinstance(packet, Publish) for packet in packets)


def test_a_will_that_waited_for_valid_rules_is_published_before_it_is_replaced(guarded: World) -> None:
    world = guarded
    watcher = world.connect("watcher", expiry=0)
    watcher.subscribe("will", qos=0)
    leaving = world.connect("c", will=will(b"old", 0))
    write_rules(world, "no such line\n")
    leaving.cut()
    world.settle()
    assert watcher.receive() == []
    write_rules(world, "topic readwrite #\n")  # and nobody has told the broker yet

    world.connect("c", will=will(b"new", 0))
    world.broker.enforce_access()

    assert payloads(watcher.receive()) == [b"old"]


class SlowConsent(Hook):
    """Lets every client in when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_decided = loop.create_future()

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        await self.is_decided
        return Granted(None)


@pytest.mark.parametrize("expiry_s", [0, EXPIRY_S])
def test_a_client_banned_while_it_authenticates_takes_over_nothing(world: World, expiry_s: int) -> None:
    owner = world.connect("c")
    consent = SlowConsent(world.loop)
    world.broker.hooks.add(consent)
    peer = ask(world, clean=True, expiry=expiry_s)
    world.settle()
    access = world.broker.access
    assert isinstance(access, LocalAccess)
    access.bans.add(client_id="c")

    consent.is_decided.set_result(None)

    assert connack(peer).reason == REFUSED
    assert not owner.is_closed
    assert owner.receive() == []
