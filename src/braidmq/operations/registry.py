"""What a core's operator sees and does about the registry of client ids."""

from __future__ import annotations

from typing import Protocol

import msgspec

from braidmq.base.errors import UsageError
from braidmq.cluster.home.home import Home
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.table import ChannelEntry
from braidmq.cluster.registry.takeover_times import BOUNDS_S
from braidmq.control.registry import RegistryChannel, RegistryEntry, RegistryReport, RegistryStats, SweepReport, SweepResult
from braidmq.operations.answers import decode


class HomeRegistryView:
    """The registry of one core."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def show(self, client_id: str) -> RegistryEntry | None:
        """What it knows of a client id that is at home here."""
        claims = self._home.claims
        channels = [_channel(entry, state) for entry, state in claims.channels_of(client_id)]
        if not channels:
            return None
        return RegistryEntry(
            client_id=client_id,
            home=self._home.led.local,
            term=self._home.registry.term,
            waiting=claims.waiting_for(client_id),
            user=self._home.sessions.user_of(client_id),
            channels=channels,
        )

    def stats(self) -> RegistryStats:
        """Its figures."""
        home = self._home
        claims, sweep = home.claims, home.registry.upkeep.sweep
        bounds: list[float | None] = [*BOUNDS_S, None]
        return RegistryStats(
            core=home.led.local,
            term=home.registry.term,
            clients=len(claims),
            waiting=claims.waiting,
            outcomes={outcome.value: count for outcome, count in sorted(claims.outcomes.items(), key=lambda each: each[0].value)},
            restarts=claims.restarts,
            probes=claims.probes,
            fenced=claims.given_up,
            takeovers=list(zip(bounds, home.registry.takeovers.counts, strict=True)),
            sweeps=sweep.passes,
            swept=sweep.removed,
            found=sweep.found,
        )

    async def sweep(self) -> SweepResult:
        """Compare it with the lists of all connected nodes now."""
        upkeep = self._home.registry.upkeep
        before = upkeep.sweep.removed, upkeep.sweep.found
        is_complete = await upkeep.run_now()
        return SweepResult(
            core=self._home.led.local,
            is_complete=is_complete,
            removed=upkeep.sweep.removed - before[0],
            found=upkeep.sweep.found - before[1],
        )

    async def wait_left(self, client_id: str) -> None:
        """Wait until no node has the session of a client id."""
        await self._home.sessions.wait_left(client_id)

    def kick(self, client_id: str) -> bool:
        """End the channel that a client id has now; False if there is none."""
        return self._home.registry.upkeep.kick(client_id)


class WholeRegistry(Protocol):
    """The registry of the whole cluster; `CoreOperations`."""

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        """What the home of a client id knows of it."""
        ...

    async def registry_stats(self) -> RegistryReport:
        """The registries of all cores."""
        ...

    async def registry_sweep(self) -> SweepReport:
        """Compare them with the lists of their nodes now."""
        ...


class RegistryRelay:
    """Answers the operators of other nodes."""

    def __init__(self, operations: WholeRegistry) -> None:
        self._operations = operations

    async def answer(self, operation: str, arguments: bytes) -> bytes:
        """The answer as JSON. Raises UsageError and Unavailable."""
        match operation:
            case "registry_show":
                return msgspec.json.encode(await self._operations.registry_show(decode(arguments, str)))
            case "registry_stats":
                return msgspec.json.encode(await self._operations.registry_stats())
            case "registry_sweep":
                return msgspec.json.encode(await self._operations.registry_sweep())
        raise UsageError(f"this core cannot answer {operation!r}", "it may run another version")


def _channel(entry: ChannelEntry[Member], state: str) -> RegistryChannel:
    node = entry.peer.node
    version, bound_ms, _ = entry.granted
    return RegistryChannel(
        node=node.name,
        incarnation=node.incarnation,
        channel=entry.channel,
        state=state,
        guard=entry.guard,
        connected_at_ms=version.ms,
        bound_ms=bound_ms,
        registration=version.registration,
        counter=version.counter,
        arrival=version.arrival,
    )
