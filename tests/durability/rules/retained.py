"""What the broker retains, seen by a new subscriber."""

from __future__ import annotations

from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World


def retained(world: World, client_id: str) -> list[bytes]:
    """What a new subscriber is given."""
    return payloads(world.connect(client_id, expiry=0, clean=True).subscribe("t", qos=0))
