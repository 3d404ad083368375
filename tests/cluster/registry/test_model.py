"""Every order of events, at small bounds, over the production state machines of a home and its nodes; and planted bugs.

Each bug is one that a schedule describes (R1 to R4, R10 to R15), and the explorer has to find it. `BRAIDMQ_REGISTRY_MODEL=large`
selects larger bounds and prints how many worlds were seen (`pytest -s`).
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any, NamedTuple

import pytest

from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import Action, ClaimRequest, Declaration, Outcome
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.table import ChannelEntry, Contest, Peer, PendingClaim
from braidmq.cluster.registry.versions import Stamp, Version
from tests.support.registry_explorer import Explored, explore
from tests.support.registry_model import Bounds, Connection, Model

IS_LARGE = os.environ.get("BRAIDMQ_REGISTRY_MODEL") == "large"

OLD, SLACK, NEW = Connection("n1", 100), Connection("n2", 105), Connection("n2", 130)
THIRD = Connection("n3", 130)
CLOSE = (Connection("n1", 101), Connection("n2", 100))
SAME_CLOCK = (Connection("n1", 110), Connection("n2", 101), Connection("n1", 99))  # the last one is older than the first


class World(NamedTuple):
    """What is explored."""

    name: str
    connections: tuple[Connection, ...]
    bounds: Bounds


SMALL = (
    World("a client leaves", (OLD, NEW), Bounds(leaves=2)),
    World("three connections", (OLD, SLACK, NEW), Bounds()),
    World("three nodes", (OLD, SLACK, THIRD), Bounds()),
    World("a clock and a slack", SAME_CLOCK, Bounds()),
    World("a lost connection", (OLD, SLACK), Bounds(cuts=1)),
    World("a lost connection and a client that leaves", (OLD, NEW), Bounds(cuts=1, leaves=1)),
    World("a home that restarts", CLOSE, Bounds(restarts=1)),
    World("a node that dies", (OLD, SLACK, THIRD), Bounds(crashes=1)),
    World("a kick", (OLD, NEW), Bounds(kicks=1)),
)
EXPLORED = {world.connections for world in SMALL}
LARGE = (
    World("three connections, of which one leaves", (OLD, SLACK, NEW), Bounds(leaves=1)),
    World("three nodes, of which one dies", (OLD, SLACK, THIRD), Bounds(crashes=1, leaves=1)),
    World("a clock, a slack and a restart", SAME_CLOCK, Bounds(restarts=1)),
    World("three connections and a lost one", (OLD, SLACK, NEW), Bounds(cuts=1)),
    World("three connections and a restart", (OLD, SLACK, NEW), Bounds(restarts=1)),
    World("a restart and a lost connection", (OLD, SLACK), Bounds(restarts=1, cuts=1)),
    World("two restarts", (OLD, SLACK), Bounds(restarts=2, leaves=1)),
    World("kicks", (OLD, SLACK, NEW), Bounds(kicks=2)),
)


def shown(found: Explored) -> str:
    return "\n".join([found.violation, *(f"    {kind} {what or ''}" for kind, what in found.events)])


@pytest.mark.timeout(10_000 if IS_LARGE else 60)
@pytest.mark.parametrize("world", SMALL + LARGE * IS_LARGE, ids=lambda world: world.name)
def test_no_order_of_events_breaks_a_property(world: World) -> None:
    found = explore(Model, world.connections, world.bounds)

    print(f"{world.name}: {found.states} worlds")
    assert not found.violation, shown(found)
    assert found.is_complete
    assert found.states > 100


# Planted bugs


class Exact(HomeClaims[str]):
    """R1: versions are compared as if clocks were exact."""

    def _stamp(self, peer: Peer[str], claim: ClaimRequest) -> Stamp:
        return super()._stamp(peer, claim)._replace(bound_ms=0)


class ForgetsTimedOut(HomeClaims[str]):
    """R2 (a): a predecessor that does not answer the probe counts as none."""

    def _begin(self, contest: Contest[str], pending: PendingClaim[str], now: float) -> list[Action[str]]:
        if pending.due <= now:
            pending.seen = None
            return self._decide(contest, pending, now)
        return super()._begin(contest, pending, now)

    def _decide(self, contest: Contest[str], pending: PendingClaim[str], now: float) -> list[Action[str]]:
        if pending.due <= now:
            pending.seen = None
        return super()._decide(contest, pending, now)


class AbortsIfGone(HomeClaims[str]):
    """R2 (b): a predecessor that has gone since is a reason to abort."""

    def _decide(self, contest: Contest[str], pending: PendingClaim[str], now: float) -> list[Action[str]]:
        if pending.seen is not None and contest.registered is None:
            return self._lose(contest, pending, Outcome.ABORT)
        return super()._decide(contest, pending, now)


class GrantsAtBegin(HomeClaims[str]):
    """R3 (a): the winner takes what there was when it began, and does not wait for what the loser writes until it ends."""

    def _win(self, contest: Contest[str], pending: PendingClaim[str], now: float) -> list[Action[str]]:
        actions = super()._win(contest, pending, now)
        return actions + (self._give_up(contest) if contest.promised is not None else [])


class ForgetsLosers(HomeClaims[str]):
    """R3 (c): the winner takes the loser's place in the table, and a third channel does not find the loser."""

    def _win(self, contest: Contest[str], pending: PendingClaim[str], now: float) -> list[Action[str]]:
        actions = super()._win(contest, pending, now)
        for entry in contest.leaving:
            entry.peer.channels.pop(entry.channel, None)
        contest.leaving.clear()
        return actions


class CountsUp(HomeClaims[str]):
    """R10: a newcomer within slack is granted a time that no clock has shown."""

    def _register(
        self, peer: Peer[str], claim: ClaimRequest, stamp: Stamp, guard: int, highest: ChannelEntry[str] | None
    ) -> ChannelEntry[str]:
        entry = super()._register(peer, claim, stamp, guard, highest)
        if highest is not None and highest.granted.version.ms >= stamp.version.ms:
            entry.lent = Stamp(Version(highest.granted.version.ms + 1, peer.registration, claim.channel), stamp.bound_ms, None)
        return entry


class ArrivesTwice(HomeClaims[str]):
    """R11: a repeated claim is decided again."""

    def _repeat(self, peer: Peer[str], claim: ClaimRequest) -> list[Action[str]]:
        return self._arrive(peer, claim, 0.0)


class Forgetful(HomeClaims[str]):
    """R12: a channel that has ended is forgotten at once."""

    def _remember(self, contest: Contest[str], entry: ChannelEntry[str]) -> None:
        pass


class LateGuards(HomeClaims[str]):
    """R13: the guard is fixed when the loser has answered."""

    def _end(self, entry: ChannelEntry[str], ending: Any) -> list[Action[str]]:
        contest = self._contest(entry.client_id)
        if contest.owner is entry and contest.promised is not None and contest.registered is not None:
            contest.registered.guard = entry.guard + 1
        return super()._end(entry, ending)


class IgnoresTerms(Model):
    """R14: a node takes what a home of an earlier term says."""

    ignores_terms = True


class DeclaresOwnVersions(NodeClaims):
    """R15: a node declares what its channels have claimed with, and not what they were granted."""

    def declaration(self, home: Hashable = None) -> Declaration:
        found = super().declaration(home)
        number = {100: 2, 101: 1}  # registration ids, by the times in CLOSE
        own = [each._replace(version=Version(each.ms, number[each.ms], each.channel)) for each in found.channels]
        return found._replace(channels=own)


def with_home(home_type: type[HomeClaims[str]]) -> type[Model]:
    """Models whose home has a bug. Worlds are pickled, so the type must be found by its name."""
    name = f"ModelOf{home_type.__name__}"
    if name not in globals():
        globals()[name] = type(name, (Model,), {"home_type": home_type, "__module__": __name__, "__qualname__": name})
    found: type[Model] = globals()[name]
    return found


class OwnVersions(Model):
    """R15."""

    node_type = DeclaresOwnVersions


EXACT = (Connection("n1", 100, 0), Connection("n2", 100, 0), Connection("n3", 100, 0))

BUGS = (
    ("R1", with_home(Exact), (Connection("n1", 100), Connection("n2", 103, shown_ms=98)), Bounds()),
    ("R2 a", with_home(ForgetsTimedOut), (OLD, NEW), Bounds()),
    ("R2 b", with_home(AbortsIfGone), (OLD, NEW), Bounds(leaves=1)),
    ("R3 a", with_home(GrantsAtBegin), (OLD, NEW), Bounds()),
    ("R3 c", with_home(ForgetsLosers), (OLD, SLACK, THIRD), Bounds()),
    ("R4", Model, (Connection("n1", 100, shown_ms=200), Connection("n2", 150)), Bounds()),
    ("R10", with_home(CountsUp), EXACT, Bounds()),
    ("R11", with_home(ArrivesTwice), (OLD, SLACK), Bounds(repeats=1)),
    ("R12", with_home(Forgetful), (OLD, NEW), Bounds(leaves=1)),
    ("R13", with_home(LateGuards), (OLD, SLACK, THIRD), Bounds()),
    ("R14", IgnoresTerms, CLOSE, Bounds(restarts=1)),
    ("R15", OwnVersions, CLOSE, Bounds(restarts=1)),
)


@pytest.mark.parametrize(("model", "connections", "bounds"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS])
def test_a_planted_bug_is_found(model: type[Model], connections: tuple[Connection, ...], bounds: Bounds) -> None:
    found = explore(model, connections, bounds)

    assert found.violation
    if model is not Model and connections not in EXPLORED:
        assert not explore(Model, connections, bounds).violation
