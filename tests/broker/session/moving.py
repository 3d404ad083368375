"""Two nodes over one log, between which sessions move as rows."""

from __future__ import annotations

from collections.abc import Awaitable

from braidmq.access.contract import Refused
from braidmq.broker.broker import Broker
from braidmq.broker.ports import StoredSession
from braidmq.broker.session.local import LocalRegistry
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, NodePorts
from braidmq.broker.session.session import Session
from braidmq.mqtt.packets import Will
from tests.support.simulator.world import World


class RowsRegistry:
    """A registry whose grants bring the rows of the session, after a turn of the loop; notes how grants ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._local = LocalRegistry(world.log.fences)
        self.ended: list[tuple[str, bool, GrantEnding]] = []
        self.refused: Refused | None = None

    async def _answer(self, claim: Claim) -> Grant | Refused:
        if self.refused is not None:
            return self.refused
        self._world.log.flush()
        grant = self._local.claim(claim)
        stored = None if claim.clean_start else stored_session(self._world, claim.client_id)
        return Grant(grant.client_id, grant.guard, stored)

    def claim(self, claim: Claim) -> Awaitable[Grant | Refused]:
        return self._answer(claim)

    def commit(self, grant: Grant) -> bool:
        return self._local.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        self.ended.append((grant.client_id, keeps_session, ending))
        self._local.end(grant, keeps_session=True, ending=ending)


def stored_session(world: World, client_id: str) -> StoredSession | None:
    """The rows of a session as they are on disk."""
    return world.broker.turn_writer.storage.sessions.load_one(client_id)


def give_away(world: World, client_id: str, node: Broker | None = None) -> Will | None:
    """Let a node hand a session over, and write its rows; the will that it had."""
    broker = node or world.broker
    session = broker.sessions.get(client_id)
    assert session is not None
    will = broker.lifecycle.hand_over(session)
    broker.lane.flush()
    world.settle()
    assert broker.sessions.get(client_id) is None
    return will


def take_in(world: World, node: Broker, client_id: str, *, waits: bool = True) -> Session:
    """Let a node restore a session from its rows."""
    stored = stored_session(world, client_id)
    assert stored is not None
    return node.restoration.restore(stored, waits=waits)


def move(world: World, client_id: str) -> Broker:
    """Hand a session over to a new node, where it waits for its client."""
    give_away(world, client_id)
    node = world.add_node()
    take_in(world, node, client_id)
    return node


def add_carrier(world: World) -> tuple[Broker, RowsRegistry]:
    """A node that is not home: it only carries connections."""
    registry = RowsRegistry(world)
    return world.add_node(NodePorts(registry=registry, is_home=False)), registry
