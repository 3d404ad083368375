"""What an operator is told of the cores of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.control.cluster import CoreInfo, CoreState


def describe_cores(several: SeveralCores, side: CoreSide) -> list[CoreInfo]:
    """All cores, as one of them sees them."""
    view = several.view
    terms, addresses = view.terms, view.addresses
    connected = side.links.connected if side.links is not None else []
    found: list[CoreInfo] = []
    for name in several.map.cores:
        member = view.alive.get(name)
        state: CoreState
        if name not in several.others:
            state = "serving" if several.membership.check() else "alone"
        elif member is None:
            state = "dead"
        else:
            state = "serving" if name in connected else "away"
        led = {shard: terms[shard].term if shard in terms else 0 for shard in several.map.led_by(name)}
        incarnation = 0 if member is None else member.incarnation
        found.append(CoreInfo(name=name, state=state, incarnation=incarnation, address=addresses.get(name, ""), terms=led))
    return found


def addresses_of(cores: Sequence[CoreInfo], own: str) -> list[str]:
    """Where nodes of other machines reach the cores that have been started. ``own``: the address of an only core."""
    return [core.address for core in cores if core.address] or [own]
